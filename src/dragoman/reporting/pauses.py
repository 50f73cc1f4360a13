"""Did a rank stand still? When, for how long, and how long a step takes without that."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from dragoman.base import units
from dragoman.reporting.facts import Facts, Pause, RecordedValidation
from dragoman.reporting.periods import clock, usual_s
from dragoman.reporting.record import Floats, Intervals
from dragoman.reporting.verdict import Evidence, Judgement, evidence, named
from dragoman.telemetry.events import OUTSIDE_STEPS, PHASE_FIELDS

WORTH_A_LOOK = 0.01
"""If pauses take this share of the run's wall clock or more, their cause matters."""
_AT_LEAST = 0.8
"""A phase that lasted less than this share of a pause cannot contain it."""
_FEWEST_STEPS = 3
"""The median of fewer steps counts the pause."""
_LINK_S = 5.0
"""Ranks notice a silence, and its end, up to so many seconds after the link was lost or found."""


def known_pauses(pauses: Iterable[Pause]) -> list[Pause]:
    """Each pause once, by time; a rank's own record takes precedence over another rank's."""
    kept: list[Pause] = []
    for pause in sorted(pauses, key=lambda pause: (not pause.own, pause.began)):
        if not any(
            pause.rank == other.rank and pause.began < other.ended and other.began < pause.ended
            for other in kept
        ):
            kept.append(pause)
    return sorted(kept, key=lambda pause: pause.began)


def without_pauses(intervals: Intervals, pauses: Sequence[Pause]) -> Intervals:
    """Intervals that do not count the pauses.

    A pause is not part of the time of a step: it is taken from the phase of the paused rank, and
    from the other ranks' wait in all-reduces. Each step keeps its usual time: a pause is recorded
    as up to half a second longer than it was, and it may have been between two steps.
    """
    names = (*PHASE_FIELDS, "interval_s", "wire_s", "step_median_s", "steps")
    values = {name: intervals[name].copy() for name in names}
    # A rank may have stood still before its first interval was recorded.
    num_ranks = intervals["interval_s"].shape[1]
    each_s = [usual_s(intervals, rank) for rank in range(num_ranks)]
    least_s = np.where(intervals["steps"] < _FEWEST_STEPS, 0.0, each_s).T
    in_steps = [
        pause for pause in pauses if pause.during not in OUTSIDE_STEPS and pause.rank < num_ranks
    ]
    for together in _groups(in_steps):
        place = _interval_of(together[0], intervals, least_s)
        if place is None:
            continue
        whole_s = max(pause.ended for pause in together) - together[0].began
        paused = {pause.rank: pause for pause in together}
        for rank, rank_s in enumerate(least_s[place]):
            pause, waited_s = paused.get(rank), whole_s
            if pause is not None:
                _shorten(values, (place, rank), rank_s, pause.during, pause.seconds_s)
                waited_s -= pause.seconds_s
            _shorten(values, (place, rank), rank_s, "sync", waited_s)
    return intervals.changed(values)


def validations_without(
    validations: Sequence[RecordedValidation], pauses: Sequence[Pause]
) -> tuple[RecordedValidation, ...]:
    """Validations without the pauses of all ranks: each rank waits for all others in a validation.

    The time is taken from the loss or the decoding, whichever is longer.
    """
    changed = list(validations)
    for together in _groups([pause for pause in pauses if pause.during == "validating"]):
        first = together[0]
        whole_s = max(pause.ended for pause in together) - first.began
        for at, validation in enumerate(changed):
            is_it = (validation.step, validation.life) == (first.step, first.life)
            if is_it and first.began < validation.time:
                changed[at] = _shorter(validation, whole_s)
    return tuple(changed)


def _shorter(validation: RecordedValidation, seconds_s: float) -> RecordedValidation:
    loss_s, decode_s = validation.loss_s, validation.decode_s
    if loss_s is not None and loss_s > (decode_s or 0.0):
        return validation.model_copy(update={"loss_s": max(loss_s - seconds_s, 0.0)})
    if decode_s is None:
        return validation
    return validation.model_copy(update={"decode_s": max(decode_s - seconds_s, 0.0)})


def _interval_of(pause: Pause, intervals: Intervals, least_s: Floats) -> int | None:
    """The place of the interval that contains a pause; None if none does.

    Other ranks know the step of a silent one by its last sign of life, which may be of an interval
    before. So of those that the pause overlaps, it is the one with the most time to spare.
    """
    ended, took_s = intervals["time"], intervals.of("interval_s", pause.rank)
    places = np.flatnonzero(
        (intervals["life"] == pause.life)
        & (intervals["step"] > pause.step)
        & (ended > pause.began)
        & (ended - took_s < pause.ended)
    )
    spare_s = (took_s - least_s[:, pause.rank])[places]
    return int(places[np.argmax(spare_s)]) if places.size else None


def _shorten(
    values: Mapping[str, Floats],
    at: tuple[int, int],
    least_s: float,
    phase: str,
    seconds_s: float,
) -> None:
    """Take so many seconds from an interval of a rank, which keeps `least_s`: from this phase, or
    from its longest if that is too short, or else from the time between its phases."""
    had = {name: float(values[name][at]) for name in PHASE_FIELDS}
    measured = {name: had_s for name, had_s in had.items() if not math.isnan(had_s)}
    interval_s = float(np.nan_to_num(values["interval_s"][at]))
    lost_s = min(seconds_s, interval_s - least_s)
    if not measured or lost_s <= 0:
        return
    name = f"{phase}_s"
    if measured.get(name, 0.0) < _AT_LEAST * lost_s:  # the phase had ended when it was recorded
        name = max(measured, key=lambda phase_name: measured[phase_name])
    if measured[name] >= _AT_LEAST * lost_s:
        lost_s = min(lost_s, measured[name])
        values[name][at] -= lost_s
    else:
        lost_s = min(lost_s, max(interval_s - sum(measured.values()), 0.0))
    values["interval_s"][at] -= lost_s
    place, _ = at
    if (steps := values["steps"][place]) < _FEWEST_STEPS:
        values["step_median_s"][at] = values["interval_s"][at] / steps
    if values["sync_s"][at] < values["wire_s"][place]:
        values["wire_s"][place] = values["sync_s"][at]  # all waited: a link was out


def _groups(pauses: Sequence[Pause]) -> Iterator[list[Pause]]:
    """Pauses of several ranks at the same time, as when their host stands still."""
    group: list[Pause] = []
    for pause in pauses:
        if group and pause.began >= max(pause.ended for pause in group):
            yield group
            group = []
        group.append(pause)
    if group:
        yield group


def paused_s(pauses: Iterable[Pause]) -> float:
    """Seconds in which at least one rank stood still or was out of reach."""
    groups = _groups(sorted(pauses, key=lambda pause: pause.began))
    return sum(max(pause.ended for pause in group) - group[0].began for group in groups)


def out_of_reach(facts: Facts) -> list[tuple[Pause, str]]:
    """Pauses of ranks that worked, but that others could not reach, each with the link that was
    lost; "" if no host lost its link.

    A rank records by its own clock that it stood still. If only others noticed the silence, and a
    link was lost or found meanwhile, the link is the cause. It may be the link of those that
    noticed. The network is the cause, too, if the rank went on in the same life without a record
    of its own, because its clock did not stop.
    """
    unreached = []
    for pause in facts.pauses:
        if pause.own or len(facts.hosts) < 2:
            continue
        lost = [
            traffic
            for traffic in facts.traffic
            if any(
                began - _LINK_S < pause.ended and pause.began < ended + _LINK_S
                for began, ended in traffic.link_turns
            )
        ]
        lost.sort(key=lambda traffic: traffic.host != pause.host)
        if lost:
            unreached.append((pause, f"{lost[0].interface} of {lost[0].host}"))
        elif _went_on(facts, pause):
            unreached.append((pause, ""))
    return unreached


def _went_on(facts: Facts, pause: Pause) -> bool:
    """Whether the run trained on in the same life."""
    of_life = facts.intervals["life"] == pause.life
    return bool((facts.intervals["time"][of_life] > pause.ended).any())


def still(facts: Facts) -> list[Pause]:
    """The pauses in which a rank stood still, the longest first."""
    reached_not = [pause for pause, _ in out_of_reach(facts)]
    pauses = [pause for pause in facts.pauses if pause not in reached_not]
    return sorted(pauses, key=lambda pause: -pause.seconds_s)


def stood_still(facts: Facts) -> Judgement:
    """Did a rank stand still? Each pause with its rank, host and time."""
    pauses, share = still(facts), _lost_share(facts)
    if pauses:
        says = f"Ranks stood still for {_long(paused_s(pauses))}"
        says += "" if share is None else f", {units.SHARE.text(share)} of the run"
        says += f": {named(map(_in_words, pauses))}."
        if share is not None and share >= WORTH_A_LOOK:
            remedy = "Look for what stopped it then, at that host's memory and at its other guests."
            return "yes", says, remedy
        return "no", says, ""
    if _is_watched(facts) or facts.pauses:
        return "no", "No rank stood still for 3 s or longer.", ""
    return "cannot tell", "Pauses were not recorded.", ""


def pauses_evidence(facts: Facts) -> Iterator[Evidence]:
    """The share of the run in pauses, and each pause."""
    share = _lost_share(facts) if _is_watched(facts) else None
    yield evidence("share of the run in pauses", units.SHARE, share)
    for pause in still(facts):
        yield Evidence(pause.name, pause.seconds_s, _in_words(pause))


def _lost_share(facts: Facts) -> float | None:
    """The share of the wall clock in which a rank stood still."""
    return paused_s(still(facts)) / facts.wall_s if facts.wall_s else None


def _is_watched(facts: Facts) -> bool:
    """Whether its ranks looked for pauses."""
    return facts.imported is None and len(facts.intervals) > 0


def _in_words(pause: Pause) -> str:
    return f"{pause.name} stood still for {how_long(pause)}"


def how_long(pause: Pause) -> str:
    """The length of a pause, when it began, and at which step."""
    where = (
        f"while {pause.during} after step {units.COUNT.text(pause.step)}"
        if pause.during in OUTSIDE_STEPS
        else f"in step {units.COUNT.text(pause.step + 1)}"
    )
    return f"{_long(pause.seconds_s)} from {clock(pause.began)} on, {where}"


def _long(seconds_s: float) -> str:
    return units.DURATION.text(round(seconds_s, 1))
