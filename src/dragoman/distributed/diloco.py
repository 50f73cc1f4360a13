"""`diloco`: replicas train alone, and exchange one fragment of the weights at a time.

DiLoCo (Douillard et al. 2023) with the fragments and the overlap of Streaming DiLoCo (Douillard et
al. 2025). H = `every`, F = `fragments`, tau = `delay`; H and tau are local steps. Every H/F steps
the next fragment is due: each replica sends its share and goes on. tau steps later the sum of all
shares has arrived, and the outer optimizer makes a movement of the global weights from it:

    global = global - movement
    w = w + (global - w as it was sent)

The last line keeps what a replica has learnt in those tau steps, and removes how far it was from
the others before them: the delay-corrected merge of Maziane et al. 2026 (arXiv 2605.20866).
Streaming DiLoCo takes a mean of w and the global weights instead, after which replicas still differ
by half.

`outer` decides which tensor is sent and how it moves the weights. Nothing is in transit at a
settled step, so a checkpoint of that step resumes exactly. With tau = H/F the link is always in
use; the next fragment leaves when the following step begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from dragoman.distributed.config import DilocoConfig
from dragoman.distributed.gradient_sync import GradientSync, Tensors
from dragoman.distributed.host_sum import HostSum, Wait
from dragoman.distributed.outer import (
    Fragment,
    Outer,
    OuterAdam,
    OuterSgd,
    StepRange,
    WeightRow,
    cut,
)

CPU_PART: Final = 2**18
"""Numbers of a part: all that is read and written for them stays in a processor's last cache. With
far fewer, starting each operation would take much of the time. A GPU processes a whole fragment at
once."""


class DilocoSync(GradientSync):
    """One replica, which may be several ranks that sum their gradients in every step.

    inner: the sum among the ranks of this replica.
    host_sum: over all ranks.
    ranks: the number of ranks of each replica, which is its share of the global batch.
    own: the index of this replica.
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
        self._config = config
        self._inner = inner
        self.waits = inner.waits  # among the ranks of a host, and among hosts: never at once
        self._host_sum = host_sum
        self._ranks = list(ranks)
        self.period = config.every
        self._gap = config.every // config.fragments
        self._row = WeightRow(model)
        self._global = self._row.copied()
        self._outer = _outer(config, self._row, ranks, own)
        self.loss_factor = self._outer.loss_factor
        self.rate_factor = self._outer.rate_factor
        self._fragments = cut(self._row.weights(), config.fragments)
        size = CPU_PART if self._global.device.type == "cpu" else self._global.numel()
        self._parts = [fragment.parts(size) for fragment in self._fragments]
        self._sent_at = [0] * config.fragments
        self._due: int | None = None
        self._under_way: _UnderWay | None = None
        self._step = 0
        self._rates = [0.0] * config.fragments
        self._settled = True

    @property
    def settled(self) -> bool:
        """As in `GradientSync`: whether no fragment is in transit: just after one has arrived,
        before the first step, and after the last."""
        return self._settled

    def attach(self, optimizer: torch.optim.Adam) -> None:
        """Give the outer optimizer this optimizer, whose moments it may use."""
        self._outer.attach(optimizer)

    def micro_step(self, *, last: bool) -> AbstractContextManager[None]:
        """The sum among the replica's own ranks; before the first micro-step, a due fragment
        leaves."""
        if self._due is not None:
            self._under_way = self._send(self._due)
        return self._inner.micro_step(last=last)

    @torch.no_grad()
    def after_update(
        self, step: int, *, learning_rate: float, skipped: Tensor | None = None
    ) -> None:
        """Apply the fragment that has arrived, and find the one whose turn it is."""
        self._settled = False
        self._step = step
        self._rates = [summed + learning_rate for summed in self._rates]
        self._outer.step_made(skipped)
        if step % self._gap == 0 and self._config.delay == 0:
            self._under_way = self._send(self._turn(step))
        if self._under_way is not None and (step - self._config.delay) % self._gap == 0:
            self._receive(self._under_way)
        if step % self._gap == 0 and self._config.delay > 0:
            self._due = self._turn(step)

    @torch.no_grad()
    def finish(self) -> None:
        """Take the progress of all replicas into the global weights, which then replace every
        replica's."""
        if self._under_way is not None:
            self._receive(self._under_way)
        for number, fragment in enumerate(self._fragments):
            if self._sent_at[number] < self._step:
                self._take_in(self._send(number), None)
            fragment.copy(fragment.of(self._global), self._row.weights())
        self._settled = True

    def weights(self) -> list[Tensor]:
        """The global weights."""
        return self._row.shaped(self._global)

    def shared_state(self) -> dict[str, Tensor]:
        """The state of the outer optimizer."""
        return self._outer.shared_state()

    def own_state(self) -> dict[str, Tensor]:
        """This replica's weights, the state of its outer optimizer, and when it sent each fragment.

        Also the sum of the learning rates of all steps since, and the ranks of all replicas, for
        `wrote`.
        """
        assert self._under_way is None
        weights = dict(zip(self._row.names, self._row.weights(), strict=True))
        numbers = {
            _SENT_AT: torch.tensor(self._sent_at),
            _RATES: torch.tensor(self._rates, dtype=torch.float64),
            _RANKS: torch.tensor(self._ranks),
        }
        return weights | self._outer.own_state() | numbers

    def wrote(self, own: Tensors) -> bool:
        """Whether this replica wrote the state, judged by its names, fragments and ranks."""
        mine = self.own_state()
        return own.keys() == mine.keys() and (
            torch.equal(own[_RANKS], mine[_RANKS]) and own[_SENT_AT].shape == mine[_SENT_AT].shape
        )

    @torch.no_grad()
    def load_state(self, shared: Tensors, own: Tensors | None, *, step: int) -> None:
        """As in `GradientSync`; without its own state, a replica starts from the global weights."""
        self._step = step
        torch._foreach_copy_(self.weights(), self._row.weights())
        self._outer.load_state(shared, own)
        self._sent_at = [step] * len(self._fragments)
        if own is not None:
            self._sent_at, self._rates = own[_SENT_AT].tolist(), own[_RATES].tolist()
            for name, weight in zip(self._row.names, self._row.weights(), strict=True):
                weight.copy_(own[name])
        turn = self._turn(step)
        if step % self._gap == 0 and self._sent_at[turn] < step:
            self._due = turn

    def close(self) -> None:
        """Remove the hooks from the model's weights, and close the sums."""
        self._inner.close()
        self._host_sum.close()

    def _turn(self, step: int) -> int:
        """Which fragment is due after a step that is a multiple of H/F."""
        return (step // self._gap - 1) % len(self._fragments)

    @torch.no_grad()
    def _send(self, number: int) -> _UnderWay:
        parts, weights = self._parts[number], self._row.weights()
        share = torch.empty_like(self._fragments[number].of(self._global))
        sent = []
        for part, out in zip(parts, _split(share, parts), strict=True):
            sent.append(part.gather(weights))
            self._outer.share(part, part.of(self._global), sent[-1], out=out)
        share = share.to(self._host_sum.dtype)
        lost = torch.zeros_like(share) if self._host_sum.packs else None
        self.bytes_sent += self._host_sum.sent_bytes(share.numel())
        steps = self._step - self._sent_at[number]
        rate = self._rates[number] / max(1, steps)
        self._sent_at[number], self._rates[number] = self._step, 0.0
        self._due = None
        wait = self._host_sum.start(share, lost=lost)
        return _UnderWay(parts, sent, share, lost, wait, steps, self._step, rate)

    def _receive(self, arriving: _UnderWay) -> None:
        self._take_in(arriving, self._row.weights())
        self._under_way = None
        self._settled = True

    def _take_in(self, arriving: _UnderWay, weights: list[Tensor] | None) -> None:
        """Once the sum has arrived, move the global weights and this replica's `weights`.

        weights: None at the end of training, when they become the global ones.
        """
        self.waits.start()
        arriving.wait()
        self.waits.stop()
        interval = StepRange(arriving.steps, arriving.end, self._step, arriving.learning_rate)
        decays = self._outer.decays(interval)
        lower = self._outer.lower if weights else self._outer.lower_last
        totals = _split(arriving.total.to(self._global.dtype), arriving.parts)
        losses = None if arriving.lost is None else _split(arriving.lost, arriving.parts)
        for number, part in enumerate(arriving.parts):
            now = part.of(self._global)
            if decays is not None:
                part.scale(now, decays)
            lower(part, now, totals[number], interval)
            if losses is not None:
                self._outer.keep(part, losses[number])
            if weights:
                # Progress since the sending is kept, on top of the progress of all before it.
                sent = arriving.sent[number]
                part.add(torch.sub(now, sent, out=sent), weights)


_SENT_AT: Final = "sent_at"
_RATES: Final = "learning_rates"
_RANKS: Final = "ranks_of_replicas"
"""No weight has one of these three names: a weight's name has a dot."""


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A fragment between its sending and its arrival, in its parts.

    sent: this replica's weights at the sending.
    total: its own share, later the sum of all.
    lost: the rounding errors of both on this rank.
    steps: since the fragment was last sent.
    end: the last of these steps.
    learning_rate: the mean over these steps.
    """

    parts: list[Fragment]
    sent: list[Tensor]
    total: Tensor
    lost: Tensor | None
    wait: Wait
    steps: int
    end: int
    learning_rate: float


def _split(numbers: Tensor, parts: Sequence[Fragment]) -> tuple[Tensor, ...]:
    """Views of a fragment's numbers, part by part."""
    return torch.split(numbers, [part.end - part.start for part in parts])


def _outer(config: DilocoConfig, row: WeightRow, ranks: Sequence[int], own: int) -> Outer:
    factor = sum(ranks) / ranks[own]
    if config.outer == "adam":
        return OuterAdam(row, ranks=ranks[own], factor=factor)
    return OuterSgd(
        row,
        rate=config.outer_learning_rate,
        momentum=config.outer_momentum,
        ranks=sum(ranks),
        factor=factor,
    )
