"""Signals to stop, and how ranks agree at which update to stop."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Final, NamedTuple, Self

import torch
from torch import Tensor

from dragoman.distributed.world import World

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_listening: list[StopSignals] = []
"""Those whose blocks this process is in; the signals of a process are one thing, too."""


class GivenUpError(Exception):
    """What was under way was given up, on every rank, because one was asked to stop."""


def is_asked_to_stop() -> bool:
    """Whether a signal has asked this process to stop training."""
    return any(signals.received for signals in _listening)


class StopSignals:
    """Inside the block SIGTERM and SIGINT only set `received`; the loop looks at it when it can.

    alone: whether a second signal does what it would have done outside the block, for somebody who
        will not wait for a long validation. If there are other ranks, their launcher sees to it.
    In a thread nothing changes: Python gives signals to the main one.
    """

    def __init__(self, *, alone: bool) -> None:
        self.received = False
        self._alone = alone

    def __enter__(self) -> Self:
        _listening.append(self)
        numbers = _SIGNALS if threading.current_thread() is threading.main_thread() else ()
        self._before = {number: signal.signal(number, self._receive) for number in numbers}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        _listening.remove(self)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.received and self._alone:
            signal.signal(number, self._before[signal.Signals(number)])
            os.kill(os.getpid(), number)
        self.received = True


class Votes(NamedTuple):
    """What one rank wants after an update, or what all have agreed on."""

    stop: bool
    save: bool
    examine: bool = False
    """Whether to find out together why steps are slow."""


class Agreement:
    """After every update each rank votes; what any of them wants, all do after the same update.

    It costs one exchange of three integers an update, and nothing if there is one rank. On GPUs
    the result is that of the update before, which the device has long done: nobody waits for it.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._under_way: tuple[Tensor, torch.cuda.Event] | None = None

    def reach(self, votes: Votes) -> Votes:
        """Every rank calls this after every update."""
        if self._world.world_size == 1:
            return votes
        ballot = torch.tensor(votes, dtype=torch.int32, device=self._world.device)
        self._world.sum(ballot)
        counted = ballot if ballot.device.type == "cpu" else self._exchange_with_previous(ballot)
        stop, save, examine = counted.tolist()
        return Votes(stop > 0, save > 0, examine > 0)

    def _exchange_with_previous(self, ballot: Tensor) -> Tensor:
        """Start to fetch this ballot from the device; wait for the one before it."""
        fetched = torch.zeros(ballot.shape, dtype=ballot.dtype, pin_memory=True)
        fetched.copy_(ballot, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        previous, self._under_way = self._under_way, (fetched, arrived)
        if previous is None:
            return torch.zeros_like(fetched)
        counted, arrived = previous
        arrived.synchronize()
        return counted
