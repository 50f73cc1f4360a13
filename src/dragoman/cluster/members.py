"""The hosts that train together: who is lost, who is to blame, who comes back, and when all end.

torchrun replaces a lost worker by itself. If a host is lost, the others meet anew. If a host comes
back, it joins and all meet anew. Each time they go on from what they have saved.
Only without the first host, which has the store, all of them end.
"""

from __future__ import annotations

import queue
import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final, Literal, NamedTuple

from dragoman.base.errors import DragomanError, MachineError
from dragoman.base.interrupts import StopHandler
from dragoman.cluster.checkpoints import CheckpointTransfer
from dragoman.cluster.hosts import Host
from dragoman.cluster.joins import Joins, Message
from dragoman.cluster.lines import Loss
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
from dragoman.training.durable import step_name, step_number

_SAVE_S: Final = 60.0
"""How long workers may take to save and end, once they have met upon a request to stop; then they
are killed."""
_MOST_MEETING_S: Final = 3600.0
"""The longest time that workers are given to meet."""
_OTHER_LOSSES_S: Final = 5.0
"""How long to wait for losses of other hosts after the first one, to name the cause."""
_MOST_IN_VAIN: Final = 3
"""How many times in a row training may break off at the same checkpoint and be tried again."""
_INTERRUPTED: Final = InterruptedRunError.exit_code
_WEIGHTS: Final = {"own": 0, "hung": 1, "lost": 2, "signal": 3, "other": 4}

Severity = Literal["info", "warning", "error"]


class WorkerLostError(MachineError):
    """A host or a worker was lost; the run itself is sound."""


class Patience:
    """Counts losses since the newest checkpoint. is_over: whether training must not go on."""

    def __init__(self) -> None:
        self.is_over = False
        self._in_vain = 0
        self._reached = -1

    def lose(self, newest: str) -> bool:
        """Count a loss; whether training may go on. newest: the name of the newest checkpoint."""
        step = step_number(newest)
        self._in_vain = 1 if step > self._reached else self._in_vain + 1
        self._reached = max(step, self._reached)
        self.is_over = self._in_vain > _MOST_IN_VAIN
        return not self.is_over


class Returned(NamedTuple):
    """A host that answers again. error: why it must not come back; None if it has all it needs."""

    host: Host
    error: MachineError | None = None


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

    @property
    def newest(self) -> str:
        """The name of the newest checkpoint of the first host; "" if it has told of none."""
        return self._transfer.newest

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
class Members:
    """The hosts of a training while the first of them lives.

    begin: tells a host to join: its name, the token, and how many hosts there are.
    lost: called with the name of a host that is lost, to look for it.
    returned: hosts that were lost and can join again.
    alert: records why training goes on from a checkpoint, and shows it.
    steps_between_votes: steps from one meeting of all ranks to the next. Ranks agree to stop when
        they meet; on GPUs at the second meeting after the request.
    """

    joins: Joins
    first: str
    requests: StopRequests
    record: Record
    patience: Patience
    begin: Callable[[str, str, int], None]
    lost: Callable[[str], None]
    returned: queue.Queue[Returned]
    alert: Callable[[Severity, str], None]
    steps_between_votes: int = 1
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    _losses: list[tuple[int, int, DragomanError]] = field(default_factory=list)
    _name_cause_at: float = float("inf")
    _done: set[str] = field(default_factory=set)
    _interrupted: bool = False
    _is_ending: bool = False
    _told: int = 0
    _kill_at: float = float("inf")

    def until_over(self, path: Path) -> None:
        """Follow the hosts until all have ended.

        Raises InterruptedRunError if the user stopped the run, the error of a worker that ended it,
        or WorkerLostError if training can go on without those that were lost.
        """
        while self.joins.of:
            message = self.joins.next(0.2)
            if message is not None:
                self._see(message)
            self._obey_user()
            self._name_cause()
            self._welcome()
            if time.monotonic() > self._kill_at:
                self._kill_at = float("inf")
                self.joins.tell_all("kill")
        if self.requests.count and (self._interrupted or self._losses):
            saved = "the last checkpoint is kept" if self._losses else "everything is saved"
            raise InterruptedRunError(
                f"the run was stopped; {saved}",
                place=path,
                remedy=f"dragoman train {shlex.quote(str(path))} resumes it",
            )
        if self._is_ending:
            raise min(self._losses, key=lambda loss: loss[:2])[2]
        if self._interrupted:
            raise WorkerLostError("the workers were ended by a signal that did not come from here")

    def _see(self, message: Message) -> None:
        name, answer = message
        join = self.joins.of[name]
        if answer is None:
            del self.joins.of[name]
            if name not in self._done:
                self._part_with(name, "lost", WorkerLostError(str(join.failure())))
            join.close()
            return
        if answer.event:
            self.record.append(f"{answer.event}\n")
        loss = answer.loss or Loss(problem="")
        problem = f"{name}: {loss.problem}"
        if answer.done is None:
            # Those that are told to end lose their workers one after the other.
            if answer.loss is not None and not self._told:
                self._blame(loss.weight, WorkerLostError(problem))
            return
        self._done.add(name)
        if answer.done == _INTERRUPTED:
            self._interrupted = True
        elif answer.done and loss.weight == "own":
            own = as_raised(WorkerError(problem, answer.done, loss.kind))
            if isinstance(own, MachineError):  # the host is there; a retry would fail
                own = WorkerError(problem, answer.done, loss.kind)
            self._blame("own", own)
            self._end("stop")
        elif answer.done and not (self._told and loss.weight == "other"):
            self._part_with(name, loss.weight, WorkerLostError(problem))

    def _blame(self, weight: str, error: DragomanError) -> None:
        if not self._losses:
            self._name_cause_at = time.monotonic() + _OTHER_LOSSES_S
        self._losses.append((_WEIGHTS[weight], len(self._losses), error))

    def _part_with(self, name: str, weight: str, error: WorkerLostError) -> None:
        """Go on without a host, if possible."""
        self._blame(weight, error)
        if name == self.first or self._told or self._interrupted:
            self._end("kill" if name == self.first else "stop")
        if self._is_ending:
            return
        left = self._training()
        self.token = secrets.token_hex(8)
        for one in left:
            self.joins.of[one].tell(f"again {self.token} {len(left)}")
        self.lost(name)

    def _training(self) -> list[str]:
        return [name for name in self.joins.of if name not in self._done]

    def _end(self, command: str) -> None:
        """Tell all to end. Hosts that wait for a lost one do not react to a request to stop."""
        if not self._is_ending:
            self._is_ending = True
            self.joins.tell_all(command)
            self._kill_at = min(self._kill_at, time.monotonic() + _OTHER_LOSSES_S)

    def _name_cause(self) -> None:
        """Say what the training goes on from, once the cause is known."""
        if self._is_ending or self._told or time.monotonic() < self._name_cause_at:
            return
        cause = min(self._losses, key=lambda loss: loss[:2])[2]
        if not self.patience.lose(self.record.newest):
            self._end("kill")
            return
        self._losses.clear()
        self._name_cause_at = float("inf")
        self.alert("error", str(cause))

    def _welcome(self) -> None:
        """Let hosts join that answer again."""
        if self._is_ending or self._told or self._done or self.returned.empty():
            return
        host, error = self.returned.get()
        if error is not None:
            self.alert("error", f"{error}; left out from now on")
            return
        self.alert("info", f"{host.name}: answers again")
        self.joins.open(host)
        self.begin(host.name, self.token, len(self.joins.of))

    def _obey_user(self) -> None:
        if self.requests.count > self._told:
            self.joins.tell_all("kill" if self.requests.count > 1 else "stop")
            self._told = self.requests.count
            self._kill_at = min(self._kill_at, time.monotonic() + self._save_s)

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
