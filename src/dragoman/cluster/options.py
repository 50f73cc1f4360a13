"""Every way to train a run on certain hosts, in hours and money.

The formulas are in distributed/step_time.py, the speeds of devices and links in rates.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from dragoman.base import units
from dragoman.cluster import rates
from dragoman.cluster.rates import SHARED_MEMORY, UNKNOWN, Directions, Link
from dragoman.cluster.workload import Workload
from dragoman.distributed.step_time import KNOWN_EVERY, Exchange, HostRanks, Step

RESTART_S: Final = 37.0
"""Seconds from a host's loss until the others train again (docs/how-to/two-machines.md)."""
_PORTS: Final = (1e9, 10e9)
_FEW_NAMES: Final = 3


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
    on_gpu: otherwise its ranks share one processor, so that all together are as fast as one alone.
    together: the speed of several ranks over that of as many single ones.
    directions: the rates at which its interface sends and receives, as doctor measured them.
    spot: None if it is never taken away.
    """

    ranks: int = 1
    alone_s: float = 0.0
    name: str = "host"
    rate: str = ""
    source: str = "measured"
    on_gpu: bool = True
    least_s: float = 0.0
    together: float = 1.0
    inside: Link = SHARED_MEMORY
    price_per_hour: float | None = None
    directions: Directions = UNKNOWN
    spot: Spot | None = None

    @property
    def unit(self) -> str:
        """The device of a rank, in words."""
        return "GPU" if self.on_gpu else "CPU"

    def share_s(self, num_shares: float) -> float:
        """Seconds of a step on each of its ranks, if the batch has so many shares."""
        busy_s = self.alone_s * (1 if self.on_gpu else self.ranks)
        return max(busy_s / num_shares / (self.together if num_shares > 1 else 1), self.least_s)


@dataclass(frozen=True)
class Cluster:
    """Hosts with ranks on them, the network between them, and the run that they train.

    diloco_weight_s: DiLoCo's own work on a weight, from one exchange to the next.
    """

    workload: Workload
    machines: tuple[Machine, ...]
    link: Link
    diloco_weight_s: float = 0.0
    diloco_source: str = ""

    @property
    def ranks_per_host(self) -> tuple[int, ...]:
        """Ranks of each host."""
        return tuple(machine.ranks for machine in self.machines)

    @property
    def num_ranks(self) -> int:
        """Ranks of all hosts together."""
        return sum(self.ranks_per_host)

    @property
    def num_hosts(self) -> int:
        """The number of hosts."""
        return len(self.machines)

    @property
    def num_shares(self) -> float:
        """Parts of a batch that ranks compute at the same time; a sentence stays whole."""
        return min(self.num_ranks, self.workload.rows_per_micro_batch)

    @cached_property
    def exchange(self) -> Exchange:
        """The same for the formulas: all ranks have equal shares and wait for the slowest."""
        return Exchange(
            hosts=tuple(HostRanks(one.ranks, one.inside.bytes_per_s) for one in self.machines),
            compute_s=max(machine.share_s(self.num_shares) for machine in self.machines),
            shapes=self.workload.shapes,
            bytes_per_s=self.link.bytes_per_s,
            latency_s=self.link.latency_s,
            micro_batches=self.workload.micro_batches_per_step,
            weight_s=self.diloco_weight_s,
        )

    @property
    def price_per_hour(self) -> float | None:
        """The price of all hosts together; None if one price is not known."""
        return _sum(machine.price_per_hour for machine in self.machines)

    @property
    def spots(self) -> list[Spot]:
        """The terms of each host that may be taken away."""
        return [machine.spot for machine in self.machines if machine.spot is not None]

    @property
    def interruption_s(self) -> float:
        """Mean seconds from one interruption of any host to the next; infinite without spots."""
        rate = math.fsum(1 / spot.mean_s for spot in self.spots)
        return 1 / rate if rate else math.inf

    @property
    def spot_price_per_hour(self) -> float | None:
        """The price of all hosts, the spot price of those that may be taken away."""
        return _sum(
            one.spot.price_per_hour if one.spot else one.price_per_hour for one in self.machines
        )

    @property
    def fastest_rank(self) -> Cluster:
        """One rank by itself, on the host where that is fastest."""
        fastest = min(self.machines, key=lambda machine: replace(machine, ranks=1).share_s(1))
        return replace(self, machines=(replace(fastest, ranks=1),))

    @property
    def one_sided(self) -> list[Machine]:
        """Hosts that send much more slowly than they receive, or the other way round."""
        numbers = rates.one_sided([machine.directions for machine in self.machines])
        return [self.machines[number] for number in numbers]

    def only(self, machines: Iterable[Machine]) -> Cluster:
        """Some of the hosts; the slowest direction of these limits the link."""
        chosen = tuple(machines)
        slowest = min(machine.directions.slower_bytes_per_s for machine in chosen)
        return replace(self, machines=chosen, link=self.link_at(slowest))

    def link_at(self, bytes_per_s: float) -> Link:
        """The link if the slowest direction had this rate: an all-reduce gets the same share."""
        slowest = min(machine.directions.slower_bytes_per_s for machine in self.machines)
        if math.isinf(slowest) or math.isinf(bytes_per_s):
            return self.link
        return replace(self.link, bytes_per_s=self.link.bytes_per_s * bytes_per_s / slowest)

    def __str__(self) -> str:
        ranks = self.ranks_per_host
        each = f"{ranks[0]} rank{'s' * (ranks[0] > 1)}"
        if len(ranks) == 1:
            return f"{each} on one host"
        if len(set(ranks)) > 1:
            each = f"{'+'.join(map(str, ranks))} ranks"
        return f"{len(ranks)} hosts of {each}"


@dataclass(frozen=True, slots=True)
class Option:
    """One way to train: hosts, the link between them and a strategy, for the whole run.

    name: for people, such as `alpha alone`. is_at_hand: the hosts have this link.
    """

    name: str
    cluster: Cluster
    step: Step
    is_at_hand: bool = True

    @property
    def run_s(self) -> float:
        """Seconds of training, without preparation, validation and saving."""
        return self.step.step_s * self.cluster.workload.max_steps

    @property
    def price(self) -> float | None:
        """The price of `run_s`; None if a host's price is not known."""
        return _price(self.cluster.price_per_hour, self.run_s)

    @property
    def host_s(self) -> float:
        """Seconds of all hosts together."""
        return self.cluster.num_hosts * self.run_s

    @property
    def is_quality_known(self) -> bool:
        """Whether a model is known to learn as well as on one rank."""
        return self.cluster.exchange.is_quality_known(self.step)

    @property
    def is_choice(self) -> bool:
        """Whether a plan may recommend it."""
        return self.is_at_hand and self.is_quality_known and self.step.strategy != "plain"

    @property
    def interrupted_s(self) -> float:
        """The expected seconds if hosts are taken away at any moment; infinite if the run hardly
        ever gets to a checkpoint.

        Each interruption costs the restart and, on average, half of the work between two
        checkpoints.
        """
        cluster, workload = self.cluster, self.cluster.workload
        lost_s = RESTART_S + max((one.replacement_s for one in cluster.spots), default=0.0)
        lost_s += min(workload.save_every_steps, workload.max_steps) * self.step.step_s / 2
        share = lost_s / cluster.interruption_s
        return self.run_s / (1 - share) if share < 1 else math.inf

    @property
    def interrupted_price(self) -> float | None:
        """The price of `interrupted_s`, with the spot price of hosts that may be taken away."""
        return _price(self.cluster.spot_price_per_hour, self.interrupted_s)


def options(cluster: Cluster) -> Iterator[Option]:
    """Every way to train, the simplest first."""
    alone = cluster.fastest_rank
    unit = alone.machines[0].unit
    name = f"one {unit} alone" if cluster.num_ranks > 1 else f"this {unit}"
    step_s = alone.exchange.compute_s
    yield Option(name, alone, Step("none", step_s, step_s))
    if cluster.num_ranks == 1:
        return
    for fewer in _fewer_hosts(cluster):
        names = [machine.name for machine in fewer.machines]
        who = f"{len(names)} hosts" if len(names) > _FEW_NAMES else " and ".join(names)
        yield Option(f"{who} alone", fewer, fewer.exchange.sync())
    everyone = "all hosts" if cluster.num_hosts > 1 else f"all {cluster.num_ranks} {unit}s"
    exchange = cluster.exchange
    yield Option(everyone, cluster, exchange.sync())
    if cluster.num_hosts > 1:
        yield Option(everyone, cluster, exchange.diloco())
        longer = exchange.hidden_diloco()
        if longer.every > KNOWN_EVERY:
            yield Option(everyone, cluster, longer)
        for name, link in _faster_links(cluster):
            faster = replace(cluster, link=link)
            yield Option(name, faster, faster.exchange.sync(), is_at_hand=False)
    yield Option("other tools", cluster, exchange.plain())


def _faster_links(cluster: Cluster) -> Iterator[tuple[str, Link]]:
    for bits_per_s in _PORTS:
        port = replace(Link.nominal(bits_per_s), latency_s=cluster.link.latency_s)
        if port.bytes_per_s > cluster.link.bytes_per_s * 1.05:
            yield f"{units.BIT_RATE.text(bits_per_s)} ports", port
    if cluster.one_sided:
        faster = min(machine.directions.faster_bytes_per_s for machine in cluster.machines)
        yield "no slow direction", cluster.link_at(faster)


def _fewer_hosts(cluster: Cluster) -> list[Cluster]:
    """Hosts that may be faster without the others, each group with several ranks: one host of each
    kind, the faster hosts, and the hosts that send as fast as they receive."""
    machines, limited = cluster.machines, cluster.one_sided
    kinds: dict[Machine, tuple[Machine, ...]] = {}
    for one in machines:
        kinds.setdefault(replace(one, name="", price_per_hour=None), (one,))
    groups = list(kinds.values())
    paces = {machine.share_s(cluster.num_shares) for machine in machines}
    groups += [
        tuple(one for one in machines if one.share_s(cluster.num_shares) <= slowest)
        for slowest in sorted(paces)[:-1]
    ]
    groups.append(tuple(one for one in machines if one not in limited))
    fewer = [
        cluster.only(group) for group in dict.fromkeys(groups) if 0 < len(group) < len(machines)
    ]
    return [group for group in fewer if group.num_ranks > 1]


def _price(per_hour: float | None, seconds_s: float) -> float | None:
    return None if per_hour is None else per_hour * seconds_s / units.HOUR_S


def _sum(prices: Iterable[float | None]) -> float | None:
    prices = list(prices)
    known = [price for price in prices if price is not None]
    return math.fsum(known) if len(known) == len(prices) else None
