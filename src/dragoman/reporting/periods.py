"""Periods: since when something is so, and until when.

Intervals or samples are places in time, one after the other; at some of them it is so.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dragoman.base import units
from dragoman.reporting.record import Bools, Floats, Intervals

FEWEST: Final = 3
"""In fewer intervals nothing lasts."""
FROM_START: Final = "from the start"
_OF_RUN: Final = 0.25
"""What lasts for a quarter of the run's time is not an accident of a few steps."""
_AGAINST: Final = 2.0
"""A place at which it is not so counts as much as two at which it is: in a stretch it is so for
two thirds of the time or more, as steps of busy machines vary, and a rank that is slow for long is
not slow in every interval.
"""
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A stretch of time in which something was so; with steps, if intervals show it."""

    since: float
    until: float
    since_step: int | None = None
    until_step: int | None = None
    from_start: bool
    to_end: bool
    """Whether it was still so at the end of the record."""
    share: float
    """The share of its places at which it was so."""

    @property
    def seconds_s(self) -> float:
        """How long it lasted."""
        return self.until - self.since

    def overlap_s(self, other: Period) -> float:
        """Seconds that two periods have in common."""
        return max(min(self.until, other.until) - max(self.since, other.since), 0.0)


Stretch = tuple[int, int]
"""The first and the last place."""


def stretches(is_so: Bools, took_s: Floats) -> list[Stretch]:
    """The stretches of places at which it is so for most of the time, in order.

    A place counts by the time it took, if that is known, and against the stretch if it is not so
    there. Each stretch is one that no place before or after it makes better (the maximal scoring
    subsequences of Ruzzo and Tompa 1999).
    """
    weights = took_s if took_s.sum() > 0 else np.ones(len(is_so))
    votes = np.where(is_so, weights, -_AGAINST * weights)
    sums = np.concatenate([[0.0], np.cumsum(votes)])
    edges = np.flatnonzero(np.diff(votes > 0, prepend=False, append=False))
    best: list[Stretch] = []
    for first, after in edges.reshape(-1, 2).tolist():
        place = after - 1
        while True:
            lower = [at for at, (begin, _) in enumerate(best) if sums[begin] < sums[first]]
            if not lower or sums[best[lower[-1]][1] + 1] >= sums[place + 1]:
                break
            first = best[lower[-1]][0]
            del best[lower[-1] :]
        best.append((first, place))
    return best


def lasting(is_so: Bools, took_s: Floats) -> list[Stretch]:
    """The stretches that take a quarter of all time, with two places at which it is so."""
    weights = took_s if took_s.sum() > 0 else np.ones(len(is_so))
    least_s = _OF_RUN * float(weights.sum()) * (1 - _ROUNDING)
    return [
        (first, last)
        for first, last in stretches(is_so, took_s)
        if weights[first : last + 1].sum() >= least_s
        and is_so[first : last + 1].sum() >= 2  # one alone proves nothing, however long it took
        and len(is_so) >= FEWEST
    ]


def lasted_unseen(is_so: Bools, took_s: Floats) -> bool:
    """Whether it was so for a quarter of the time, but in too few places to say that it lasted."""
    so_s = float(took_s[is_so].sum())
    return 0 < so_s >= _OF_RUN * float(took_s.sum()) and int(is_so.sum()) < FEWEST


def in_intervals(
    intervals: Intervals, is_so: Bools, stretched: Sequence[Stretch] = (), *, rank: int = 0
) -> list[Period]:
    """The periods of a rank in which something was so in the intervals: the given stretches, or
    else each that lasted; if none did, from the first interval to the last."""
    step = intervals["step"].astype(int)
    before = step - intervals["steps"].astype(int)
    took_s = usual_s(intervals, rank)
    began = intervals["time"] - np.nan_to_num(intervals.of("interval_s", rank))
    chosen = stretched or _lasting_or_all(is_so, took_s)
    return [_period(is_so, began, intervals["time"], stretch, (before, step)) for stretch in chosen]


def in_samples(began: Floats, ended: Floats, is_so: Bools) -> tuple[Period, ...]:
    """The same for samples, which began and ended at these times."""
    chosen = _lasting_or_all(is_so, ended - began)
    return tuple(_period(is_so, began, ended, stretch) for stretch in chosen)


def _lasting_or_all(is_so: Bools, took_s: Floats) -> list[Stretch]:
    places = np.flatnonzero(is_so).tolist()
    return lasting(is_so, took_s) or [(place, places[-1]) for place in places[:1]]


def _period(
    is_so: Bools,
    began: Floats,
    ended: Floats,
    stretch: Stretch,
    steps: tuple[NDArray[np.int_], NDArray[np.int_]] | None = None,
) -> Period:
    """steps: the updates before each place, and those after it."""
    first, last = stretch
    return Period(
        since=float(began[first]),
        until=float(ended[last]),
        since_step=None if steps is None else int(steps[0][first]),
        until_step=None if steps is None else int(steps[1][last]),
        from_start=first == 0,
        to_end=last == len(is_so) - 1,
        share=float(is_so[first : last + 1].mean()),
    )


def usual_s(intervals: Intervals, rank: int = 0) -> Floats:
    """Seconds of each interval as if each step were its median one, if that was recorded: a single
    long step counts little."""
    seconds_s = intervals.of("step_median_s", rank) * intervals["steps"]
    took_s = np.nan_to_num(intervals.of("interval_s", rank))
    return np.where(np.isfinite(seconds_s), seconds_s, took_s)


def when(periods: Iterable[Period]) -> str:
    """Periods in words: since when, and until when if it has ended."""
    return " and ".join(map(_in_words, periods))


def _in_words(period: Period) -> str:
    at_times = "at times " if period.share < _AGAINST / (_AGAINST + 1) else ""
    since = FROM_START
    if not period.from_start:
        since = f"since {moment(period.since_step, period.since)}"
    until = "" if period.to_end else f" until {moment(period.until_step, period.until)}"
    return f"{at_times}{since}{until}"


def moment(step: int | None, time_s: float) -> str:
    """A step, if it is known, with its time."""
    return clock(time_s) if step is None else f"step {units.COUNT.text(step)}, {clock(time_s)}"


def clock(time_s: float) -> str:
    """A moment of a run, to the second."""
    return time.strftime("%d %b %H:%M:%S UTC", time.gmtime(time_s))
