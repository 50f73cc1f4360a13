"""The states of runs, from their sessions and events alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from dragoman.base import units
from dragoman.base.errors import CheckpointError, MachineError
from dragoman.telemetry.console import clock_time
from dragoman.telemetry.events import event_file, read_events
from dragoman.telemetry.progress import Progress
from dragoman.telemetry.session import read_session

_STYLES = {"running": "green", "failed": "red", "gone": "red", "stopped": "yellow"}


@dataclass(frozen=True, slots=True)
class Status:
    """One run. Times are seconds since 1970; None if something is not known."""

    run: str
    state: str
    step: int
    max_steps: int | None
    world_size: int | None
    train_loss: float | None
    tokens_per_s: float | None
    last_event_time: float | None
    finish_time: float | None
    problem: str


def read_status(run: Path) -> Status:
    """The state of a run; `not started` if it was never trained."""
    session, progress = read_session(run), Progress()
    last = None
    events = event_file(run / "events")
    problem = session.problem if session else ""
    try:
        for event in read_events(events) if events.exists() else ():
            progress.see(event)
            last = event.time
    except (CheckpointError, MachineError) as error:
        problem = str(error)
    running = session is not None and session.state == "running"
    return Status(
        run=str(run),
        state=session.state if session else "not started",
        step=progress.step,
        max_steps=progress.max_steps,
        world_size=progress.run.get("world_size"),
        train_loss=progress.interval.get("train_loss"),
        tokens_per_s=progress.tokens_per_s if running else None,
        last_event_time=last,
        finish_time=progress.finish_time if running else None,
        problem=problem,
    )


def status_as_json(statuses: list[Status]) -> str:
    """The states of runs as JSON."""
    return json.dumps([asdict(status) for status in statuses], indent=2)


def print_status(statuses: list[Status], console: Console) -> None:
    """For each run its path and state, how far it is, when it will end, and its error."""
    for status in statuses:
        style = _STYLES.get(status.state, "")
        console.print(Text.assemble((status.run, "bold"), "  ", (status.state, style)))
        console.print(Text("  " + "   ".join(_facts(status))))
        if status.finish_time is not None:
            console.print(Text(f"  done at {clock_time(status.finish_time)}"))
        if status.problem:
            console.print(Padding(Text(status.problem), (0, 0, 0, 2)))


def _facts(status: Status) -> Iterator[str]:
    last = units.COUNT.text(status.max_steps) if status.max_steps else "?"
    yield f"{units.COUNT.text(status.step)} of {last} steps"
    if status.train_loss is not None:
        yield f"loss {units.LOSS.text(status.train_loss)}"
    if status.tokens_per_s is not None:
        yield units.TOKEN_RATE.text(status.tokens_per_s)
    if status.last_event_time is not None:
        age_s = max(0, round(time.time() - status.last_event_time))
        yield f"{units.DURATION.text(age_s)} ago"
