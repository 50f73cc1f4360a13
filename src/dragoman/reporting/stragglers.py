"""Which ranks compute for longer than the others, and since when."""

from __future__ import annotations

import statistics

from dragoman.base import units
from dragoman.reporting import measures
from dragoman.reporting.facts import Facts, Interval
from dragoman.reporting.periods import (
    FEWEST,
    interval_took_s,
    lasted_unseen,
    lasting,
    periods,
    when,
)
from dragoman.telemetry.events import STRAGGLES


def stragglers(facts: Facts) -> list[tuple[float, str]]:
    """For each rank that was slow for long: the ratio of its compute time to the median rank's in
    the same steps, and a description. The slowest rank comes first.
    """
    together, computes_s = _computes(facts)
    middles_s = [statistics.median_low(all_s) for all_s in computes_s]
    took_s = _took_s(together)
    found = []
    for place, rank in enumerate(facts.ranks[: _most_ranks(facts)]):
        bad = _is_slow(computes_s, place)
        stretches = lasting(bad, took_s)
        slow = [at for first, last in stretches for at in range(first, last + 1) if bad[at]]
        if slow:
            own_s = [computes_s[at][place] for at in slow]
            usual_s = [statistics.median(own_s), statistics.median(middles_s[at] for at in slow)]
            both = [units.STEP_TIME.text(seconds_s) for seconds_s in usual_s]
            own = [one[min(place, len(one) - 1)] for one in together]  # all end it together
            times = " and ".join(map(when, periods(own, bad)))
            text = f"{rank.name}, {times} ({both[0]}, {both[1]} the median rank)"
            ratios = (own / middles_s[at] for own, at in zip(own_s, slow, strict=True))
            found.append((statistics.median(ratios), text))
    return sorted(found, reverse=True)


def slowest_rank(facts: Facts) -> float | None:
    """Compute of the slowest rank over that of the median rank in the same steps, if it lasted.

    Ranks that are slow in turn do not count. If no rank was slow for long, the largest lower
    quartile of a rank's ratios. None if ranks or intervals are missing, or if a rank was slow for a
    quarter of the time, but in only one or two intervals.
    """
    ranks = _most_ranks(facts)
    if ranks == 1:
        return 1.0
    together, computes_s = _computes(facts)
    if facts.lacks_ranks or len(computes_s) < FEWEST:
        return None
    if found := stragglers(facts):
        return found[0][0]
    took_s = _took_s(together)
    slow = (_is_slow(computes_s, place) for place in range(ranks))
    if any(lasted_unseen(bad, took_s) for bad in slow):
        return None
    middles_s = [statistics.median_low(all_s) for all_s in computes_s]
    usual = 1.0
    for place in range(ranks):
        ratios = sorted(
            all_s[place] / (mid or 1.0) if place < len(all_s) else 1.0
            for all_s, mid in zip(computes_s, middles_s, strict=True)
        )
        usual = max(usual, ratios[len(ratios) // 4])
    return min(usual, STRAGGLES - 0.01)


def _computes(facts: Facts) -> tuple[list[list[Interval]], list[list[float]]]:
    """Intervals of all ranks side by side, and the compute of their median steps.

    One life of the run may have more ranks than another. One interval in which no rank was slow
    replaces the intervals that some rank lacks.
    """
    intervals: list[list[Interval]] = []
    computes_s: list[list[float]] = []
    side_by_side = facts.side_by_side
    if any(one.compute_median_s is None for one in (side_by_side[0] if side_by_side else [])):
        side_by_side = list(measures.steady(side_by_side))  # a mean includes the warm-up
    for together in side_by_side:
        seconds_s = [measures.interval_compute_s(one) for one in together]
        known = [one for one in seconds_s if one is not None]
        if not together or not len(known) == len(together) == facts.ranks_at(together[0].step):
            continue
        if intervals and together[0].step - together[0].steps > intervals[-1][0].step:
            intervals.append(together)
            computes_s.append([min(known)] * len(known))
        intervals.append(together)
        computes_s.append(known)
    return intervals, computes_s


def _is_slow(computes_s: list[list[float]], place: int) -> list[bool]:
    """In which intervals a rank took far longer than the median rank; False if it was not there."""
    return [
        place < len(all_s) and all_s[place] >= STRAGGLES * statistics.median_low(all_s) > 0
        for all_s in computes_s
    ]


def _most_ranks(facts: Facts) -> int:
    """How many ranks trained together in the life with most of them."""
    return max([facts.world_size or 0, *(life.world_size or 0 for life in facts.segments)])


def _took_s(together: list[list[Interval]]) -> list[float]:
    """Seconds of each interval, those of its slowest rank: all ranks end it together."""
    return [max(map(interval_took_s, some)) for some in together]
