"""The cost of every strategy of synchronisation on one cluster: bytes and seconds of a step.

A step is the recipe's global batch, so that all strategies are compared at equal tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from dragoman.cluster import step_time
from dragoman.cluster.rates import SHARED_MEMORY, UNKNOWN, Directions, Inside, Link, one_sided
from dragoman.cluster.workload import Workload
from dragoman.distributed import wire

MOST_FRAGMENTS: Final = 16
"""Most fragments of DiLoCo: each has its latency, and its work on the processor."""
MOST_STEP_RATIO: Final = 1.08
"""A strategy with more frequent synchronisations is chosen if its step takes at most this multiple
of the shortest. With three steps between them the loss is closer to that of `sync` than with six
(benchmarks/README.md)."""
SYNC_EVERY: Final = 100
"""Local steps of blocking DiLoCo between synchronisations; the usual figure of its papers."""
MOST_SYNC_EVERY: Final = 500
DELAY_MARGIN: Final = 1.15
"""Steps and links are not always as fast as when they were measured. A step waits for the time
beyond this allowance; a longer period makes the gradients of every step older."""
POWERSGD_RANK: Final = 4
MOST_TARGET_TOKENS: Final = 402_000
"""The largest batch at which a translation model is known to train as well (Ott et al. 2018)."""
LEAST_UPDATES: Final = 10_000
"""Updates: with batches of that size it still took somewhat more than this (the same source)."""
MOST_ACCUMULATION: Final = 16


@dataclass(frozen=True, slots=True)
class Spot:
    """A host that may be taken away at any moment, after mean_s on average, at this price; another
    one replaces it after replacement_s."""

    mean_s: float
    replacement_s: float
    price_per_hour: float | None


@dataclass(frozen=True, slots=True)
class Machine:
    """One host of a plan, whose ranks are all alike.

    alone_s: seconds of a step, with the whole global batch, on one of its ranks while the others
        rest.
    rate, source: the rate from which alone_s was computed, and its source, for people.
    least_s: the least time of a share, however small: a GPU's host needs it to start the kernels.
    is_given: whether a user gave the time as --compute.
    most_shares: ranks among which a batch can be divided; a sentence stays whole.
    shares_processor: its ranks share one processor, so that all together are as fast as one alone.
    spread: the standard deviation of steps over their mean.
    directions: the rates at which its interface sends and receives, as doctor measured them.
    spot: None if it is never taken away.
    """

    ranks: int = 1
    alone_s: float = 0.0
    name: str = "host"
    rate: str = ""
    source: str = "measured"
    unit: str = "rank"
    inside: Inside = SHARED_MEMORY
    least_s: float = 0.0
    least_source: str = ""
    is_given: bool = False
    most_shares: float = math.inf
    shares_processor: bool = False
    spread: float = 0.0
    price_per_hour: float | None = None
    directions: Directions = UNKNOWN
    spot: Spot | None = None

    @property
    def single_s(self) -> float:
        """Seconds of a step on one rank that has the host to itself."""
        return max(self.alone_s, self.least_s)

    def share_s(self, num_ranks: int) -> float:
        """Seconds of arithmetic of a step on each of its ranks, if `num_ranks` share the batch."""
        busy_s = self.alone_s * (self.ranks if self.shares_processor else 1)
        return busy_s / min(num_ranks, self.most_shares)


@dataclass(frozen=True)
class Cluster:
    """Hosts with ranks on them, and the network between them.

    diloco_weight_s: DiLoCo's own work on a weight, from one synchronisation to the next.
    save_bytes_per_s: the rate of the slowest disk of the hosts.

    A plan reads the cached properties thousands of times.
    """

    machines: tuple[Machine, ...]
    link: Link
    diloco_weight_s: float = step_time.DILOCO_WEIGHT_S["gpu"]
    diloco_source: str = step_time.DILOCO_SOURCES["gpu"]
    save_bytes_per_s: float = step_time.SAVE_BYTES_PER_S
    save_source: str = step_time.SAVE_SOURCE

    @classmethod
    def of(
        cls,
        ranks_per_host: Iterable[int],
        link: Link,
        *,
        like: Machine = Machine(),
        diloco_weight_s: float = step_time.DILOCO_WEIGHT_S["gpu"],
    ) -> Cluster:
        """Hosts that differ only in the number of their ranks."""
        machines = tuple(replace(like, ranks=ranks) for ranks in ranks_per_host)
        return cls(machines, link, diloco_weight_s)

    @property
    def ranks_per_host(self) -> tuple[int, ...]:
        """Ranks of each host."""
        return tuple(machine.ranks for machine in self.machines)

    @cached_property
    def num_ranks(self) -> int:
        """Ranks of all hosts together."""
        return sum(self.ranks_per_host)

    @property
    def num_hosts(self) -> int:
        """The number of hosts."""
        return len(self.machines)

    @property
    def fastest_host(self) -> int:
        """The number of the host whose rank is fastest alone, from 0; the first of equal ones."""
        alone_s = [machine.single_s for machine in self.machines]
        return alone_s.index(min(alone_s))

    @property
    def waits(self) -> float:
        """The slowest rank's step over the mean step, if the times of equal ranks vary."""
        spread = max(machine.spread for machine in self.machines)
        return 1 + spread * step_time.largest_of_draws(self.num_ranks)

    @cached_property
    def compute_s(self) -> float:
        """Seconds of a step without network and with equal shares: all wait for the slowest."""
        return max(self._arithmetic_s, self.least_s)

    @property
    def least_s(self) -> float:
        """The least time of a step on all these hosts."""
        return max(machine.least_s for machine in self.machines)

    @property
    def least_decides(self) -> bool:
        """Whether starting the kernels, not the arithmetic, decides the time of a step."""
        return self._arithmetic_s < self.least_s

    @property
    def is_given(self) -> bool:
        """Whether a user measured the compute."""
        return any(machine.is_given for machine in self.machines)

    @property
    def waits_count(self) -> bool:
        """Whether `waits` enters `compute_s`."""
        return self.waits > 1 and not self.least_decides

    @cached_property
    def _arithmetic_s(self) -> float:
        return self.waits * max(machine.share_s(self.num_ranks) for machine in self.machines)

    @property
    def price_per_hour(self) -> float | None:
        """The price of all hosts together; None if one price is not known."""
        return _sum([machine.price_per_hour for machine in self.machines])

    @property
    def spot_price_per_hour(self) -> float | None:
        """The price of all hosts for an hour: the spot price of those that may be taken away."""
        return _sum(
            [
                machine.price_per_hour if machine.spot is None else machine.spot.price_per_hour
                for machine in self.machines
            ]
        )

    @property
    def fastest_rank(self) -> Cluster:
        """One rank by itself, on the fastest host."""
        machine = self.machines[self.fastest_host]
        return replace(self, machines=(replace(machine, ranks=1),))

    def only(self, hosts: Iterable[int]) -> Cluster:
        """This cluster with only the hosts of these numbers, from 0.

        A number beyond the last stands for a host like the first. The slowest direction of all
        chosen hosts limits the link.
        """
        known = self.machines
        chosen = tuple(known[n] if n < len(known) else known[0] for n in hosts)
        slower = [machine.directions.slower_bytes_per_s for machine in chosen]
        return replace(self, machines=chosen, link=self._link_with(min(slower)))

    @property
    def one_sided(self) -> list[Machine]:
        """Hosts that send much more slowly than they receive, or the other way round."""
        numbers = one_sided([machine.directions for machine in self.machines])
        return [self.machines[number] for number in numbers]

    @property
    def without_limits(self) -> Cluster:
        """The same hosts, if each had the rate of its faster direction in both directions."""
        faster = min(machine.directions.faster_bytes_per_s for machine in self.machines)
        machines = tuple(
            replace(
                machine,
                directions=Directions(
                    machine.directions.faster_bytes_per_s, machine.directions.faster_bytes_per_s
                ),
            )
            for machine in self.machines
        )
        return replace(self, machines=machines, link=self._link_with(faster))

    def _link_with(self, bytes_per_s: float) -> Link:
        """The link if the slowest direction had this rate: an all-reduce gets the same share."""
        slowest = min(machine.directions.slower_bytes_per_s for machine in self.machines)
        if math.isinf(slowest) or math.isinf(bytes_per_s) or bytes_per_s == slowest:
            return self.link
        return replace(self.link, bytes_per_s=self.link.bytes_per_s * bytes_per_s / slowest)

    def flat_s(self, size_bytes: float, *, num_collectives: int) -> float:
        """Seconds of an all-reduce over one ring through all ranks, with those of a host in a row.

        Each part of the sum goes around twice; its messages take time only between hosts.
        """
        rates = [machine.inside.bytes_per_s for machine in self.machines if machine.ranks > 1]
        several = self.num_hosts > 1
        return step_time.ring_s(
            size_bytes,
            num_ranks=self.num_ranks,
            bytes_per_s=min([*rates, *[self.link.bytes_per_s] * several], default=math.inf),
            latency_s=self.link.latency_s * several * self.num_hosts / self.num_ranks,
            num_collectives=num_collectives,
        )

    def between_hosts_s(self, size_bytes: float, *, num_collectives: int) -> float:
        """Seconds of an all-reduce with one rank of each host."""
        return step_time.ring_s(
            size_bytes,
            num_ranks=self.num_hosts,
            bytes_per_s=self.link.bytes_per_s,
            latency_s=self.link.latency_s,
            num_collectives=num_collectives,
        )

    def inside_s(self, size_bytes: float) -> float:
        """Seconds to reduce and distribute among the ranks of each host, on the slowest host."""
        return max(
            step_time.ring_s(
                size_bytes, num_ranks=machine.ranks, bytes_per_s=machine.inside.bytes_per_s
            )
            for machine in self.machines
        )

    def flat_bytes(self, size_bytes: float) -> float:
        """Bytes of `flat_s` through each host's interface, in each direction."""
        if self.num_hosts == 1:
            return 0.0
        return wire.ring_bytes(size_bytes, num_ranks=self.num_ranks)

    def between_hosts_bytes(self, size_bytes: float) -> float:
        """Bytes of `between_hosts_s` through each host's interface, in each direction."""
        return wire.ring_bytes(size_bytes, num_ranks=self.num_hosts)

    def diloco_s(self, workload: Workload) -> float:
        """Seconds of DiLoCo's own work from one synchronisation of all weights to the next."""
        return workload.num_parameters * self.diloco_weight_s

    def __str__(self) -> str:
        ranks = self.ranks_per_host
        if len(ranks) == 1:
            return f"{_ranks(ranks[0])} on one host"
        if max(ranks) == 1:
            return f"{len(ranks)} hosts of one rank"
        if len(set(ranks)) == 1:
            return f"{len(ranks)} hosts of {_ranks(ranks[0])}"
        return f"{len(ranks)} hosts of {'+'.join(map(str, ranks))} ranks"


@dataclass(frozen=True, slots=True)
class Prediction:
    """One strategy on one cluster.

    strategy: none, plain, sync, accum, diloco or powersgd; `label` adds its numbers.
    step_s: seconds of a step.
    compute_s: seconds of a step without network.
    wire_bytes: bytes of a step through each host's interface, each direction, averaged over steps.
    every: micro-batches or local steps between synchronisations.
    num_fragments: 0 if nothing is streamed.
    delay: local steps that go on while a fragment is on its way.
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


def plain(cluster: Cluster, workload: Workload) -> Prediction:
    """The usual way of other tools: fp32 gradients around one ring of all ranks, each step."""
    size = workload.num_parameters * wire.FP32_BYTES
    network_s = cluster.flat_s(size, num_collectives=len(step_time.bucket_bytes(workload.shapes)))
    waits_s = _exposed_s(cluster, workload, network_s)
    return _prediction(cluster, "plain", "plain fp32", waits_s, cluster.flat_bytes(size))


def sync(cluster: Cluster, workload: Workload) -> Prediction:
    """Sum gradients in every step: inside each host in fp32, then between hosts in bf16."""
    size = workload.num_parameters * wire.BF16_BYTES
    buckets = step_time.bucket_bytes(workload.shapes)
    network_s = _inside_s(cluster, workload)
    network_s += cluster.between_hosts_s(size, num_collectives=len(buckets))
    waits_s = _exposed_s(cluster, workload, network_s)
    return _prediction(cluster, "sync", "sync bf16", waits_s, cluster.between_hosts_bytes(size))


def accumulate(cluster: Cluster, workload: Workload, *, every: int) -> Prediction:
    """`sync`, but only after this many micro-batches of the recipe's size."""
    synced = sync(cluster, workload)
    waits_s, wire_bytes = synced.exposed_s / every, synced.wire_bytes / every
    return _prediction(cluster, "accum", f"accum K={every}", waits_s, wire_bytes, every=every)


def most_accumulation(workload: Workload) -> int:
    """The largest K in the range known to train as well; below 2 if there is none."""
    by_tokens = MOST_TARGET_TOKENS // workload.target_tokens_per_step
    by_updates = workload.max_steps // LEAST_UPDATES
    return int(min(by_tokens, by_updates, MOST_ACCUMULATION))


def diloco(
    cluster: Cluster, workload: Workload, *, every: int, num_fragments: int = 0, delay: int = 0
) -> Prediction:
    """Local steps on each host; after every `every` steps the hosts sum their movements, once.

    num_fragments: parts that are summed one after the other, each while `delay` steps go on; 0: all
        hosts wait for one sum of everything.
    """
    size = workload.num_parameters * wire.FP4_BYTES
    parts = max(1, num_fragments)
    summing_s = _exposed_s(cluster, workload, _inside_s(cluster, workload))
    waits_s = step_time.streaming_exposed_s(
        cluster.compute_s + summing_s,
        cluster.between_hosts_s(size, num_collectives=parts) / parts,
        sync_every=every,
        num_fragments=parts,
        delay=delay,
    )
    return _prediction(
        cluster,
        "diloco",
        f"diloco H={every}" + (f" F={num_fragments}" if num_fragments else ""),
        summing_s + waits_s + cluster.diloco_s(workload) / every,
        cluster.between_hosts_bytes(size) / every,
        every=every,
        num_fragments=num_fragments,
        delay=delay,
    )


def streaming(cluster: Cluster, workload: Workload) -> Prediction:
    """DiLoCo a fragment at a time, always one on its way; H hides the link if 500 steps suffice.

    Some numbers of fragments F make a step not much longer than the shortest. Among these it takes
    the one with the youngest gradients on arrival: on average they are H/2 steps old when they
    leave, and H/F steps older when they arrive.
    """
    size = workload.num_parameters * wire.FP4_BYTES
    local_s = cluster.compute_s + _exposed_s(cluster, workload, _inside_s(cluster, workload))
    plans = []
    for count in range(1, MOST_FRAGMENTS + 1):
        fragment_s = cluster.between_hosts_s(size, num_collectives=count) / count
        hidden = math.ceil(DELAY_MARGIN * fragment_s / local_s)
        gap = min(max(1, hidden), MOST_SYNC_EVERY // count)
        plans.append(diloco(cluster, workload, every=gap * count, num_fragments=count, delay=gap))
    best_s = min(plan.step_s for plan in plans)
    good = [plan for plan in plans if plan.step_s <= MOST_STEP_RATIO * best_s]
    return min(good, key=lambda plan: plan.every / 2 + plan.delay)


def powersgd(cluster: Cluster, workload: Workload) -> Prediction:
    """Low-rank factors of the gradients in one bucket after backward, each step."""
    size = step_time.powersgd_bytes(workload.shapes, rank=POWERSGD_RANK)
    own_s = cluster.compute_s * step_time.POWERSGD_COMPUTE
    step_s = own_s + cluster.flat_s(size, num_collectives=2)
    label = f"powersgd r={POWERSGD_RANK}"
    return Prediction("powersgd", label, own_s, step_s, cluster.flat_bytes(size))


def _sum(prices: list[float | None]) -> float | None:
    known = [price for price in prices if price is not None]
    return math.fsum(known) if len(known) == len(prices) else None


def _prediction(
    cluster: Cluster, strategy: str, label: str, waits_s: float, wire_bytes: float, **more: int
) -> Prediction:
    compute_s = cluster.compute_s
    return Prediction(strategy, label, compute_s, compute_s + waits_s, wire_bytes, **more)


def _inside_s(cluster: Cluster, workload: Workload) -> float:
    """Seconds of one sum of gradients, in fp32, among the ranks of each host."""
    return cluster.inside_s(workload.num_parameters * wire.FP32_BYTES)


def _exposed_s(cluster: Cluster, workload: Workload, network_s: float) -> float:
    """The wait of a step for one synchronisation, which starts in its last micro-batch."""
    buckets = step_time.bucket_bytes(workload.shapes)
    return step_time.sync_exposed_s(
        cluster.compute_s / workload.micro_batches_per_step,
        network_s,
        last_share=buckets[-1] / sum(buckets),
    )


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
