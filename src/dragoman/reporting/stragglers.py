"""Which ranks compute for longer than the others, since when and why."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence, Set
from itertools import groupby

import numpy as np

from dragoman.base import units
from dragoman.reporting.facts import Facts, Period, Rank
from dragoman.reporting.periods import (
    FEWEST,
    interval_took_s,
    lasted_unseen,
    lasting,
    periods,
    when,
)
from dragoman.reporting.record import Floats, Intervals
from dragoman.reporting.sampling import MOST_OTHERS
from dragoman.telemetry.events import STRAGGLES

LASTS = 1.5
"""A rank that was slow for less than half of the time counts if it took this multiple of the median
rank's time or more. Ranks of calm runs differ by up to 1.4 for a quarter of a short run; steps that
are longer by this factor raise an alert while the run trains."""
_LASTS_IN_ONE = 2.0
"""The same if only the last interval is slow: single intervals of calm runs differ by half."""
_FEWEST_STEPS = 10
"""The median of fewer steps is chance."""
_EXPLAINS = 0.1
"""Other programs explain a slow rank if they use this share of its processors more than before, or
than on other hosts if it was slow from the start."""


def stragglers(facts: Facts) -> list[tuple[float, str]]:
    """For each rank that was slow for long, or became slow and stayed so up to the end: the ratio
    of its compute time to the median rank's in the same steps, and a description with the cause if
    that was measured. The slowest rank comes first.
    """
    intervals = _with_compute(facts)
    computes_s, ratios = intervals["compute_median_s"], _ratios(intervals)
    middles_s = _middles_s(intervals)
    took_s, steps = _took_s(intervals), intervals["steps"].tolist()
    found = []
    for rank in facts.ranks[: _most_ranks(facts)]:
        of_rank = ratios[:, rank.rank].tolist()
        bad, stretches = _slow_stretches(of_rank, took_s, steps, ranks=len(facts.ranks))
        slow = [at for first, last in stretches for at in range(first, last + 1) if bad[at]]
        if slow:
            usual_s = (np.median(one[slow]) for one in (computes_s[:, rank.rank], middles_s))
            both = [units.STEP_TIME.text(float(seconds_s)) for seconds_s in usual_s]
            when_slow = periods(intervals, np.array(bad), stretches, rank=rank.rank)
            text = f"{rank.name}, {' and '.join(map(when, when_slow))} "
            text += f"({both[0]}, {both[1]} the median rank){_cause(facts, rank, when_slow)}"
            found.append((statistics.median(of_rank[at] for at in slow), text))
    return sorted(found, reverse=True)


def _slow_stretches(
    ratios: Sequence[float], took_s: Sequence[float], steps: Sequence[int], *, ranks: int
) -> tuple[list[bool], list[tuple[int, int]]]:
    """In which intervals a rank was slow, and the stretches that count.

    A stretch begins and ends where the ratio passes the middle between the usual one and that of
    the stretch: on a busy machine single intervals before it are above the limit, too.
    """
    bad = [ratio >= STRAGGLES for ratio in ratios]
    stretches = _stretches(bad, ratios, took_s, steps, ranks)
    slow = [ratios[at] for first, last in stretches for at in range(first, last + 1) if bad[at]]
    if slow:
        surely = [ratio >= max(STRAGGLES, statistics.median(slow) ** 0.5) for ratio in ratios]
        if sure_stretches := _stretches(surely, ratios, took_s, steps, ranks):
            return surely, sure_stretches
    return bad, stretches


def _stretches(
    bad: Sequence[bool],
    ratios: Sequence[float],
    took_s: Sequence[float],
    steps: Sequence[int],
    ranks: int,
) -> list[tuple[int, int]]:
    """The stretches that lasted, and the last intervals if the rank became slow and stayed so.

    Ranks that are slow in turn are slow at the end as well: it must last twice as long as before,
    and each of them must have had its turn.
    """
    found = [
        (first, last)
        for first, last in lasting(bad, took_s)
        if 2 * sum(took_s[first : last + 1]) >= sum(took_s)
        or statistics.median(ratios[at] for at in range(first, last + 1) if bad[at]) >= LASTS
    ]
    lengths = [len(list(group)) for is_bad, group in groupby(bad) if is_bad]
    if not (bad and bad[-1]) or (found and found[-1][1] == len(bad) - 1):
        return found
    *earlier, last = lengths
    least = LASTS if last > 1 else _LASTS_IN_ONE
    is_long = last >= 2 * max(earlier, default=0) and sum(steps[-last:]) >= _FEWEST_STEPS
    if is_long and len(bad) - last >= ranks and statistics.median(ratios[-last:]) >= least:
        first = len(bad) - last
        if found and first <= found[-1][1] + 1:
            first = found.pop()[0]
        found.append((first, len(bad) - 1))
    return found


def _cause(facts: Facts, rank: Rank, slow: Sequence[Period]) -> str:
    """Why a rank was slow in these periods, as the end of a sentence; "" if nothing shows it."""
    life = facts.life_at(slow[-1].since)
    host = life.hosts[rank.rank] if life and rank.rank < len(life.hosts) else rank.host
    on_host = [one.rank for one in facts.ranks if host in one.hosts]
    for gpu in facts.gpus:
        if (gpu.host, gpu.gpu) == (host, on_host.index(rank.rank)) and gpu.throttled:
            overlap_s = sum(
                min(gpu.throttled.until, one.until) - max(gpu.throttled.since, one.since)
                for one in slow
                if one.since < gpu.throttled.until and gpu.throttled.since < one.until
            )
            if overlap_s >= sum(one.until - one.since for one in slow) / 2:
                reasons = ", ".join(gpu.throttle_reasons)
                return f": the clock of {gpu.label} was lowered ({reasons})"
    spans = [(one.since, one.until) for one in slow]
    own = _others(facts, {host}, spans)
    before = None
    if not slow[0].from_start:
        before = _others(facts, {host}, [(0.0, slow[0].since)])
    usual = before
    if before is None:
        usual = _others(facts, {one for one in facts.hosts if one != host}, spans)
    if own is None or own < MOST_OTHERS or own < (usual or 0.0) + _EXPLAINS:
        return ""
    then = "" if before is None else f", {units.SHARE.text(before)} before"
    return f": other programs used {units.SHARE.text(own)} of the processors of {host}{then}"


def _others(facts: Facts, hosts: Set[str], spans: Iterable[tuple[float, float]]) -> float | None:
    """The share of the processors of some hosts that other programs used in some spans of time."""
    shares = [
        one.others_between(*span) for one in facts.machines if one.host in hosts for span in spans
    ]
    known = [share for share in shares if share is not None]
    return statistics.fmean(known) if known else None


def slowest_rank(facts: Facts) -> float | None:
    """Compute of the slowest rank over that of the median rank in the same steps, if it lasted.

    Ranks that are slow in turn do not count. If no rank was slow for long, the largest lower
    quartile of a rank's ratios. None if ranks or intervals are missing, or if a rank was slow for a
    quarter of the time, but in only one or two intervals.
    """
    ranks = _most_ranks(facts)
    if ranks == 1:
        return 1.0
    intervals = _with_compute(facts)
    if len(intervals) < FEWEST:
        return None
    if found := stragglers(facts):
        return found[0][0]
    took_s = _took_s(intervals)
    of_ranks: list[list[float]] = _ratios(intervals)[:, :ranks].T.tolist()
    if any(lasted_unseen([one >= STRAGGLES for one in ratios], took_s) for ratios in of_ranks):
        return None
    usual = max(sorted(ratios)[len(ratios) // 4] for ratios in of_ranks)
    return min(usual, STRAGGLES - 0.01)


def _with_compute(facts: Facts) -> Intervals:
    """The intervals for which each rank of that time knows the compute of its median step."""
    known = np.isfinite(facts.intervals["compute_median_s"]).sum(axis=1)
    return facts.intervals.where(known == facts.intervals["ranks"])


def _middles_s(intervals: Intervals) -> Floats:
    """The compute of the median rank in each interval; of two in the middle, the faster."""
    in_order = np.sort(intervals["compute_median_s"], axis=1)
    middle = (intervals["ranks"].astype(int) - 1) // 2
    return np.take_along_axis(in_order, middle[:, None], axis=1)[:, 0]


def _ratios(intervals: Intervals) -> Floats:
    """Each rank's compute over the median rank's [interval, rank]; 1 if it was not there."""
    middles_s = _middles_s(intervals)[:, None]
    ratios = intervals["compute_median_s"] / np.where(middles_s > 0, middles_s, np.nan)
    return np.where(np.isfinite(ratios), ratios, 1.0)


def _most_ranks(facts: Facts) -> int:
    """How many ranks trained together in the life with most of them."""
    return max([facts.world_size or 0, *(life.world_size or 0 for life in facts.segments)])


def _took_s(intervals: Intervals) -> list[float]:
    """Seconds of each interval, those of its slowest rank: all ranks end it together."""
    ranks = range(intervals["interval_s"].shape[1])
    took_s = [interval_took_s(intervals, rank) for rank in ranks]
    return [float(longest_s) for longest_s in np.max(took_s, axis=0)]
