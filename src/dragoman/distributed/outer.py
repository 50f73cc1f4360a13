"""What `diloco` makes of what its replicas send: the outer optimizer.

`OuterSgd` is that of DiLoCo (Douillard et al. 2023); `outer_adam` has the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.distributed.fragments import Fragment, WeightRow
from dragoman.distributed.strategy import Tensors


@dataclass(frozen=True, slots=True)
class Interval:
    """The steps whose learning a fragment carries: so many, the last of which is `end`.

    now: the step after which it has arrived. learning_rate: of these steps, on average.
    """

    steps: int
    end: int
    now: int
    learning_rate: float


class Outer(ABC):
    """Keeps the global weights' side of the training; each call is made on all ranks alike.

    loss_factor, rate_factor: as in `GradientSync`. One fragment at a time is on its way; each part
    of it is shared, and later moved and kept, by itself.
    """

    loss_factor = 1.0
    rate_factor = 1.0

    def attach(self, optimizer: torch.optim.Adam) -> None:  # noqa: B027
        """Told once, before the first step, which optimizer makes this replica's steps."""

    def step_made(self) -> None:  # noqa: B027
        """Called after every step of this replica."""

    @abstractmethod
    def share(self, part: Fragment, ahead: Tensor, sent: Tensor, *, out: Tensor) -> None:
        """What this rank adds to the sum over all ranks, fp32 and flat, into `out`.

        ahead, sent: the global weights and this replica's.
        """

    @abstractmethod
    def lower(self, part: Fragment, ahead: Tensor, total: Tensor, interval: Interval) -> None:
        """Move the global weights `ahead` by what the sum says, which may be overwritten."""

    def lower_last(self, part: Fragment, ahead: Tensor, total: Tensor, interval: Interval) -> None:
        """The same at the end of training."""
        self.lower(part, ahead, total, interval)

    def keep(self, part: Fragment, lost: Tensor) -> None:  # noqa: B027
        """What this rank has rounded away of its share, and of the sum, may travel next time."""

    def decays(self, interval: Interval) -> list[float] | None:
        """What the global weights are multiplied by for it, weight by weight; None: nothing."""
        return None

    def shared_state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold of it, the same on every rank."""
        return {}

    def own_state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold of this very replica."""
        return {}

    def load_state(self, shared: Tensors, own: Tensors | None) -> None:  # noqa: B027
        """As in `GradientSync`; the optimizer has been restored by now."""


class OuterSgd(Outer):
    """SGD with Nesterov's momentum over the mean movement d of the replicas:

    v = momentum * v + d
    global = global - rate * (d + momentum * v)

    ranks: of all replicas. factor: these over the ranks of this replica, whose mean loss is that of
    its own share of the batch.
    """

    def __init__(
        self, row: WeightRow, *, rate: float, momentum: float, ranks: int, factor: float
    ) -> None:
        self.loss_factor = factor
        self._row = row
        self._rate = rate
        self._momentum = momentum
        self._num_ranks = ranks
        self._velocity = torch.zeros_like(row.copied()) if momentum else None

    def share(self, part: Fragment, ahead: Tensor, sent: Tensor, *, out: Tensor) -> None:
        """Summed over ranks, which are alike in a replica, this is the mean by share."""
        torch.sub(ahead, sent, out=out).div_(self._num_ranks)

    def lower(self, part: Fragment, ahead: Tensor, total: Tensor, interval: Interval) -> None:
        """As above."""
        if self._velocity is None:
            ahead.sub_(total, alpha=self._rate)
            return
        velocity = part.of(self._velocity)
        velocity.mul_(self._momentum).add_(total)
        ahead.sub_(total.add_(velocity, alpha=self._momentum), alpha=self._rate)

    def lower_last(self, part: Fragment, ahead: Tensor, total: Tensor, interval: Interval) -> None:
        """To the plain mean of the replicas."""
        ahead.sub_(total)

    def shared_state(self) -> dict[str, Tensor]:
        """The momentum, where there is any."""
        return {} if self._velocity is None else self._row.named(self._velocity)

    def load_state(self, shared: Tensors, own: Tensors | None) -> None:
        """Without it the momentum begins anew."""
        for name, velocity in self.shared_state().items():
            if name in shared:
                velocity.copy_(shared[name])
