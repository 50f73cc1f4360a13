"""Signals to stop, and how ranks agree at which update to stop."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import NamedTuple, Self

import torch
from torch import Tensor

from dragoman.base.interrupts import StopHandler
from dragoman.distributed.world import World

_listening: list[StopSignals] = []
"""The open blocks of this process; there is one list, as a process has one set of signals."""


class GivenUpError(Exception):
    """Work was given up, on every rank, because one was asked to stop."""


def is_asked_to_stop() -> bool:
    """Whether a signal has asked this process to stop training."""
    return any(signals.received for signals in _listening)


class StopSignals(StopHandler):
    """Inside the block SIGTERM and SIGINT only set `received`; the loop reads it when it can.

    alone: whether a second signal ends the process at once, for a user who will not wait for a
        long validation. If there are other ranks, their launcher does that.
    """

    def __init__(self, *, alone: bool) -> None:
        self.received = False
        self._alone = alone

    def __enter__(self) -> Self:
        _listening.append(self)
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        _listening.remove(self)

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Record the first; the second ends a process that is alone."""
        if self.received and self._alone:
            signal.signal(number, self.before[signal.Signals(number)])
            os.kill(os.getpid(), number)
        self.received = True


class Votes(NamedTuple):
    """The wishes of one rank after an update, or those that all have agreed on."""

    stop: bool
    save: bool
    examine: bool = False
    """Whether to find out together why steps are slow."""
    progress: float = 0.0
    """How far a run with a budget is, by rank 0, whose clock counts; 0 from the others."""


class Agreement:
    """After an update at which all meet, each rank votes; what any of them wants, all do then.

    It costs one exchange of four numbers per meeting, and nothing if there is one rank. On
    GPUs the result is that of the meeting before, which the device finished long ago: the exchange
    does not wait.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._under_way: tuple[Tensor, torch.cuda.Event] | None = None

    def reach(self, votes: Votes) -> Votes:
        """The votes that all agreed on; every rank calls this at every meeting."""
        if self._world.world_size == 1:
            return votes
        on_gpu = self._world.device.type == "cuda"
        # From pinned memory, so that the host need not wait until the device has copied it.
        ballot = torch.tensor(votes, dtype=torch.float32, pin_memory=on_gpu)
        ballot = ballot.to(self._world.device, non_blocking=True)
        self._world.sum(ballot)
        counted = ballot if ballot.device.type == "cpu" else self._exchange_with_previous(ballot)
        stop, save, examine, progress = counted.tolist()
        return Votes(stop > 0, save > 0, examine > 0, progress)

    def _exchange_with_previous(self, ballot: Tensor) -> Tensor:
        """Start to copy this ballot from the device; wait for the one before it."""
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
