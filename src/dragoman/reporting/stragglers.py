"""Which ranks come later than the others, since when and why.

A rank comes to the all-reduce of a step when its own work is done: the time of the step without
the waits for data and in all-reduces. If that takes longer than the median rank's, others wait.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from dragoman.base import units
from dragoman.reporting.facts import Facts, Rank, once
from dragoman.reporting.measures import without_warm_ups
from dragoman.reporting.periods import (
    FEWEST,
    Period,
    Stretch,
    in_intervals,
    lasted_unseen,
    lasting,
    stretches,
    usual_s,
    when,
)
from dragoman.reporting.record import Floats, Intervals, total_over
from dragoman.telemetry.events import LASTS_S, STRAGGLER_RATIO
from dragoman.telemetry.host import DISTURBING_SHARE

_OF_WORK: Final = 0.125
"""A rank is slow for long if its lateness is this share of all work of the median rank: as at 1.25
x for half of the time, or at 1.5 x for a quarter. Calm ranks reach 1.4 x for a quarter."""
_AT_END: Final = 1.5
"""A rank that has become slow counts before that if it takes this multiple or more."""
_IN_ONE: Final = 2.0
"""The same if only the last interval is slow: single intervals of calm runs differ by 1.7 x."""
_FEWEST_STEPS: Final = 10
"""Fewer steps are chance."""
_TURNS: Final = 3
"""It is no turn if it lasts for so many of the longest before. Two turns with a start of the
process between them look like one of twice the length."""
_EXPLAINS: Final = 0.1
"""Other programs explain a slow rank if they use this share of its processors more than before, or
than on other hosts if it was slow from the start."""


@dataclass(frozen=True, slots=True)
class _Work:
    """The own work of all ranks in the intervals for which each rank of that time measured it.

    seconds_s: of each rank [interval, rank]. median_s: of the median rank; of two in the middle,
    the faster. took_s: seconds of each interval, as of its slowest rank.
    """

    intervals: Intervals
    seconds_s: Floats
    median_s: Floats
    took_s: Floats

    @classmethod
    def of(cls, facts: Facts) -> Self:
        """The work of a run, without warm-ups."""
        steps = without_warm_ups(facts.intervals)
        seconds_s = steps["interval_s"] - steps["sync_s"] - steps["data_wait_s"]
        whole = np.isfinite(seconds_s).sum(axis=1) == steps["ranks"]
        steps, seconds_s = steps.where(whole), seconds_s[whole]
        middle = (steps["ranks"].astype(int) - 1) // 2
        median_s = np.take_along_axis(np.sort(seconds_s, axis=1), middle[:, None], axis=1)[:, 0]
        each_s = [usual_s(steps, rank) for rank in range(seconds_s.shape[1])]
        return cls(steps, seconds_s, median_s, np.max(each_s, axis=0))

    def ratios(self, rank: int) -> Floats:
        """A rank's work over the median rank's; 1 if it was not there."""
        ratios = self.seconds_s[:, rank] / np.where(self.median_s > 0, self.median_s, np.nan)
        return np.where(np.isfinite(ratios), ratios, 1.0)

    def slow(self, rank: int) -> list[Stretch]:
        """The stretches in which a rank was slow for a large part of the run, and the last if it
        became slow and stays so.

        Ranks that are slow in turn are slow at the end as well: it must last for longer than any
        turn before, and each of them must have had its turn.
        """
        ratios = self.ratios(rank)
        is_slow = ratios >= STRAGGLER_RATIO
        late_s = np.where(is_slow, self.seconds_s[:, rank] - self.median_s, 0.0)
        least_s = _OF_WORK * float(self.median_s.sum())
        slow = [
            (first, last)
            for first, last in lasting(is_slow, self.took_s)
            if late_s[first : last + 1].sum() >= least_s
        ]
        *before, newest = stretches(is_slow, self.took_s) or [(0, -1)]
        if newest not in slow and self._is_slow_now(newest, before, ratios):
            slow.append(newest)
        return slow

    def lasted(self, stretch: Stretch) -> bool:
        """Whether a stretch was longer than a moment."""
        first, last = stretch
        return float(self.took_s[first : last + 1].sum()) >= LASTS_S

    def _is_slow_now(self, newest: Stretch, before: Sequence[Stretch], ratios: Floats) -> bool:
        """Whether the newest stretch goes on at the end, and is no chance and no turn."""
        first, last = newest
        lengths = [after + 1 - begin for begin, after in (*before, newest)]
        return (
            last == len(ratios) - 1 >= 0
            and self.lasted((first, last))
            and first >= self.intervals["ranks"].max()
            and lengths[-1] >= _TURNS * max(lengths[:-1], default=0)
            and self.intervals["steps"][first:].sum() >= _FEWEST_STEPS
            and float(np.median(ratios[first:])) >= (_AT_END if lengths[-1] > 1 else _IN_ONE)
        )


@once
def stragglers(facts: Facts) -> list[tuple[float, str]]:
    """For each rank that was slow for long, or became slow and stays so: the ratio of its own work
    to the median rank's in the same steps, and a description with the cause if that was measured.
    The slowest rank comes first.
    """
    work = _Work.of(facts)
    slow_ranks = []
    for rank in facts.ranks[: _most_ranks(facts)]:
        is_slow = work.ratios(rank.rank) >= STRAGGLER_RATIO
        slow = list(filter(work.lasted, work.slow(rank.rank)))
        places = [at for first, last in slow for at in range(first, last + 1) if is_slow[at]]
        if places:
            steps = work.intervals["steps"][places].sum()
            own_s = float(work.seconds_s[places, rank.rank].sum() / steps)
            median_s = float(work.median_s[places].sum() / steps)
            periods = in_intervals(work.intervals, is_slow, slow, rank=rank.rank)
            text = f"{rank.name}, {when(periods)} ({units.STEP_TIME.text(own_s)}, "
            text += f"{units.STEP_TIME.text(median_s)} the median rank)"
            slow_ranks.append((own_s / median_s, text + _cause(facts, rank, periods)))
    return sorted(slow_ranks, reverse=True)


def slowest_ranks(facts: Facts) -> list[tuple[float, str]]:
    """The `stragglers`; if there are none, the own work of the slowest rank over the median rank's
    in the whole run. Ranks that are slow in turn are not stragglers.

    Nothing if ranks or intervals are missing, or if a rank was slow for a quarter of the time, but
    for a moment or in only one or two intervals.
    """
    ranks, work = _most_ranks(facts), _Work.of(facts)
    if ranks == 1:
        return [(1.0, "")]
    if len(facts.intervals) < FEWEST or not len(work.intervals):
        return []
    if slow_ranks := stragglers(facts):
        return slow_ranks
    if any(
        work.slow(rank) or lasted_unseen(work.ratios(rank) >= STRAGGLER_RATIO, work.took_s)
        for rank in range(ranks)
    ):
        return []
    each = [total_over(work.seconds_s[:, rank], work.median_s) or 1.0 for rank in range(ranks)]
    return [(min(max(each) / statistics.median_low(each), STRAGGLER_RATIO - 0.01), "")]


def _cause(facts: Facts, rank: Rank, slow: Sequence[Period]) -> str:
    """Why a rank was slow in these periods, as the end of a sentence; "" if nothing shows it."""
    host = rank.host
    for life in facts.lives:
        if life.started <= slow[-1].since and rank.rank < len(life.hosts):
            host = life.hosts[rank.rank]
    on_host = [other.rank for other in facts.ranks if host in other.hosts]
    slow_s = sum(period.seconds_s for period in slow)
    for gpu in facts.gpus:
        if (gpu.host, gpu.gpu) == (host, on_host.index(rank.rank)):
            both_s = (period.overlap_s(low) for period in slow for low in gpu.throttled)
            if gpu.throttled and sum(both_s) >= slow_s / 2:
                reasons = ", ".join(gpu.throttle_reasons)
                return f": the clock of {gpu.label} was lowered ({reasons})"
    spans = [(period.since, period.until) for period in slow]
    others = _others(facts, {host}, spans)
    before = None
    if not slow[0].from_start:
        before = _others(facts, {host}, [(0.0, slow[0].since)])
    usual = before
    if before is None:
        usual = _others(facts, set(facts.hosts) - {host}, spans)
    if others is None or others < DISTURBING_SHARE or others < (usual or 0.0) + _EXPLAINS:
        return ""
    then = "" if before is None else f", {units.SHARE.text(before)} before"
    return f": other programs used {units.SHARE.text(others)} of the processors of {host}{then}"


def _others(facts: Facts, hosts: Set[str], spans: Iterable[tuple[float, float]]) -> float | None:
    """The share of the processors of some hosts that other programs used in some spans of time."""
    measured = [
        machine.others_between(*span)
        for machine in facts.machines
        if machine.host in hosts
        for span in spans
    ]
    shares = [share for share in measured if share is not None]
    return statistics.fmean(shares) if shares else None


def _most_ranks(facts: Facts) -> int:
    """How many ranks trained together in the life with most of them."""
    return max([facts.world_size or 0, *(life.world_size or 0 for life in facts.lives)])
