"""Periods: when a condition began, and when it ended."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from dragoman.base import units
from dragoman.reporting.facts import Period
from dragoman.reporting.record import Bools, Floats, Intervals

_OF_RUN = 4
"""A period that lasts for a quarter of the run's time is not an accident of a few steps."""
FEWEST = 3
"""In fewer intervals nothing lasts."""
FROM_START = "from the start"
_LATEST = 1e11
"""Seconds since 1970; no clock shows more."""
_ROUNDING = 1e-9
_WITHIN = 4
"""Three in four: a rank that is slow for long is not slow in every interval."""


def lasting(bad: Sequence[bool], seconds_s: Sequence[float] = ()) -> list[tuple[int, int]]:
    """The first and last index of each stretch in which something lasted.

    A stretch counts if it takes at least a quarter of all time and has at least three places, and
    if three quarters of its time and at least two of its places are bad.

    seconds_s: the time of each place; if it is empty, all places take the same time.
    """
    took_s = seconds_s if sum(seconds_s) > 0 else [1.0] * len(bad)
    ends_s = list(accumulate(took_s, initial=0.0))
    good_s = list(accumulate((not is_bad) * s for is_bad, s in zip(bad, took_s, strict=True)))
    good_s.insert(0, 0.0)
    least_s = ends_s[-1] / _OF_RUN * (1 - _ROUNDING)
    places = np.flatnonzero(bad).tolist()
    found: list[tuple[int, int]] = []
    end = 0
    for begin in range(len(bad)):
        end = max(end, begin + FEWEST)
        while end <= len(bad) and ends_s[end] - ends_s[begin] < least_s:
            end += 1
        if end > len(bad):
            break
        most_good_s = (ends_s[end] - ends_s[begin]) / _WITHIN * (1 + _ROUNDING)
        if good_s[end] - good_s[begin] > most_good_s:
            continue
        inside = slice(bisect_left(places, begin), bisect_left(places, end))
        if inside.stop - inside.start < 2:  # one interval alone proves nothing, however long
            continue
        first, last = places[inside.start], places[inside.stop - 1]
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


def lasted_unseen(bad: Sequence[bool], seconds_s: Sequence[float]) -> bool:
    """Whether something took a quarter of the time, but in too few places to say that it lasted."""
    bad_s = sum(s for is_bad, s in zip(bad, seconds_s, strict=True) if is_bad)
    return sum(bad) < FEWEST and bad_s > 0 and bad_s >= sum(seconds_s) / _OF_RUN


def periods(
    intervals: Intervals,
    bad: Bools,
    stretches: Sequence[tuple[int, int]] = (),
    *,
    rank: int = 0,
) -> list[Period]:
    """The periods of bad intervals of a rank: the given stretches (first and last index); if none
    are given, each stretch that lasted; if none did, first to last."""
    places = np.flatnonzero(bad).tolist()
    if not places:
        return []
    if not stretches:
        took_s = interval_took_s(intervals, rank).tolist()
        stretches = lasting(bad.tolist(), took_s) or [(places[0], places[-1])]
    began_s = intervals["time"] - np.nan_to_num(intervals.of("interval_s", rank))
    before = intervals["step"] - intervals["steps"]
    return [
        Period(
            since=float(began_s[first]),
            until=float(intervals["time"][last]),
            since_step=int(before[first]),
            until_step=int(intervals["step"][last]),
            from_start=first == 0,
            to_end=last == len(bad) - 1,
            share=int(bad[first : last + 1].sum()) / (last + 1 - first),
        )
        for first, last in stretches
    ]


def interval_took_s(intervals: Intervals, rank: int) -> Floats:
    """Seconds of each interval as if each step were its median one, if that was recorded.

    The first steps of a process take longer, as everything warms up.
    """
    usual_s = intervals.of("step_median_s", rank) * intervals["steps"]
    return np.where(np.isfinite(usual_s), usual_s, np.nan_to_num(intervals.of("interval_s", rank)))


def when(period: Period) -> str:
    """A period in words: since when, and until when if it has ended."""
    at_times = "at times " if period.share < 1 - 1 / _WITHIN else ""
    since = FROM_START
    if not period.from_start:
        since = f"since {moment(period.since_step, period.since)}"
    until = "" if period.to_end else f" until {moment(period.until_step, period.until)}"
    return f"{at_times}{since}{until}"


def moment(step: int | None, time_s: float) -> str:
    """A step, if it is known, with its time."""
    return clock(time_s) if step is None else f"step {units.COUNT.text(step)}, {clock(time_s)}"


def clock(moment: float) -> str:
    """A moment of a run, to the second; for a damaged record, the nearest that a clock can show."""
    shown = time.gmtime(min(max(moment, 0.0), _LATEST))
    return time.strftime("%d %b %H:%M:%S UTC", shown)
