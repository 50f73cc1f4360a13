"""How long the corpus of a run took to prepare, from the events of `prepare`."""

from __future__ import annotations

from pathlib import Path

from dragoman.base.errors import MachineError
from dragoman.recipe.run_directory import PREPARE_EVENTS
from dragoman.reporting.facts import summed
from dragoman.reporting.payloads import number
from dragoman.telemetry.events import CorpusPrepared, CorpusStage, Event, read_events


def prepare_s(directory: Path) -> float | None:
    """Seconds until the corpus was whole; None if its events are not there, or not readable.

    Stages of attempts that were stopped and gone on with count too. Where no end was written, the
    stages are all that is known.
    """
    path = directory / PREPARE_EVENTS
    if not path.exists():
        return None
    try:
        seen = list(read_events(path))
    except MachineError:
        return None
    ends = [n for n, event in enumerate(seen) if event.kind == CorpusPrepared.kind]
    if not ends:
        return summed(map(_seconds_s, _stages(seen)))
    last, before = seen[ends[-1]], ends[-2] + 1 if len(ends) > 1 else 0
    whole_s = _seconds_s(last)
    if whole_s is None:
        return None
    began = last.time - whole_s
    stopped = [one for one in _stages(seen[before : ends[-1]]) if one.time < began]
    return whole_s + (summed(map(_seconds_s, stopped)) or 0.0)


def _stages(seen: list[Event]) -> list[Event]:
    return [event for event in seen if event.kind == CorpusStage.kind]


def _seconds_s(event: Event) -> float | None:
    return number(event.payload.get("seconds_s"))
