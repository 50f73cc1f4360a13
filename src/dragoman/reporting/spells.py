"""Since when was something so, and until when?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate

from dragoman.base import units
from dragoman.reporting.facts import Interval, Spell

_OF_RUN = 4
"""What lasts for a quarter of the run is no accident of a few steps."""
FEWEST = 3
"""Intervals; in fewer nothing lasts."""
_LATEST = 1e11
"""Seconds since 1970: no clock says more."""
_WITHIN = 4
"""Three in four: a rank that is slow for long is not slow in each interval."""


def lasting(bad: Sequence[bool]) -> list[tuple[int, int]]:
    """Where something lasted: first and last place of each stretch.

    It lasts where at least three in four are bad over a quarter of all, and over three.
    """
    width = max(FEWEST, len(bad) // _OF_RUN)
    good_before = list(accumulate((not one for one in bad), initial=0))
    found: list[tuple[int, int]] = []
    for begin in range(len(bad) - width + 1):
        window = range(begin, begin + width)
        if good_before[begin + width] - good_before[begin] > width // _WITHIN:
            continue
        first = next(at for at in window if bad[at])
        last = next(at for at in reversed(window) if bad[at])
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


def spells(intervals: Sequence[Interval], bad: Sequence[bool]) -> list[Spell]:
    """When intervals were bad: each stretch that lasted, or all from the first to the last."""
    places = [at for at, is_bad in enumerate(bad) if is_bad]
    if not places:
        return []
    return [
        Spell(
            since=intervals[first].time - (intervals[first].interval_s or 0.0),
            until=intervals[last].time,
            since_step=intervals[first].step - intervals[first].steps,
            until_step=intervals[last].step,
            from_start=first == 0,
            to_end=last == len(bad) - 1,
            share=sum(bad[first : last + 1]) / (last + 1 - first),
        )
        for first, last in lasting(bad) or [(places[0], places[-1])]
    ]


def when(spell: Spell) -> str:
    """Since when, and until when if it ended."""
    at_times = "at times " if spell.share < 1 - 1 / _WITHIN else ""
    since = "from the start"
    if not spell.from_start:
        since = f"since {_moment(spell.since_step, spell.since)}"
    until = "" if spell.to_end else f" until {_moment(spell.until_step, spell.until)}"
    return f"{at_times}{since}{until}"


def _moment(step: int | None, moment: float) -> str:
    return clock(moment) if step is None else f"step {units.COUNT.text(step)}, {clock(moment)}"


def clock(moment: float) -> str:
    """A moment of a run, to the second; of a damaged record the nearest that a clock can say."""
    told = time.gmtime(min(max(moment, 0.0), _LATEST))
    return time.strftime("%d %b %H:%M:%S UTC", told)
