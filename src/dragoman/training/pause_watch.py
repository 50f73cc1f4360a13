"""Reports a rank that stands still, while it does and after it goes on.

Meanwhile the other ranks notice it. If a rank gives no sign of life, it stands still. If it lives
but keeps the others waiting for far longer than a step takes, it may hang. Afterwards the rank
itself notices it: one of its threads looks at the clock twice a second, and sees a gap. A second
thread reads and writes the ranks' signs of life, so that a slow disk or network is not taken for a
pause.
"""

from __future__ import annotations

import contextlib
import resource
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from dragoman.base import units
from dragoman.base.errors import MachineError
from dragoman.distributed.heartbeat import Heartbeat, Heartbeats
from dragoman.distributed.world import World
from dragoman.telemetry.events import OUTSIDE_STEPS, Alert, RankPaused, Recorder
from dragoman.telemetry.host import collective_interface, has_carrier
from dragoman.telemetry.timers import PhaseTimer

LOOK_EVERY_S: Final = 0.5
PAUSE_S: Final = 3.0
"""A thread that did not run for this long did not just wait for its turn."""
_TURNS_PER_S: Final = 20
"""A thread that waits for the interpreter's lock, which compilers hold for seconds, wakes 200 times
a second to look at it (`sys.getswitchinterval`). One that is stopped does not."""
LATE_S: Final = 5.0
"""A rank that gives no sign of life for this long is reported."""
_LATE_UPDATES: Final = 5.0
_MOST_LATE_S: Final = 300.0
"""A rank that lives is reported if the others have waited for `LATE_S`, and for five usual updates
or this much longer than one, whichever is less. Until the usual time is known, they wait for this
long: the first updates may compile, which takes less."""
_KEPT_UPDATES: Final = 50
_FEWEST_UPDATES: Final = 5
_READ_AFTER_S: Final = 2.0
_MOST_BETWEEN_S: Final = 2.0
"""Silence between two looks counts for at most this: this rank itself may have looked late."""
_SILENT_S: Final = 2.5
"""A rank that was heard within this time lives."""
_EVERY: Final = 2
"""Looks from one write of a rank's heartbeat to the next, a second later; then it may also read."""
_END_S: Final = 2.0
_ENDED: Final = "ended"
"""The phase of a rank that has left: its silence means nothing."""
_LOOK_AT_IT: Final = "look at that machine: its memory, its load, whether the process was stopped"
_WORDS: Final = {
    "data_wait": "in the wait for data",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer",
    "sync": "in the all-reduce of gradients",
}


@dataclass(slots=True)
class _Other:
    """The last heartbeat of another rank, its silence since, and whether that was reported."""

    heartbeat: Heartbeat
    silent_s: float = 0.0
    reported: bool = False

    @property
    def is_silent(self) -> bool:
        return self.silent_s >= LATE_S and self.heartbeat.doing != _ENDED


@dataclass(slots=True)
class _Wait:
    """This rank waits in the all-reduce after `step` updates, since `began` by the monotonic clock.

    reported: the ranks that were reported to be late, with their heartbeats then.
    """

    step: int
    began: float
    reported: dict[int, Heartbeat] = field(default_factory=dict)


class PauseWatch:
    """Watches this rank and the others from two threads; used as a context.

    The first and the last rank, which are on different hosts if there are several, read the
    heartbeats of all once a second, other ranks only while they wait.

    The loop reports its phases: `step` is the number of completed updates, `updated` the time of
    one, `outside` the activity between them.

        with PauseWatch(world, timer, events, heartbeats) as watch:
            watch.updated(step=1, seconds_s=0.2)
            with watch.outside("saving"):
                ...
    """

    def __init__(
        self, world: World, timer: PhaseTimer, events: Recorder, heartbeats: Heartbeats | None
    ) -> None:
        self._world = world
        self._timer = timer
        self._events = events
        self._heartbeats = heartbeats
        self._host = events.host
        self._step = 0
        self._outside = ""
        self._updates_s: deque[float] = deque(maxlen=_KEPT_UPDATES)
        self._beat = 0
        self._others: dict[int, _Other] = {}
        self._read_at = 0.0
        self._wait: _Wait | None = None
        self._stop = threading.Event()
        self._stood_still = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch_clock, name="watch-clock", daemon=True),
            threading.Thread(target=self._watch_others, name="watch-others", daemon=True),
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(_END_S)  # a store out of reach may hold it for minutes

    def updated(self, *, step: int, seconds_s: float) -> None:
        """`step` updates are complete; the last took so long."""
        self._step = step
        self._updates_s.append(seconds_s)

    def begin(self, step: int) -> None:
        """Training begins with this many updates made."""
        self._step = step

    @contextmanager
    def outside(self, what: str) -> Iterator[None]:
        """An activity that is not part of a step: see `OUTSIDE_STEPS`."""
        self._outside = what
        try:
            yield
        finally:
            self._outside = ""

    @property
    def _doing(self) -> str:
        return self._outside or self._timer.running or "sync"

    def _watch_clock(self) -> None:
        """Report the pauses of this rank."""
        with contextlib.suppress(MachineError):  # of the writer: there is nowhere left to report it
            while not self._stop.is_set():
                slept, turns = time.monotonic(), _turns()
                self._stop.wait(LOOK_EVERY_S)
                step, doing = self._step, self._doing  # the loop has only just gone on, too
                gap_s = time.monotonic() - slept
                if gap_s >= PAUSE_S and _turns() - turns < _TURNS_PER_S * gap_s:
                    self._stood_still.set()
                    self._report_own(gap_s, step, doing)

    def _watch_others(self) -> None:
        """Report the pauses of other ranks, and write the heartbeat of this one."""
        with contextlib.suppress(MachineError):
            self._look()  # before the first wait, as others miss only a rank that they have seen
            while not self._stop.is_set():
                slept = time.monotonic()
                self._stop.wait(LOOK_EVERY_S)
                if time.monotonic() - slept >= PAUSE_S:
                    time.sleep(
                        LOOK_EVERY_S / 5
                    )  # the other thread finds out whether it was a pause
                if self._stood_still.is_set():
                    self._stood_still.clear()
                    self._wait = None
                    self._others.clear()  # they may have stood still as well
                self._look()
            self._await_missing()
        if self._heartbeats is not None:
            with contextlib.suppress(OSError, RuntimeError):
                ended = Heartbeat(self._host, self._beat + 1, self._step, _ENDED)
                self._heartbeats.write(self._world.rank, ended)

    def _report_own(self, seconds_s: float, step: int, doing: str) -> None:
        began = time.time() - seconds_s
        self._write(self._world.rank, seconds_s, step, doing, own=True)
        cause = (
            f"{_name(self._world.rank, self._host)} stood still for {_long(seconds_s)} from "
            f"{units.time_of_day(began)} on, {_where(step, doing)}: none of its threads ran"
        )
        remedy = "look at who stopped it, and at that machine's memory and other guests then"
        self._events.write(Alert(severity="warning", cause=cause, remedy=remedy), step=step)

    def _look(self) -> None:
        """Say where this rank stands, and see who is missing, if the heartbeats can be reached."""
        if self._heartbeats is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._look_at(self._heartbeats, time.monotonic())

    def _await_missing(self) -> None:
        """Wait a moment at the end: a reported rank may have just gone on, which is recorded."""
        deadline = time.monotonic() + _END_S / 2
        while (
            any(other.reported for other in self._others.values()) and time.monotonic() < deadline
        ):
            time.sleep(LOOK_EVERY_S / 5)
            if self._heartbeats is not None:
                with contextlib.suppress(OSError, RuntimeError):
                    self._read(self._heartbeats.read(), time.monotonic())

    def _look_at(self, heartbeats: Heartbeats, now: float) -> None:
        rank, step, doing = self._world.rank, self._step, self._doing
        self._beat += 1
        is_second = self._beat % _EVERY == 1
        if is_second:
            news = self._events.urgent()
            heartbeats.write(rank, Heartbeat(self._host, self._beat, step, doing, news))
        if self._wait is not None and (doing != "sync" or self._wait.step != step):
            for late, heartbeat in self._wait.reported.items():  # its own step records the time
                self._report_return(late, heartbeat, now - self._wait.began, "the others waited")
            self._wait = None
        if self._wait is None and doing == "sync":
            self._wait = _Wait(step, now)
        waits = self._wait is not None and now - self._wait.began >= _READ_AFTER_S
        if waits or (is_second and rank in (0, self._world.world_size - 1)):
            self._read(heartbeats.read(), now)
            self._report_silent()
        if self._wait is not None and waits:
            self._report_late(self._wait, now)

    def _read(self, heartbeats: Mapping[int, Heartbeat], now: float) -> None:
        """Take in the heartbeats of all ranks."""
        since_s, self._read_at = min(now - self._read_at, _MOST_BETWEEN_S), now
        for rank, heartbeat in heartbeats.items():
            other = self._others.get(rank)
            if rank == self._world.rank:
                continue
            if self._world.is_main:
                self._events.relay(rank, heartbeat.news)
            if other is not None and heartbeat.beat == other.heartbeat.beat:
                other.silent_s += since_s
                continue
            if other is not None and other.reported:
                was, silent_s = other.heartbeat, other.silent_s
                self._write(rank, silent_s, was.step, was.doing, own=False)
                self._report_return(rank, was, silent_s, "it gave no sign of life")
                if self._wait is not None:  # until now the wait was for this one
                    self._wait.began = now
            self._others[rank] = _Other(heartbeat)

    def _report_silent(self) -> None:
        """Alert if ranks are silent; one that is not (first or last if possible) speaks for all."""
        silent = {rank: other for rank, other in self._others.items() if other.is_silent}
        ranks = range(self._world.world_size)
        speaker = next(rank for rank in (ranks[0], ranks[-1], *ranks) if rank not in silent)
        for rank, other in silent.items():
            if speaker == self._world.rank and not other.reported:
                other.reported = True
                heartbeat, since = other.heartbeat, units.time_of_day(time.time() - other.silent_s)
                cause = (
                    f"{_name(rank, heartbeat.host)} has given no sign of life for "
                    f"{_long(other.silent_s)}, since {since}; it was "
                    f"{_where(heartbeat.step, heartbeat.doing)}"
                )
                remedy = self._own_link() if heartbeat.host in self._cut_off else _LOOK_AT_IT
                alert = Alert(severity="warning", cause=cause, remedy=remedy)
                self._events.write(alert, step=self._step)

    @property
    def _cut_off(self) -> set[str]:
        """The other hosts if all of them fell silent at once: then this host's own link may be out.

        The ranks of one machine tell nothing about a link.
        """
        others = [other for other in self._others.values() if other.heartbeat.host != self._host]
        living = any(
            other.silent_s < _SILENT_S for other in others if other.heartbeat.doing != _ENDED
        )
        return set() if living else {other.heartbeat.host for other in others}

    def _own_link(self) -> str:
        """The remedy if no other host is heard."""
        interface = collective_interface()
        link = f"link {interface}" if interface else "network link"
        if interface is not None and not has_carrier(interface):
            return f"look at the cable of {self._host}: its own {link} is down"
        return (
            f"no other host is heard: the {link} of {self._host} itself may be out; if it is not, "
            f"{_LOOK_AT_IT}"
        )

    def _report_late(self, wait: _Wait, now: float) -> None:
        """Alert if ranks that live have not come for long; the first that waits speaks for all."""
        if self._doing != "sync" or self._step != wait.step:  # they came meanwhile
            return
        waited_s = now - wait.began
        is_here = {
            rank: other.heartbeat.doing == "sync" and other.heartbeat.step >= wait.step
            for rank, other in self._others.items()
            if other.silent_s < _SILENT_S and other.heartbeat.doing not in (_ENDED, *OUTSIDE_STEPS)
        }
        waiting = [self._world.rank, *(rank for rank, here in is_here.items() if here)]
        if waited_s < self._late_s or min(waiting) != self._world.rank:
            return
        for rank in is_here.keys() - set(waiting) - wait.reported.keys():
            heartbeat = wait.reported[rank] = self._others[rank].heartbeat
            cause = (
                f"{_name(rank, heartbeat.host)} has not come to the all-reduce of step "
                f"{units.COUNT.text(wait.step + 1)} for {_long(waited_s)}, and the others wait: "
                f"it lives, {_WORDS.get(heartbeat.doing, heartbeat.doing)}"
            )
            alert = Alert(severity="warning", cause=cause, remedy=_LOOK_AT_IT)
            self._events.write(alert, step=wait.step)

    @property
    def _late_s(self) -> float:
        if len(self._updates_s) < _FEWEST_UPDATES:
            return _MOST_LATE_S
        usual_s = statistics.median(self._updates_s)
        return max(LATE_S, min(_LATE_UPDATES * usual_s, usual_s + _MOST_LATE_S))

    def _report_return(self, rank: int, heartbeat: Heartbeat, seconds_s: float, how: str) -> None:
        """Alert that a rank goes on. how: what others saw meanwhile."""
        cause = f"{_name(rank, heartbeat.host)} goes on; {how} for {_long(seconds_s)}"
        alert = Alert(severity="info", cause=cause, remedy="nothing needs to be done")
        self._events.write(alert, step=heartbeat.step)

    def _write(self, rank: int, seconds_s: float, step: int, doing: str, *, own: bool) -> None:
        event = RankPaused(paused_rank=rank, seconds_s=round(seconds_s, 3), during=doing, own=own)
        self._events.write(event, step=step)


def _turns() -> int:
    """How often this thread has gone to sleep."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def _name(rank: int, host: str) -> str:
    return f"rank {rank} on {host}"


def _long(seconds_s: float) -> str:
    return units.DURATION.text(round(seconds_s, 1))


def _where(step: int, doing: str) -> str:
    if doing in OUTSIDE_STEPS:
        return f"{doing} after step {units.COUNT.text(step)}"
    return f"{_WORDS.get(doing, doing)} of step {units.COUNT.text(step + 1)}"
