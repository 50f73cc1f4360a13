"""The interface of a strategy, which makes one model out of many ranks, to the trainer."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

Tensors = Mapping[str, Tensor]


class GradientSync(ABC):
    """A strategy over one model.

        with sync.micro_step(last=True):        # forward and backward of one micro-batch
            sync.module(batch).loss.backward()
        optimizer.step()                        # with the learning rate times `rate_factor`
        sync.after_update(step, learning_rate=learning_rate, skipped=skipped)

    module: the model whose forward is called.
    bytes_sent: bytes from this rank to other hosts so far, or to other ranks if there is one host;
        counted from the tensors that were sent.
    loss_factor: multiplies the loss before backward.
    rate_factor: multiplies the learning rate of this rank's optimizer, and the norm of its
        gradient, which then stands for the norm of the whole gradient.
    loss_scale: a factor of the gradients that changes during training; None without one.
    period: updates between two exchanges with all ranks.
    own_optimizer: whether each rank's optimizer has a state of its own.
    waits: the time in which this rank only waited for the network or for other ranks.
    has_whole_gradient: whether the gradient after the last micro-step is exactly the sum of all
        ranks' gradients.
    wants_own_norm, own_norm: if it is wanted and there are other ranks, the norm of this rank's
        share of that sum.
    """

    loss_factor = 1.0
    rate_factor = 1.0
    loss_scale: Tensor | None = None
    period = 1
    own_optimizer = False
    has_whole_gradient = False
    wants_own_norm = False
    own_norm: Tensor | None = None

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.bytes_sent = 0
        self.waits = Stopwatch(next(module.parameters()).device)

    @abstractmethod
    def micro_step(self, *, last: bool) -> AbstractContextManager[None]:
        """A context for the passes of a micro-batch; ranks communicate in that of the last one."""

    def attach(self, optimizer: torch.optim.Adam) -> None:  # noqa: B027
        """Called once before the first update, with the optimizer that changes the weights."""

    def after_update(  # noqa: B027
        self, step: int, *, learning_rate: float, skipped: Tensor | None = None
    ) -> None:
        """Called when the optimizer has changed the weights and `step` steps are complete.

        learning_rate: from the schedule, for this update.
        skipped: 1.0 if the optimizer has changed nothing, else 0.0; None: it never skips.
        """

    def finish(self) -> None:  # noqa: B027
        """Called at the end of training: from here on all ranks have the same weights."""

    @property
    def settled(self) -> bool:
        """Whether all ranks have just met, so that they may agree, measure and save."""
        return True

    def weights(self) -> list[Tensor]:
        """The weights that all ranks share, by parameter: to measure, to average and to save."""
        return [weight.detach() for weight in self.module.parameters()]

    def shared_state(self) -> dict[str, Tensor]:
        """State for a checkpoint beside weights and optimizer, the same on every rank."""
        return {}

    def own_state(self) -> dict[str, Tensor]:
        """State for a checkpoint that only this rank has."""
        return {}

    def wrote(self, own: Tensors) -> bool:
        """Whether a rank in the place of this one wrote the given own state."""
        return own.keys() == self.own_state().keys()

    def load_state(  # noqa: B027
        self, shared: Tensors, own: Tensors | None, *, step: int
    ) -> None:
        """Resume from a checkpoint of `step`, whose weights and optimizer have been loaded already.

        own: None if the ranks are not those that wrote it; then each resumes from the shared state.
        """

    def close(self) -> None:  # noqa: B027
        """Remove hooks from the model."""


class NoSync(GradientSync):
    """The strategy of a single rank, whose gradient is the whole one."""

    has_whole_gradient = True

    def micro_step(self, *, last: bool) -> AbstractContextManager[None]:
        """A context that does nothing."""
        return nullcontext()


class Stopwatch:
    """Adds up the time between start and stop, in all and by lap.

    A lap is an update; the trainer ends it. If the device has its own clock, that clock counts:
    `total_s` and `laps_s` then wait for the device, the other methods do not.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._total_s = 0.0
        self._laps_s = array("d", [0.0])
        """The sums of all laps, and of the one under way. Each takes 8 bytes, so all are kept."""
        self._started_s = 0.0
        self._unread: list[tuple[int, torch.cuda.Event, torch.cuda.Event]] = []

    def start(self) -> None:
        """Begin an interval."""
        self._started_s = time.perf_counter()
        if self._on_gpu:
            self._unread.append((len(self._laps_s) - 1, _event(), _event()))
            self._unread[-1][1].record()

    def stop(self) -> None:
        """End the interval."""
        if self._on_gpu:
            self._unread[-1][2].record()
        else:
            self.add(time.perf_counter() - self._started_s)

    def add(self, seconds_s: float) -> None:
        """Add an interval that was timed elsewhere."""
        self._total_s += seconds_s
        self._laps_s[-1] += seconds_s

    def end_lap(self) -> None:
        """End this lap and begin the next."""
        self._laps_s.append(0.0)

    def total_s(self) -> float:
        """The sum of all intervals that have ended."""
        for lap, started, stopped in self._unread:
            stopped.synchronize()
            seconds_s = started.elapsed_time(stopped) / 1000
            self._total_s += seconds_s
            self._laps_s[lap] += seconds_s
        self._unread.clear()
        return self._total_s

    @property
    def laps(self) -> int:
        """How many laps have ended."""
        return len(self._laps_s) - 1

    def laps_s(self, first: int) -> array[float]:
        """The sum of each lap that has ended, from number `first` on, counted from 0."""
        self.total_s()
        return self._laps_s[first:-1]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
