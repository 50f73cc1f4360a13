"""What every strategy of synchronisation costs on one cluster: bytes and seconds of a step.

A step is the recipe's global batch, so that all strategies are compared at equal tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from dragoman.base import units
from dragoman.cluster import step_time
from dragoman.cluster.links import Layout, Link
from dragoman.cluster.throughput import Device
from dragoman.cluster.workload import Workload

MOST_FRAGMENTS: Final = 16
"""Each has its latency, and its work on the processor."""
MOST_STEP_RATIO: Final = 1.08
"""To the shortest step, for younger gradients. Four replicas had a loss of 2.978 after 300 steps
with six (in int8) from one synchronisation to the next, of 2.763 with three (in four bits), `sync`
2.665; quality to the end of a training is measured with three (benchmarks/README.md)."""
SYNC_EVERY: Final = 100
"""Local steps of blocking DiLoCo between synchronisations; the usual figure of its papers."""
MOST_SYNC_EVERY: Final = 500
DELAY_MARGIN: Final = 1.15
"""Steps and links are not always as fast as they were when they were measured. Where one is slower
than this allows for, a step waits for the difference; a longer period costs in every step, as its
gradients are older."""
POWERSGD_RANK: Final = 4
MOST_TARGET_TOKENS: Final = 402_000
"""The largest batch at which a translation model is known to train as well (Ott et al. 2018)."""
LEAST_UPDATES: Final = 10_000
"""With batches of that size it still took somewhat more updates than this (the same)."""
MOST_ACCUMULATION: Final = 16


@dataclass(frozen=True, slots=True)
class Compute:
    """Seconds of a step without any network.

    alone_s: on one rank that does the whole global batch; the slowest, where they differ.
    least_s: below it no rank goes: one sentence of each micro-batch, or what a GPU takes to start.
    unit: what a rank runs on, for people.
    alone_on_s: the same as alone_s on a rank of each host; empty if they are alike.
    sharing: ranks of each host that share its processor, while alone_s is that of one of them
        with all at work; one number if hosts are alike, empty if each rank has its own device.
    spread: how unlike steps of like ranks are, as a standard deviation over the mean.
    """

    alone_s: float
    source: str
    least_s: float = 0.0
    unit: str = "rank"
    alone_on_s: tuple[float, ...] = ()
    sharing: tuple[int, ...] = ()
    spread: float = 0.0

    @property
    def fastest_host(self) -> int:
        """The number of the host whose rank is fastest alone, from 0; of equal ones the first."""
        alone_s = [self._undisturbed_s(number) for number in range(max(1, len(self.alone_on_s)))]
        return alone_s.index(min(alone_s))

    @property
    def single_s(self) -> float:
        """A step on one rank that has the fastest host to itself."""
        return max(self._undisturbed_s(self.fastest_host), self.least_s)

    def step_s(self, num_ranks: int) -> float:
        """On this many ranks with equal shares of the batch: all wait for the slowest."""
        waits = 1 + self.spread * step_time.largest_of_draws(num_ranks)
        return max(self.alone_s / num_ranks * waits, self.least_s)

    def _undisturbed_s(self, number: int) -> float:
        alone_s = self.alone_on_s[number] if self.alone_on_s else self.alone_s
        if not self.sharing:
            return alone_s
        return alone_s / self.sharing[number if number < len(self.sharing) else 0]

    def on_host(self, number: int) -> Compute:
        """Of the ranks of one host, which have nobody else to wait for.

        Hosts that are not there yet are like the first.
        """
        if not self.alone_on_s:
            return self
        number = number if number < len(self.alone_on_s) else 0
        sharing = self.sharing[number : number + 1]
        return replace(self, alone_s=self.alone_on_s[number], alone_on_s=(), sharing=sharing)

    @classmethod
    def on(cls, devices: Sequence[Device], workload: Workload, layout: Layout) -> Compute:
        """Of hosts with these devices: one each, or one for all.

        The ranks of a host share its processor: `flop_per_s` of a CPU is that of the whole host.
        """
        on_cpu = devices[0].name == "cpu"
        sharing = layout.ranks_per_host if on_cpu else ()
        if len(set(sharing)) > 1 or len(devices) > 1:
            devices = [devices[n % len(devices)] for n in range(layout.num_hosts)]
        ranks = [sharing[number] if sharing else 1 for number in range(len(devices))]
        alone_on_s = tuple(
            workload.flop_per_step * count / one.flop_per_s
            for one, count in zip(devices, ranks, strict=True)
        )
        alike = len(set(alone_on_s)) == 1
        slowest, fastest = (
            devices[alone_on_s.index(extreme(alone_on_s))] for extreme in (max, min)
        )
        source = _rated(slowest)
        if slowest.flop_per_s != fastest.flop_per_s:
            source += f", which all wait for; the fastest is {_rated(fastest)}"
        if max(sharing, default=1) > 1:
            source += f"; {max(sharing)} ranks of one host share its processor"
        return cls(
            max(alone_on_s),
            source,
            max(slowest.least_step_s, max(alone_on_s) / workload.rows_per_micro_batch),
            "CPU" if on_cpu else "GPU",
            () if alike else alone_on_s,
            sharing,
            0.0 if on_cpu else step_time.GPU_SPREAD,
        )


@dataclass(frozen=True, slots=True)
class Cluster:
    """Ranks on hosts, and the network between them.

    diloco_weight_s: DiLoCo's own work on a weight, from one synchronisation to the next.
    """

    layout: Layout
    link: Link
    diloco_weight_s: float = step_time.DILOCO_WEIGHT_S["gpu"]

    def flat_s(self, size_bytes: float, *, num_collectives: int) -> float:
        """All-reduce over one ring through all ranks, deaf to which of them share a host."""
        return self._ring_s(size_bytes, self.layout.num_ranks, num_collectives)

    def between_hosts_s(self, size_bytes: float, *, num_collectives: int) -> float:
        """All-reduce with one rank of each host."""
        if self.layout.num_hosts == 1:
            return 0.0
        return self._ring_s(size_bytes, self.layout.num_hosts, num_collectives)

    def inside_s(self, size_bytes: float) -> float:
        """Reduce and distribute among the ranks of the host that has the most."""
        return step_time.ring_s(
            size_bytes,
            num_ranks=self.layout.most_ranks,
            bytes_per_s=self.link.inside.bytes_per_s,
        )

    def flat_bytes(self, size_bytes: float) -> float:
        """Through each host's interface, each direction, in `flat_s`."""
        if self.layout.num_hosts == 1:
            return 0.0
        return step_time.ring_bytes(size_bytes, num_ranks=self.layout.num_ranks)

    def between_hosts_bytes(self, size_bytes: float) -> float:
        """Through each host's interface, each direction, in `between_hosts_s`."""
        return step_time.ring_bytes(size_bytes, num_ranks=self.layout.num_hosts)

    def diloco_s(self, workload: Workload) -> float:
        """DiLoCo's own work from one synchronisation of all weights to the next."""
        return workload.num_parameters * self.diloco_weight_s

    def _ring_s(self, size_bytes: float, num_ranks: int, num_collectives: int) -> float:
        one_host = self.layout.num_hosts == 1
        return step_time.ring_s(
            size_bytes,
            num_ranks=num_ranks,
            bytes_per_s=self.link.inside.bytes_per_s if one_host else self.link.bytes_per_s,
            latency_s=0.0 if one_host else self.link.latency_s,
            num_collectives=num_collectives,
        )


@dataclass(frozen=True, slots=True)
class Prediction:
    """One strategy on one cluster.

    strategy: none, plain, sync, accum, diloco or powersgd; `label` says it with its numbers.
    step_s: seconds of a step; compute_s: of it without any network. wire_bytes: through each
    host's interface, each direction, averaged over steps. every: micro-batches or local steps
    from one synchronisation to the next. num_fragments: 0 where nothing is streamed. delay: local
    steps that go on while a fragment is on its way.
    """

    strategy: str
    label: str
    compute_s: float
    step_s: float
    wire_bytes: float
    every: int = 1
    num_fragments: int = 0
    delay: int = 0

    @property
    def exposed_s(self) -> float:
        """Seconds of a step that are spent waiting for the network."""
        return self.step_s - self.compute_s


def plain(cluster: Cluster, workload: Workload, compute_s: float) -> Prediction:
    """What others do: fp32 gradients around one ring of all ranks, each step."""
    size = workload.num_parameters * step_time.FP32_BYTES
    buckets = step_time.bucket_bytes(workload.shapes)
    network_s = cluster.flat_s(size, num_collectives=len(buckets))
    return Prediction(
        "plain",
        "plain fp32",
        compute_s,
        compute_s + _exposed_s(workload, compute_s, network_s),
        cluster.flat_bytes(size),
    )


def sync(cluster: Cluster, workload: Workload, compute_s: float) -> Prediction:
    """Gradients each step, bf16 between hosts; reduced inside each host first, in fp32."""
    exposed_s, wire_bytes = _bf16(cluster, workload, compute_s)
    return Prediction("sync", "sync bf16", compute_s, compute_s + exposed_s, wire_bytes)


def accumulate(cluster: Cluster, workload: Workload, compute_s: float, *, every: int) -> Prediction:
    """`sync`, but only after every so many micro-batches of the recipe's size."""
    exposed_s, wire_bytes = _bf16(cluster, workload, compute_s)
    return Prediction(
        "accum",
        f"accum K={every}",
        compute_s,
        compute_s + exposed_s / every,
        wire_bytes / every,
        every,
    )


def most_accumulation(workload: Workload) -> int:
    """The largest K in the range known to train as well; below 2 there is none."""
    by_tokens = MOST_TARGET_TOKENS // workload.target_tokens_per_step
    by_updates = workload.max_steps // LEAST_UPDATES
    return int(min(by_tokens, by_updates, MOST_ACCUMULATION))


def diloco(cluster: Cluster, workload: Workload, compute_s: float, *, every: int) -> Prediction:
    """Local steps on each host; every so many of them the hosts wait for their average."""
    size, network_s, local_s = _movements(cluster, workload, compute_s, 1)
    own_s = cluster.diloco_s(workload)
    return Prediction(
        "diloco",
        f"diloco H={every}",
        compute_s,
        local_s + (network_s + own_s) / every,
        cluster.between_hosts_bytes(size) / every,
        every,
    )


def streaming(cluster: Cluster, workload: Workload, compute_s: float) -> Prediction:
    """DiLoCo a fragment at a time, always one on its way, with the H that hides the link.

    Of the numbers of fragments F that with which gradients are youngest when they are taken in: on
    average half of H steps old when they leave, and H/F more when they arrive. Of those
    whose steps are not much longer than the shortest.
    """
    counts = range(1, MOST_FRAGMENTS + 1)
    plans = [_streamed(cluster, workload, compute_s, count) for count in counts]
    best_s = min(plan.step_s for plan in plans)
    good = [plan for plan in plans if plan.step_s <= MOST_STEP_RATIO * best_s]
    return min(good, key=lambda plan: plan.every / 2 + plan.delay)


def _streamed(
    cluster: Cluster, workload: Workload, compute_s: float, num_fragments: int
) -> Prediction:
    size, network_s, local_s = _movements(cluster, workload, compute_s, num_fragments)
    fragment_s = network_s / num_fragments
    hidden = math.ceil(DELAY_MARGIN * fragment_s / local_s)
    gap = min(max(1, hidden), MOST_SYNC_EVERY // num_fragments)
    every = gap * num_fragments
    exposed_s = step_time.streaming_exposed_s(
        local_s, fragment_s, sync_every=every, num_fragments=num_fragments, delay=gap
    )
    return Prediction(
        "diloco",
        f"diloco H={every} F={num_fragments}",
        compute_s,
        local_s + exposed_s + cluster.diloco_s(workload) / every,
        cluster.between_hosts_bytes(size) / every,
        every,
        num_fragments,
        gap,
    )


def powersgd(cluster: Cluster, workload: Workload, compute_s: float) -> Prediction:
    """Low-rank factors of the gradients in one bucket after backward, each step."""
    size = step_time.powersgd_bytes(workload.shapes, rank=POWERSGD_RANK)
    own_s = compute_s * step_time.POWERSGD_COMPUTE
    return Prediction(
        "powersgd",
        f"powersgd r={POWERSGD_RANK}",
        own_s,
        own_s + cluster.flat_s(size, num_collectives=2),
        cluster.flat_bytes(size),
    )


def _rated(device: Device) -> str:
    return f"{device.name} at {units.FLOP_RATE.text(device.flop_per_s)} ({device.source})"


def _bf16(cluster: Cluster, workload: Workload, compute_s: float) -> tuple[float, float]:
    """Exposed seconds and bytes of one synchronisation of gradients, bf16 between hosts."""
    size = workload.num_parameters * step_time.BF16_BYTES
    buckets = step_time.bucket_bytes(workload.shapes)
    between_s = cluster.between_hosts_s(size, num_collectives=len(buckets))
    inside_s = cluster.inside_s(workload.num_parameters * step_time.FP32_BYTES)
    network_s = inside_s + between_s
    return _exposed_s(workload, compute_s, network_s), cluster.between_hosts_bytes(size)


def _exposed_s(workload: Workload, compute_s: float, network_s: float) -> float:
    """What a step waits for one synchronisation, which starts in its last micro-batch."""
    buckets = step_time.bucket_bytes(workload.shapes)
    return step_time.sync_exposed_s(
        compute_s / workload.micro_batches_per_step,
        network_s,
        last_share=buckets[-1] / sum(buckets),
    )


def _movements(
    cluster: Cluster, workload: Workload, compute_s: float, num_fragments: int
) -> tuple[float, float, float]:
    """Of DiLoCo: bytes of all fragments in four bits, seconds to sum them, and of a local step."""
    size = workload.num_parameters * step_time.FP4_BYTES
    inside_s = cluster.inside_s(workload.num_parameters * step_time.FP32_BYTES)
    network_s = cluster.between_hosts_s(size, num_collectives=num_fragments)
    return size, network_s, compute_s + _exposed_s(workload, compute_s, inside_s)
