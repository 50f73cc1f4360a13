"""Reports a rank that stands still, while the others wait for it and after it goes on.

The rank itself notices it afterwards: a thread that looks at the clock twice a second did not run.
The other ranks notice meanwhile that they wait, and which rank is missing.
"""

from __future__ import annotations

import contextlib
import socket
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
from dragoman.distributed.standing import Board, Standing
from dragoman.distributed.world import World
from dragoman.telemetry.events import OUTSIDE_STEPS, Alert, EventWriter, RankPaused
from dragoman.telemetry.timers import PhaseTimer

LOOK_EVERY_S: Final = 0.5
PAUSE_S: Final = 3.0
"""A thread that did not run for this long did not just wait for its turn."""
_COMPUTED: Final = 0.5
"""Share of a pause in processor time; a process that computed more did not stand still."""
LATE_S: Final = 5.0
_LATE_UPDATES: Final = 5.0
"""Usual updates; a wait is reported if it is longer than this and than `LATE_S`."""
_KEPT_UPDATES: Final = 50
_FEWEST_UPDATES: Final = 5
_READ_AFTER_S: Final = 2.0
_SILENT_S: Final = 2.5
_WRITE_EVERY: Final = 2
"""Looks: a rank writes its standing once a second."""
_END_S: Final = 2.0
_ENDED: Final = "ended"
"""The phase of a rank that has left: its silence means nothing."""
_LOOK_AT_IT: Final = "look at that machine: its memory, its load, whether the process was stopped"
_WORDS: Final = {
    "data_wait": "in the wait for data",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer",
    "sync": "in the sum of gradients",
}


@dataclass(slots=True)
class _Missed:
    """A missing rank: its last standing and the time of it, and whether it was reported."""

    standing: Standing
    heard_at: float
    told: bool = False


@dataclass(slots=True)
class _Wait:
    """This rank waits, or may wait, with `step` updates made, since `began` by the monotonic clock.

    doing: "sync", or one of OUTSIDE_STEPS, between which ranks meet as well.
    """

    step: int
    doing: str
    began: float
    missed: dict[int, _Missed] = field(default_factory=dict)


class PauseWatch:
    """Watches this rank from a thread and, while it waits, the others; used as a context.

    The loop reports its phases: `step` is the number of completed updates, `updated` the time of
    one, `outside` the activity between them.

        with PauseWatch(world, timer, events, board) as watch:
            watch.updated(step=1, seconds_s=0.2)
            with watch.outside("saving"):
                ...
    """

    def __init__(
        self, world: World, timer: PhaseTimer, events: EventWriter, board: Board | None
    ) -> None:
        self._world = world
        self._timer = timer
        self._events = events
        self._board = board
        self._host = socket.gethostname()
        self._step = 0
        self._outside = ""
        self._updates_s: deque[float] = deque(maxlen=_KEPT_UPDATES)
        self._beat = 0
        self._wait: _Wait | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch-pauses", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(_END_S)  # a store out of reach may hold it for minutes

    def updated(self, *, step: int, seconds_s: float) -> None:
        """`step` updates are complete; the last took so long."""
        self._step = step
        self._updates_s.append(seconds_s)

    def begin(self, step: int) -> None:
        """Training begins with this many updates made."""
        self._step = step

    @contextmanager
    def outside(self, what: str) -> Iterator[None]:
        """Something that is no part of a step: "validating" or "saving"."""
        self._outside = what
        try:
            yield
        finally:
            self._outside = ""

    @property
    def _doing(self) -> str:
        return self._outside or self._timer.running or "sync"

    def _run(self) -> None:
        with contextlib.suppress(MachineError):  # of the writer: there is nowhere left to tell it
            while not self._stop.is_set():
                slept, computed_s = time.monotonic(), time.process_time()
                self._stop.wait(LOOK_EVERY_S)
                step, doing = self._step, self._doing  # the loop has only just gone on, too
                gap_s, busy_s = time.monotonic() - slept, time.process_time() - computed_s
                if gap_s >= PAUSE_S and busy_s < _COMPUTED * gap_s:
                    self._tell_own(gap_s, step, doing)
                    self._wait = None
                with contextlib.suppress(OSError, RuntimeError):  # the board is out of reach
                    self._look(time.monotonic())
        if self._board is not None:
            with contextlib.suppress(OSError, RuntimeError):
                ended = Standing(self._host, self._beat + 1, self._step, _ENDED)
                self._board.write(self._world.rank, ended)

    def _tell_own(self, seconds_s: float, step: int, doing: str) -> None:
        began = time.time() - seconds_s
        self._write(self._world.rank, self._host, began, seconds_s, step, doing, own=True)
        cause = (
            f"{_name(self._world.rank, self._host)} stood still for {_long(seconds_s)} from "
            f"{_clock(began)} on, {_where(step, doing)}: none of its threads ran"
        )
        remedy = "look at who stopped it, and at that machine's memory and other guests then"
        self._events.write(Alert(severity="warning", cause=cause, remedy=remedy), step=step)

    def _look(self, now: float) -> None:
        """Say where this rank stands; while it waits, or may wait, see who is missing."""
        if self._board is None:
            return
        step, doing = self._step, self._doing
        self._beat += 1
        if self._beat % _WRITE_EVERY == 1:
            self._board.write(self._world.rank, Standing(self._host, self._beat, step, doing))
        if self._wait is not None and (self._wait.doing != doing or self._wait.step != step):
            self._tell_back(self._wait, now)
            self._wait = None
        if self._wait is None and (doing == "sync" or doing in OUTSIDE_STEPS):
            self._wait = _Wait(step, doing, now)
        if self._wait is not None and now - self._wait.began >= _READ_AFTER_S:
            look_for = self._look_for if doing == "sync" else self._look_for_silent
            look_for(self._wait, self._board.read(), now)

    def _look_for(self, wait: _Wait, standings: Mapping[int, Standing], now: float) -> None:
        """Alert if others have not come for long; the first rank that waits speaks for all."""
        for rank, one in standings.items():
            here = one.doing == "sync" and one.step >= wait.step
            if rank == self._world.rank or here:
                continue
            seen = wait.missed.setdefault(rank, _Missed(one, now))
            if one.beat != seen.standing.beat:
                seen.standing, seen.heard_at = one, now
        speaks = min(set(range(self._world.world_size)) - wait.missed.keys()) == self._world.rank
        if speaks and now - wait.began >= self._late_s:
            for rank, seen in wait.missed.items():
                self._tell_missing(rank, seen, wait, now)

    def _look_for_silent(self, wait: _Wait, standings: Mapping[int, Standing], now: float) -> None:
        """Alert if others do not live: between steps it is not known who waits for whom."""
        for rank, one in standings.items():
            if rank == self._world.rank:
                continue
            seen = wait.missed.setdefault(rank, _Missed(one, now))
            if one.beat != seen.standing.beat:
                if seen.told:
                    self._tell_one_back(rank, seen, wait.step, now - seen.heard_at)
                wait.missed[rank] = _Missed(one, now)
        silent = {
            rank
            for rank, seen in wait.missed.items()
            if now - seen.heard_at >= LATE_S and seen.standing.doing != _ENDED
        }
        if min(set(range(self._world.world_size)) - silent) != self._world.rank:
            return
        for rank in silent:
            seen = wait.missed[rank]
            if not seen.told:
                seen.told = True
                silent_s = now - seen.heard_at
                cause = (
                    f"{_name(rank, seen.standing.host)} has given no sign of life for "
                    f"{_long(silent_s)}, since {_clock(time.time() - silent_s)}, while the others "
                    f"were {_where(wait.step, wait.doing)}"
                )
                self._events.write(
                    Alert(severity="warning", cause=cause, remedy=_LOOK_AT_IT), step=wait.step
                )

    @property
    def _late_s(self) -> float:
        if len(self._updates_s) < _FEWEST_UPDATES:
            return float("inf")
        return max(LATE_S, _LATE_UPDATES * statistics.median(self._updates_s))

    def _tell_missing(self, rank: int, seen: _Missed, wait: _Wait, now: float) -> None:
        silent_s = now - seen.heard_at
        if seen.told or (seen.standing.doing in OUTSIDE_STEPS and silent_s < _SILENT_S):
            return
        seen.told = True
        if silent_s >= _SILENT_S:
            state = f"no sign of life from it since {_clock(time.time() - silent_s)}"
        else:
            state = f"it lives, {_WORDS.get(seen.standing.doing, seen.standing.doing)}"
        cause = (
            f"{_name(rank, seen.standing.host)} has not come to the sum of step "
            f"{units.COUNT.text(wait.step + 1)} for {_long(now - wait.began)}, and "
            f"the others wait: {state}"
        )
        alert = Alert(severity="warning", cause=cause, remedy=_LOOK_AT_IT)
        self._events.write(alert, step=wait.step)

    def _tell_back(self, wait: _Wait, now: float) -> None:
        """This rank goes on: those who were missing have come."""
        for rank, seen in wait.missed.items():
            if seen.told:
                since = wait.began if wait.doing == "sync" else seen.heard_at
                self._tell_one_back(rank, seen, wait.step, now - since)

    def _tell_one_back(self, rank: int, seen: _Missed, step: int, seconds_s: float) -> None:
        one = seen.standing
        began = time.time() - seconds_s
        self._write(rank, one.host, began, seconds_s, step, one.doing, own=False)
        cause = f"{_name(rank, one.host)} goes on; the others waited {_long(seconds_s)} for it"
        alert = Alert(severity="info", cause=cause, remedy="nothing is to be done")
        self._events.write(alert, step=step)

    def _write(
        self,
        rank: int,
        host: str,
        began: float,
        seconds_s: float,
        step: int,
        doing: str,
        *,
        own: bool,
    ) -> None:
        event = RankPaused(
            paused_rank=rank,
            paused_host=host,
            began=round(began, 3),
            seconds_s=round(seconds_s, 3),
            during=doing,
            own=own,
        )
        self._events.write(event, step=step)


def _name(rank: int, host: str) -> str:
    return f"rank {rank} on {host}"


def _long(seconds_s: float) -> str:
    return units.DURATION.text(round(seconds_s, 1))


def _clock(moment: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(moment))


def _where(step: int, doing: str) -> str:
    if doing in OUTSIDE_STEPS:
        return f"{doing} after step {units.COUNT.text(step)}"
    return f"{_WORDS[doing]} of step {units.COUNT.text(step + 1)}"
