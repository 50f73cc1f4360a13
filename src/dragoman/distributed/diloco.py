"""`diloco`: replicas train by themselves and average a fragment of the weights now and then.

DiLoCo (Douillard et al. 2023) with the fragments and the overlap of Streaming DiLoCo (Douillard et
al. 2025). H = `every`, F = `fragments`, tau = `delay`; H and tau are local steps. Every H/F steps
the next fragment is due: each replica sends by how much its weights w have moved away from the
global ones, and goes on; tau steps later the mean movement has arrived:

    d = mean over replicas of (global - w)       taken when it was sent
    v = momentum * v + d                         the outer optimizer, SGD with Nesterov's momentum
    global = global - rate * (d + momentum * v)
    w = w + (global - w as it was sent)

The last line keeps what a replica has learned in those tau steps and nothing of what set it apart
before: the delay-corrected merge of Maziane et al. 2026 (arXiv 2605.20866). Streaming DiLoCo takes
a mean of w and the global weights instead, by which replicas stay half apart.

A fragment is a range of all weights laid end to end, so that fragments are equal to the byte.
Nothing is on its way at a settled step: what a checkpoint holds there goes on exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from dragoman.distributed.config import DilocoConfig
from dragoman.distributed.host_sum import HostSum, Wait
from dragoman.distributed.strategy import GradientSync, Stopwatch, Tensors


class DilocoSync(GradientSync):
    """One replica, which may be several ranks that sum their gradients in every step.

    inner: how the ranks of this replica do so. host_sum: over all ranks. ranks: how many each
    replica has, which is its share of the global batch; a movement counts by it. own: which replica
    this is.
    """

    own_optimizer = True

    def __init__(
        self,
        model: nn.Module,
        config: DilocoConfig,
        *,
        inner: GradientSync,
        host_sum: HostSum,
        ranks: Sequence[int],
        own: int,
    ) -> None:
        super().__init__(model)
        self._num_ranks = sum(ranks)
        self.loss_factor = self._num_ranks / ranks[own]
        self._names = [name for name, _ in model.named_parameters()]
        self._config = config
        self._inner = inner
        self._host_sum = host_sum
        self._gap = config.every // config.fragments
        self._delay = config.delay
        self._global = torch.cat([weight.detach().flatten() for weight in model.parameters()])
        self._momentum = torch.zeros_like(self._global) if self._config.outer_momentum else None
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
        if step % self._gap == 0:
            turn = (step // self._gap - 1) % len(self._fragments)
            self._under_way = self._start(self._fragments[turn])
        if self._under_way is not None and step % self._gap == self._delay:
            self._receive(self._under_way)

    @torch.no_grad()
    def finish(self) -> None:
        """The global weights become the plain mean of the replicas', and the replicas' too."""
        if self._under_way is not None:
            self._receive(self._under_way)
        for fragment in self._fragments:
            last = self._start(fragment)
            fragment.of(self._global).sub_(self._arrived(last))
            fragment.copy(self._global, self._local())
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

    def _start(self, fragment: _Fragment) -> _UnderWay:
        sent = fragment.gather(self._local())
        # Summed over ranks, which are alike in a replica, this is the mean by share.
        moved = (fragment.of(self._global) - sent).div_(self._num_ranks).to(self._host_sum.dtype)
        self.bytes_sent += self._host_sum.sent_bytes(moved.numel())
        return _UnderWay(fragment, sent, moved, self._host_sum.start(moved))

    def _arrived(self, arriving: _UnderWay) -> Tensor:
        """The mean movement, as soon as it is there."""
        self._watch.start()
        arriving.wait()
        self._watch.stop()
        return arriving.movement.to(self._global.dtype)

    def _receive(self, arriving: _UnderWay) -> None:
        fragment, movement = arriving.fragment, self._arrived(arriving)
        if self._momentum is not None:
            velocity = fragment.of(self._momentum)
            velocity.mul_(self._config.outer_momentum).add_(movement)
            movement = movement.add(velocity, alpha=self._config.outer_momentum)
        fragment.of(self._global).sub_(movement, alpha=self._config.outer_learning_rate)
        # What has been learned since it was sent is kept, on top of what all have learned before.
        ahead = torch.sub(fragment.of(self._global), arriving.sent, out=arriving.sent)
        fragment.add(ahead, self._local())
        self._under_way = None
        self._settled = True

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

    def copy(self, flat: Tensor, weights: Sequence[Tensor]) -> None:
        """Its part of all numbers laid end to end becomes the weights'."""
        for piece, numbers in self._pairs(self.of(flat), weights):
            piece.copy_(numbers)

    def add(self, numbers: Tensor, weights: Sequence[Tensor]) -> None:
        """Numbers of its own size are added to the weights."""
        for piece, difference in self._pairs(numbers, weights):
            piece.add_(difference)

    def _pairs(self, numbers: Tensor, weights: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        pieces = list(self._in(weights))
        return zip(pieces, torch.split(numbers, [one.numel() for one in pieces]), strict=True)

    def _in(self, weights: Sequence[Tensor]) -> Iterator[Tensor]:
        for index, start, end in self.pieces:
            yield weights[index].view(-1)[start:end]


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A fragment between its sending and its arrival.

    sent: this replica's weights then. movement: its own share of the mean, then the mean.
    """

    fragment: _Fragment
    sent: Tensor
    movement: Tensor
    wait: Wait


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
