"""Seconds and bytes of a step on several ranks, by formula, and the strategy that `auto` picks.

Free of torch. Tc is the compute of a step, S the bytes that are summed, N the ranks (or hosts) of
which each sends and receives at B bytes/s, k the parts in which they travel, alpha the time of one
message, w the work of diloco on all weights:

    T      = 2 (N-1)/N S / B + k 2 (N-1) alpha         ring all-reduce (Patarasuk and Yuan 2009)
    sync   = Tc + max(T - overlap, last part of T)     overlap = 0.9 of backward, which is 2/3 of Tc
    diloco = Tc + (F max(0, T/F - D Tc) + w) / H       H local steps between two exchanges of a
                                                       weight, F fragments, each D steps on its way
                                                       (Douillard et al. 2023, 2025)

Several ranks of a host first sum their gradients in fp32, in every step. A step is the recipe's
whole batch, so that strategies are compared at equal tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

from dragoman.base import units
from dragoman.distributed.wire import (
    BF16_BYTES,
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    FP4_BYTES,
    FP32_BYTES,
    ring_bytes,
)

BACKWARD_SHARE: Final = 2 / 3
"""The share of backward in a step's compute; forward is the other third."""
OVERLAP_SHARE: Final = 0.9
"""The share of backward during which gradients can be on the wire: the first ones are ready only
after a while. Assumed."""
KNOWN_EVERY: Final = 3
KNOWN_HOSTS: Final = 4
"""Up to so many local steps apart, on up to so many hosts, BLEU was measured: 0.1 lower on two and
0.0 on four, of one small model. Eight apart lost 0.9 to 1.8 (benchmarks/strategy_quality.py)."""
NEARLY_FREE: Final = 1.15
"""An exchange that lengthens a step by no more than this factor is left alone."""
_WORTH_IT: Final = 0.98
_MOST_EVERY: Final = 500
_MOST_FRAGMENTS: Final = 16
_OWN_WORK: Final = 0.08
_MARGIN: Final = 1.15
"""Steps and links are not always as fast as when they were measured."""


def bucket_bytes(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """Bytes of each collective of DistributedDataParallel for fp32 gradients of these weights.

    shapes: in the model's order; gradients are complete from its end to its beginning. A bucket
    is closed when it has reached its size; no weight is split.
    """
    buckets = [0]
    for shape in reversed(shapes):
        if buckets[-1] >= (FIRST_BUCKET_BYTES if len(buckets) == 1 else BUCKET_BYTES):
            buckets.append(0)
        buckets[-1] += math.prod(shape) * FP32_BYTES
    return buckets


def ring_s(
    size_bytes: float,
    *,
    num_ranks: int,
    bytes_per_s: float,
    latency_s: float = 0.0,
    num_collectives: int = 1,
) -> float:
    """Seconds of an all-reduce of `size_bytes`, cut into this many collectives."""
    messages = num_collectives * 2 * (num_ranks - 1)
    return ring_bytes(size_bytes, num_ranks=num_ranks) / bytes_per_s + messages * latency_s


def sync_exposed_s(compute_s: float, network_s: float, *, last_share: float) -> float:
    """Seconds of one synchronisation that backward does not hide.

    last_share: the share of the gradients in the last bucket, which is complete only when backward
        ends.
    """
    overlap_s = OVERLAP_SHARE * BACKWARD_SHARE * compute_s
    return max(last_share * network_s, network_s - overlap_s)


def streaming_exposed_s(
    compute_s: float, fragment_s: float, *, sync_every: int, num_fragments: int, delay: int
) -> float:
    """Mean seconds of waiting in a step of streaming DiLoCo.

    fragment_s: synchronisation of one fragment.
    delay: steps that go on meanwhile, at most sync_every / num_fragments.
    """
    assert delay <= sync_every / num_fragments
    return num_fragments * max(0.0, fragment_s - delay * compute_s) / sync_every


@dataclass(frozen=True, slots=True)
class Step:
    """One strategy on certain ranks.

    strategy: none, plain, sync or diloco. compute_s: a step without network. wire_bytes: of a step
    through each host's interface, each direction, the mean over steps. every, fragments, delay:
    those of diloco.
    """

    strategy: str
    compute_s: float
    step_s: float
    wire_bytes: float = 0.0
    every: int = 1
    fragments: int = 1
    delay: int = 0

    @property
    def exposed_s(self) -> float:
        """Seconds of a step that are spent waiting for the network."""
        return self.step_s - self.compute_s

    @property
    def label(self) -> str:
        """The strategy with its numbers."""
        if self.strategy == "diloco":
            return f"diloco H={self.every} F={self.fragments}"
        return {"sync": "sync bf16", "plain": "plain fp32"}.get(self.strategy, self.strategy)


class HostRanks(NamedTuple):
    """The ranks of one host, and the bytes per second of an all-reduce between them."""

    ranks: int
    bytes_per_s: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What decides the time of a step of ranks that train together.

    compute_s: of a step without network, on the slowest rank. shapes: of the trained weights, in
    the model's order. bytes_per_s, latency_s: the link between hosts. micro_batches: of a step;
    gradients travel in the last one. weight_s: work of diloco on a weight from one exchange to the
    next.
    """

    hosts: tuple[HostRanks, ...]
    compute_s: float
    shapes: Sequence[tuple[int, ...]]
    bytes_per_s: float
    latency_s: float = 0.0
    micro_batches: int = 1
    weight_s: float = 0.0

    @cached_property
    def num_weights(self) -> int:
        """The number of trained weights."""
        return sum(map(math.prod, self.shapes))

    @cached_property
    def _buckets(self) -> list[int]:
        return bucket_bytes(self.shapes)

    def plain(self) -> Step:
        """The usual way of other tools: fp32 gradients around one ring of all ranks, each step."""
        size = self.num_weights * FP32_BYTES
        num_ranks, num_hosts = sum(host.ranks for host in self.hosts), len(self.hosts)
        rates = [host.bytes_per_s for host in self.hosts if host.ranks > 1]
        network_s = ring_s(
            size,
            num_ranks=num_ranks,
            bytes_per_s=min([*rates, *[self.bytes_per_s] * (num_hosts > 1)], default=math.inf),
            # Ranks of a host are neighbours, whose messages take no time.
            latency_s=self.latency_s * (num_hosts > 1) * num_hosts / num_ranks,
            num_collectives=len(self._buckets),
        )
        wire_bytes = ring_bytes(size, num_ranks=num_ranks) if num_hosts > 1 else 0.0
        return self._step("plain", self._exposed_s(network_s), wire_bytes)

    def sync(self) -> Step:
        """Sum gradients in every step: inside each host in fp32, then between hosts in bf16."""
        network_s = self._inside_s + self._between_s(BF16_BYTES, len(self._buckets))
        return self._step("sync", self._exposed_s(network_s), self._between_bytes(BF16_BYTES))

    def diloco(
        self, every: int = KNOWN_EVERY, *, fragments: int = KNOWN_EVERY, delay: int = 1
    ) -> Step:
        """Local steps on each host, which exchange each weight, in four bits, every so many."""
        summing_s = self._exposed_s(self._inside_s)
        waits_s = streaming_exposed_s(
            self.compute_s + summing_s,
            self._between_s(FP4_BYTES, fragments) / fragments,
            sync_every=every,
            num_fragments=fragments,
            delay=delay,
        )
        own_s = self.num_weights * self.weight_s / every
        wire_bytes = self._between_bytes(FP4_BYTES) / every
        step = self._step("diloco", summing_s + waits_s + own_s, wire_bytes)
        return replace(step, every=every, fragments=fragments, delay=delay)

    def hidden_diloco(self) -> Step:
        """Local steps with the shortest period that hides the link, of at most 500 steps; diloco's
        own work is then at most 8% of a step."""
        local_s = self.compute_s + self._exposed_s(self._inside_s)
        periods = []
        for fragments in range(1, _MOST_FRAGMENTS + 1):
            hides = _MARGIN * self._between_s(FP4_BYTES, fragments) / local_s
            least = max(hides, self.num_weights * self.weight_s / (_OWN_WORK * local_s), 1)
            delay = min(math.ceil(least / fragments), _MOST_EVERY // fragments)
            periods.append((delay * fragments, -fragments))
        every, parts = min(periods)
        return self.diloco(every, fragments=-parts, delay=every // -parts)

    def is_quality_known(self, step: Step) -> bool:
        """Whether a model is known to learn with this strategy as well as on one rank."""
        return step.strategy != "diloco" or (
            step.every <= KNOWN_EVERY and len(self.hosts) <= KNOWN_HOSTS
        )

    def choose(self) -> tuple[Step, str]:
        """The strategy of `auto` for all these ranks, and why, in one sentence.

        It is `sync` if the exchange costs little, or if nothing faster is known to train as well.
        """
        synced = self.sync()
        why = f"exchanging gradients in every step takes {_times(synced)} the compute alone"
        if synced.step_s <= NEARLY_FREE * synced.compute_s:
            return synced, f"{why}, within {NEARLY_FREE}"
        if len(self.hosts) == 1:
            return synced, f"{why}, and inside one host there is nothing better"
        local, choice = self.diloco(), synced
        if not self.is_quality_known(local):
            why += f"; local steps were measured on up to {KNOWN_HOSTS} hosts"
        elif local.step_s >= synced.step_s:
            why += ", and local steps take no less"
        else:
            choice = local
            why += f", local steps with an exchange every {local.every} {_times(local)}"
        longer = self.hidden_diloco()
        if not self.is_quality_known(longer) and longer.step_s < _WORTH_IT * choice.step_s:
            step_s = units.DURATION.text(longer.step_s)
            why += (
                f"; every {longer.every} a step would take {step_s}, but nobody knows how well a "
                "model learns so"
            )
        return choice, why

    @property
    def _inside_s(self) -> float:
        """Seconds of one sum of gradients, in fp32, among the ranks of each host."""
        size = self.num_weights * FP32_BYTES
        return max(
            ring_s(size, num_ranks=host.ranks, bytes_per_s=host.bytes_per_s) for host in self.hosts
        )

    def _between_s(self, weight_bytes: float, num_collectives: int) -> float:
        """Seconds of an all-reduce of all weights with one rank of each host."""
        return ring_s(
            self.num_weights * weight_bytes,
            num_ranks=len(self.hosts),
            bytes_per_s=self.bytes_per_s,
            latency_s=self.latency_s,
            num_collectives=num_collectives,
        )

    def _between_bytes(self, weight_bytes: float) -> float:
        """Bytes of it through each host's interface, in each direction."""
        return ring_bytes(self.num_weights * weight_bytes, num_ranks=len(self.hosts))

    def _exposed_s(self, network_s: float) -> float:
        """The wait of a step for one synchronisation, which starts in its last micro-batch."""
        return sync_exposed_s(
            self.compute_s / self.micro_batches,
            network_s,
            last_share=self._buckets[-1] / sum(self._buckets),
        )

    def _step(self, strategy: str, waits_s: float, wire_bytes: float) -> Step:
        return Step(strategy, self.compute_s, self.compute_s + waits_s, wire_bytes)


def _times(step: Step) -> str:
    return f"{step.step_s / step.compute_s:.2f} x"
