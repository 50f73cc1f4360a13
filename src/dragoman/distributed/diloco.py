"""`diloco`: replicas train by themselves and average a fragment of the weights now and then.

DiLoCo (Douillard et al. 2023) with the fragments and the overlap of Streaming DiLoCo (Douillard et
al. 2025). H = `every`, F = `fragments`, tau = `delay`, alpha = `mixing`; H and tau are local steps.
Every H/F steps the next fragment is due: each replica sends by how much its weights w have moved
away from the global ones, and goes on; tau steps later the mean movement has arrived:

    d = mean over replicas of (global - w)       taken when it was sent
    v = momentum * v + d                         the outer optimizer, SGD with Nesterov's momentum
    global = global - rate * (d + momentum * v)
    w = alpha * w + (1 - alpha) * global         alpha = 0 where tau = 0

A fragment is a range of all weights laid end to end, so that fragments are equal to the byte.
Nothing is on its way at a settled step: what a checkpoint holds there goes on exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from dragoman.distributed.config import DilocoConfig
from dragoman.distributed.host_sum import HostSum, Wait
from dragoman.distributed.strategy import GradientSync, Stopwatch, Tensors

FEW_REPLICAS: Final = 4
"""Below this many, momentum does harm (SlowMo, Wang et al. 2020, on WMT16 en-de)."""


class Outer(NamedTuple):
    """The outer optimizer's settings."""

    learning_rate: float
    momentum: float

    @classmethod
    def of(cls, config: DilocoConfig, *, num_replicas: int) -> Outer:
        """As configured, or as published for so many replicas."""
        usual = cls(1.0, 0.0) if num_replicas < FEW_REPLICAS else cls(0.7, 0.9)
        rate, momentum = config.outer_learning_rate, config.outer_momentum
        return cls(
            usual.learning_rate if rate is None else rate,
            usual.momentum if momentum is None else momentum,
        )


class DilocoSync(GradientSync):
    """One replica, which may be several ranks that sum their gradients in every step.

    inner: how the ranks of this replica do so. host_sum: over all ranks. share: of the global
    batch that this replica trains on. Its movement counts by that share.
    """

    own_optimizer = True

    def __init__(
        self,
        model: nn.Module,
        config: DilocoConfig,
        *,
        inner: GradientSync,
        host_sum: HostSum,
        num_ranks: int,
        num_replicas: int,
        share: float,
    ) -> None:
        super().__init__(model)
        self.loss_factor = 1 / share
        self._names = [name for name, _ in model.named_parameters()]
        self._inner = inner
        self._host_sum = host_sum
        self._num_ranks = num_ranks
        self._outer = Outer.of(config, num_replicas=num_replicas)
        self._gap = config.every // config.fragments
        self._delay = config.delay
        self._kept = config.mixing if config.delay else 0.0
        self._global = torch.cat([weight.detach().flatten() for weight in model.parameters()])
        self._momentum = torch.zeros_like(self._global) if self._outer.momentum else None
        self._fragments = _cut(model, config.fragments)
        self._under_way: _UnderWay | None = None
        self._settled = True
        self._watch = Stopwatch(self._global.device)

    @property
    def exposed_s(self) -> float:
        """Waiting for fragments, and for the gradients of the replica's other ranks."""
        return self._watch.total_s() + self._inner.exposed_s

    @property
    def settled(self) -> bool:
        """Whether a fragment has just arrived, so that none is on its way."""
        return self._settled

    def micro_step(self, *, last: bool) -> AbstractContextManager[None]:
        """As the replica's own ranks do it."""
        return self._inner.micro_step(last=last)

    @torch.no_grad()
    def after_update(self, step: int) -> None:
        """Take in the fragment that is due now; send the one whose turn it is."""
        self._settled = False
        if self._under_way is not None and step >= self._under_way.due_step:
            self._receive(self._under_way)
        if step % self._gap == 0:
            turn = (step // self._gap - 1) % len(self._fragments)
            self._send(self._fragments[turn], due_step=step + self._delay)
            if self._delay == 0 and self._under_way is not None:
                self._receive(self._under_way)

    @torch.no_grad()
    def finish(self) -> None:
        """The global weights become the plain mean of the replicas', and the replicas' too."""
        if self._under_way is not None:
            self._receive(self._under_way)
        weights = self._local()
        for fragment in self._fragments:
            mean = fragment.gather(weights).div_(self._num_ranks)
            wait = self._start(mean)
            self._watch.start()
            wait()
            self._watch.stop()
            fragment.of(self._global).copy_(mean)
            fragment.pull(weights, self._global, kept=0.0)
        self._settled = True

    def weights(self) -> list[Tensor]:
        """The global weights."""
        return list(self._by_name(self._global).values())

    def shared_state(self) -> dict[str, Tensor]:
        """The outer momentum, where there is any."""
        return {} if self._momentum is None else self._by_name(self._momentum)

    def own_state(self) -> dict[str, Tensor]:
        """This replica's weights."""
        assert self._under_way is None
        return dict(zip(self._names, self._local(), strict=True))

    @torch.no_grad()
    def load_state(self, shared: Tensors, own: Tensors | None) -> None:
        """Without its own weights, a replica goes on from the global ones."""
        for weight, held in zip(self._local(), self.weights(), strict=True):
            held.copy_(weight)
        for name, momentum in self.shared_state().items():
            if name in shared:
                momentum.copy_(shared[name])
        if own is not None:
            for name, weight in zip(self._names, self._local(), strict=True):
                weight.copy_(own[name])

    def close(self) -> None:
        """Let the model's weights alone again."""
        self._inner.close()
        self._host_sum.close()

    def _send(self, fragment: _Fragment, *, due_step: int) -> None:
        moved = fragment.of(self._global) - fragment.gather(self._local())
        # Summed over ranks, which are alike in a replica, this is the mean by share.
        moved /= self._num_ranks
        self._under_way = _UnderWay(fragment, moved, self._start(moved), due_step)

    def _receive(self, arriving: _UnderWay) -> None:
        self._watch.start()
        arriving.wait()
        self._watch.stop()
        fragment, movement = arriving.fragment, arriving.movement
        if self._momentum is not None:
            velocity = fragment.of(self._momentum)
            velocity.mul_(self._outer.momentum).add_(movement)
            movement = movement.add(velocity, alpha=self._outer.momentum)
        fragment.of(self._global).sub_(movement, alpha=self._outer.learning_rate)
        fragment.pull(self._local(), self._global, kept=self._kept)
        self._under_way = None
        self._settled = True

    def _start(self, tensor: Tensor) -> Wait:
        self.bytes_sent += self._host_sum.sent_bytes(tensor.numel())
        return self._host_sum.start(tensor)

    def _local(self) -> list[Tensor]:
        return [weight.detach() for weight in self.module.parameters()]

    def _by_name(self, flat: Tensor) -> dict[str, Tensor]:
        """Parts of a flat tensor in the shapes of the weights; the tensors themselves."""
        weights = self._local()
        parts = torch.split(flat, [weight.numel() for weight in weights])
        shaped = [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]
        return dict(zip(self._names, shaped, strict=True))


@dataclass(frozen=True, slots=True)
class _Fragment:
    """Numbers start to end of all weights laid end to end.

    pieces: what of which weight that is: its index, and where the piece starts and ends in it.
    """

    start: int
    end: int
    pieces: tuple[tuple[int, int, int], ...]

    def of(self, flat: Tensor) -> Tensor:
        """Its part of all numbers laid end to end; the numbers themselves."""
        return flat[self.start : self.end]

    def gather(self, weights: Sequence[Tensor]) -> Tensor:
        """Its numbers in a tensor of their own."""
        return torch.cat(list(self._in(weights)))

    def pull(self, weights: Sequence[Tensor], flat: Tensor, *, kept: float) -> None:
        """Move weights towards the flat ones; they keep this share of what they are."""
        pieces = list(self._in(weights))
        targets = torch.split(self.of(flat), [piece.numel() for piece in pieces])
        torch._foreach_lerp_(pieces, list(targets), 1 - kept)

    def _in(self, weights: Sequence[Tensor]) -> Iterator[Tensor]:
        for index, start, end in self.pieces:
            yield weights[index].view(-1)[start:end]


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A fragment's movement between its sending and the step at which it is waited for."""

    fragment: _Fragment
    movement: Tensor
    wait: Wait
    due_step: int


def _cut(model: nn.Module, count: int) -> list[_Fragment]:
    """All weights in order, in so many equal parts."""
    sizes = [weight.numel() for weight in model.parameters()]
    bounds = [round(sum(sizes) * part / count) for part in range(count + 1)]
    fragments = []
    for start, end in pairwise(bounds):
        pieces, offset = [], 0
        for index, size in enumerate(sizes):
            first, last = max(start - offset, 0), min(end - offset, size)
            if first < last:
                pieces.append((index, first, last))
            offset += size
        fragments.append(_Fragment(start, end, tuple(pieces)))
    return fragments
