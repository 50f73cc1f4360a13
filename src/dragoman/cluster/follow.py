"""Follows hosts that train: records events, finds who failed first, and ends the others."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from dragoman.base.errors import DragomanError, MachineError
from dragoman.base.interrupts import StopHandler
from dragoman.cluster.checkpoints import CheckpointTransfer
from dragoman.cluster.team import Message, Team
from dragoman.distributed.launch import InterruptedRunError, WorkerError, as_raised
from dragoman.telemetry.events import (
    CheckpointWritten,
    Event,
    EventListener,
    RunFinished,
    TrainInterval,
    event_file,
    first,
    read_line,
)
from dragoman.training.durable import step_name

_SAVE_S: Final = 60.0
"""How long workers may take to save and end, once they have met upon a request to stop; then they
are killed."""
_MOST_MEETING_S: Final = 3600.0
"""The longest time that workers are given to meet."""
_OTHER_FAILURES_S: Final = 5.0
"""How long to wait for failures of other hosts after the first one, to name the cause."""
_INTERRUPTED: Final = InterruptedRunError.exit_code
_WEIGHTS: Final = {"own": 0, "hung": 1, "lost": 2, "signal": 3, "other": 4}


class WorkerLostError(MachineError):
    """A host or a worker was lost; the run itself is sound."""


class Record:
    """Writes the events of rank 0 into the run's own log, and passes them to listeners.

    step_s: the recent time of a step on rank 0; 0 until it is known.
    """

    def __init__(
        self, directory: Path, listeners: Sequence[EventListener], transfer: CheckpointTransfer
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.step_s = 0.0
        self._directory = directory
        self._listeners = listeners
        self._transfer = transfer

    def append(self, text: str) -> None:
        """Append whole lines. Raises MachineError if the log cannot be written."""
        lines = text.encode(errors="replace")
        path = event_file(self._directory)
        try:
            with path.open("ab") as file:
                file.write(lines)
        except OSError as error:
            raise MachineError(
                f"cannot be written: {error.strerror}", place=path, remedy="free disk space here"
            ) from error
        for event in filter(None, map(read_line, lines.splitlines())):
            self._see(event)

    def _see(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)
        if event.kind == TrainInterval.kind and event.payload["steps"] > 0:
            self.step_s = (first(event.payload["interval_s"]) or 0.0) / event.payload["steps"]
        if event.kind == CheckpointWritten.kind:
            self._transfer.want(Path(event.payload["path"]).name)
        if event.kind == RunFinished.kind:
            by_bleu, by_loss = (event.payload[f"best_{what}_step"] for what in ("bleu", "dev_loss"))
            step = by_loss if by_bleu is None else by_bleu
            self._transfer.best = "" if step is None else step_name(step)


@dataclass(slots=True)
class HostFollower:
    """Follows the hosts until every one is done, and decides when the others must end.

    returned: names of absent hosts that answer again.
    steps_between_votes: steps from one meeting of all ranks to the next. Ranks agree to stop when
        they meet; on GPUs at the second meeting after the request.
    """

    team: Team
    requests: StopRequests
    record: Record
    returned: Callable[[], Sequence[str]] = tuple
    steps_between_votes: int = 1
    failures: list[tuple[int, int, DragomanError]] = field(default_factory=list)
    interrupted: bool = False
    _making_room: bool = False
    _told: int = 0
    _kill_at: float = float("inf")

    def until_over(self, path: Path) -> Sequence[str]:
        """Follow the hosts until all have ended.

        Returns the names of absent hosts that answer again, if the others have saved and ended for
        them; none if the training is over. Raises InterruptedRunError if the user stopped the run,
        otherwise the likeliest cause if a host has failed, or WorkerLostError if an unknown signal
        ended the workers.
        """
        for message in self.team.until_done(tick_s=0.2):
            if message is not None:
                self._see(message)
            self._obey_user()
            self._make_room()
            if time.monotonic() > self._kill_at:
                self._kill_at = float("inf")
                self.team.tell_all("kill")
        if self.requests.count and (self.interrupted or self.failures):
            saved = "the last checkpoint is kept" if self.failures else "everything is saved"
            raise InterruptedRunError(
                f"the run was stopped; {saved}",
                place=path,
                remedy=f"dragoman train {shlex.quote(str(path))} resumes it",
            )
        if self.failures:
            raise min(self.failures, key=lambda failure: failure[:2])[2]
        if self.interrupted and not self._making_room:
            raise WorkerLostError("the workers were ended by a signal that did not come from here")
        return self.returned() if self.interrupted else ()

    def _see(self, message: Message) -> None:
        answer = message.answer
        if answer is None:
            self._fail("lost", WorkerLostError(str(self.team.agents[message.host].failure())))
            return
        if answer.event:
            self.record.append(f"{answer.event}\n")
        done = answer.done
        if done is not None and done.exit_code == _INTERRUPTED:
            self.interrupted = True
        elif done is not None and done.exit_code:
            problem = f"{message.host}: {done.problem}"
            own = as_raised(WorkerError(problem, done.exit_code, done.kind))
            if isinstance(own, MachineError):  # the host is there; a retry would fail
                own = WorkerError(problem, done.exit_code, done.kind)
            self._fail(done.weight, own if done.weight == "own" else WorkerLostError(problem))

    def _fail(self, weight: str, error: DragomanError) -> None:
        if not self.failures:
            # Hosts that wait for the failed one in a collective do not react to a request to stop.
            self.team.tell_all("stop")
            self._kill_at = time.monotonic() + _OTHER_FAILURES_S
        self.failures.append((_WEIGHTS[weight], len(self.failures), error))

    def _obey_user(self) -> None:
        if self.requests.count > self._told:
            self.team.tell_all("kill" if self.requests.count > 1 else "stop")
            self._told = self.requests.count
            self._kill_at = min(self._kill_at, time.monotonic() + self._save_s)

    def _make_room(self) -> None:
        if not self._making_room and not self.failures and not self._told and self.returned():
            self._making_room = True
            self.team.tell_all("stop")
            self._kill_at = time.monotonic() + self._save_s

    @property
    def _save_s(self) -> float:
        meeting_s = 2 * self.steps_between_votes * self.record.step_s
        return _SAVE_S + min(_MOST_MEETING_S, meeting_s)


class StopRequests(StopHandler):
    """SIGINT and SIGTERM of the user: counted while deferred, otherwise they end the work at
    once."""

    def __init__(self) -> None:
        self.count = 0
        self._deferred = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside the block signals are only counted."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Count a signal, or end the work."""
        self.count += 1
        if not self._deferred:
            self._deferred = True  # another signal must not break off what this one makes clean up
            raise InterruptedRunError(
                "a signal stopped the run; its last checkpoint is kept",
                remedy="run the same command again to resume",
            )
