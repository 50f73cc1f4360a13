"""Hours and cost of a run with every strategy and on other hardware, and what to choose."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from dragoman.base import units
from dragoman.base.terminal import Terminal
from dragoman.cluster.batch_rules import UpdateSettings
from dragoman.cluster.interruptions import Interrupted, interrupted
from dragoman.cluster.rates import Link
from dragoman.cluster.strategies import (
    SYNC_EVERY,
    Cluster,
    Machine,
    Prediction,
    accumulate,
    diloco,
    most_accumulation,
    plain,
    powersgd,
    streaming,
    sync,
)
from dragoman.cluster.workload import Workload

NEARLY_FREE: Final = 1.15
"""A network that lengthens a step by no more than this factor is left alone."""
MOST_RANKS: Final = 512
_WHAT_IF_PORTS: Final = (1e9, 10e9)
_FEW_NAMES: Final = 3


@dataclass(frozen=True, slots=True)
class StrategyChoice:
    """The choice of `auto`, and why, in one sentence.

    cluster: the hosts that take part.
    hosts: their numbers among all hosts, from 0.
    """

    prediction: Prediction
    why: str
    cluster: Cluster
    hosts: tuple[int, ...]

    @property
    def who(self) -> str:
        """Its hosts in words: `alpha alone`, or their number if there are more than three."""
        names = [machine.name for machine in self.cluster.machines]
        if len(names) > _FEW_NAMES:
            return f"{len(names)} of the hosts alone"
        return f"{' and '.join(names)} alone"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a plan: a strategy on the hosts that take part, for the whole run.

    alone_s: seconds of a step on one rank alone, the fastest one.
    """

    name: str
    cluster: Cluster
    prediction: Prediction
    alone_s: float
    max_steps: int

    @property
    def run_s(self) -> float:
        """Seconds of training, without preparation, validation and saving."""
        return self.prediction.step_s * self.max_steps

    @property
    def price(self) -> float | None:
        """The price of `run_s`; None if a host's price is not known."""
        per_hour = self.cluster.price_per_hour
        return None if per_hour is None else per_hour * self.run_s / units.HOUR_S

    @property
    def speed_up(self) -> float:
        """Speed relative to one rank alone at equal tokens; below 1 it is slower."""
        return self.alone_s / self.prediction.step_s


@dataclass(frozen=True, slots=True)
class FasterLink:
    """The same hosts with a faster network: the choice of `auto`, and synchronising every step."""

    name: str
    chosen: Row
    synced: Row


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """All results of `dragoman plan`."""

    workload: Workload
    cluster: Cluster
    currency: str
    strategies: tuple[Row, ...]
    what_ifs: tuple[Row, ...]
    choice: StrategyChoice
    faster_links: tuple[FasterLink, ...] = ()
    update: UpdateSettings | None = None
    """The recipe's settings of an update, for `larger_batch`."""
    interrupted: Interrupted | None = None
    """The expected course of the choice, if its hosts may be taken away."""

    def __repr__(self) -> str:
        """The tables and the choice, as `dragoman plan` prints them."""
        from dragoman.cluster.plan_view import print_plan

        console = Terminal(
            file=io.StringIO(), record=True, width=110, highlight=False, markup=False, emoji=False
        )
        print_plan(self, console)
        return console.export_text()

    @property
    def chosen(self) -> Row:
        """The choice for the whole run. Its `alone_s` and `speed_up` have no meaning."""
        choice = self.choice
        return Row("", choice.cluster, choice.prediction, 1.0, self.workload.max_steps)

    @property
    def larger_batch(self) -> int:
        """The number of the recipe's batches in an update if `accum` is chosen; otherwise the
        number if each rank had a whole batch."""
        if self.choice.prediction.strategy == "accum":
            return self.choice.prediction.every
        return self.choice.cluster.num_ranks

    @property
    def synced(self) -> Row | None:
        """All hosts, synchronising every step; None if there is one rank."""
        return next((row for row in self.strategies if row.prediction.strategy == "sync"), None)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of both tables."""
        return self.strategies + self.what_ifs

    @property
    def unit(self) -> str:
        """The device of a rank, as a plan prints it."""
        return self.cluster.machines[0].unit


def make_plan(
    workload: Workload, cluster: Cluster, *, currency: str, update: UpdateSettings | None = None
) -> Plan:
    """Predict every strategy and every what-if."""
    single = _rank_alone(cluster)

    def row(name: str, choice: StrategyChoice, *, among: int) -> Row:
        prediction, count = choice.prediction, choice.cluster.num_hosts
        if count < among and prediction.strategy != "none":
            hosts = "1 host" if count == 1 else f"{count} hosts"
            prediction = replace(prediction, label=f"{hosts}, {prediction.label}")
        return Row(name, choice.cluster, prediction, single.prediction.step_s, workload.max_steps)

    strategies = tuple(
        Row(one.label, cluster, one, single.prediction.step_s, workload.max_steps)
        for one in predict_all(cluster, workload)
    )
    what_ifs = [row(single.prediction.label, single, among=1)]
    if (host := min(_hosts_alone(cluster, workload), key=_step_s, default=None)) is not None:
        what_ifs.append(row(host.who, host, among=1))
    what_ifs += [
        row(name, choose(other, workload), among=other.num_hosts)
        for name, other in _what_ifs(cluster)
    ]
    faster = [
        FasterLink(
            name,
            row(name, choose(other, workload), among=other.num_hosts),
            Row(name, other, sync(other, workload), single.prediction.step_s, workload.max_steps),
        )
        for name, other in _what_ifs(cluster)
        if other.num_hosts == cluster.num_hosts
        and other.link.bytes_per_s > cluster.link.bytes_per_s
    ]
    choice = choose(cluster, workload)
    return Plan(
        workload,
        cluster,
        currency,
        strategies,
        tuple(what_ifs),
        choice,
        faster_links=tuple(faster),
        update=update,
        interrupted=interrupted(choice.cluster, choice.prediction, workload),
    )


def predict_all(cluster: Cluster, workload: Workload) -> list[Prediction]:
    """Predictions for every strategy that this cluster can run, the plain one first."""
    if cluster.num_ranks == 1:
        return [_rank_alone(cluster).prediction]
    predictions = [plain(cluster, workload), sync(cluster, workload)]
    most = most_accumulation(workload)
    smallest = _smallest_accumulation(predictions[1])
    predictions += [
        accumulate(cluster, workload, every=every)
        for every in sorted({min(max(smallest, 2), most), most} - {0, 1})
    ]
    if cluster.num_hosts > 1:
        predictions.append(diloco(cluster, workload, every=SYNC_EVERY))
        predictions.append(streaming(cluster, workload))
    predictions.append(powersgd(cluster, workload))
    return predictions


def choose(cluster: Cluster, workload: Workload) -> StrategyChoice:
    """The strategy of `auto`: `sync` if the network is fast enough, otherwise one that sends less.

    `sync` is chosen if its step takes at most 1.15 times the compute; otherwise the smallest
    accumulation that achieves this, if its batch is known to train as well; otherwise `streaming`
    DiLoCo, if there are several hosts and it is faster than `sync`; otherwise `sync`. Fewer hosts
    are chosen if all hosts together are not faster: one rank, one host, the faster hosts, or the
    hosts that send as fast as they receive.
    """
    single = _rank_alone(cluster)
    if cluster.num_ranks == 1:
        return single
    everyone = choose_for_all_ranks(cluster, workload)
    fewer = min([single, *_hosts_alone(cluster, workload)], key=_step_s)
    if _step_s(everyone) < _step_s(fewer):
        return everyone
    label = fewer.prediction.label
    who = label if fewer.prediction.strategy == "none" else f"{label} on {fewer.who}"
    return replace(
        fewer,
        why=f"{everyone.prediction.label} on all hosts would take "
        f"{units.STEP_TIME.text(_step_s(everyone))}, {who} "
        f"{units.STEP_TIME.text(_step_s(fewer))}: more ranks are not faster here",
    )


def choose_for_all_ranks(cluster: Cluster, workload: Workload) -> StrategyChoice:
    """As `choose`, but every rank must take part, even if fewer would be faster."""
    hosts = tuple(range(cluster.num_hosts))
    synced = sync(cluster, workload)
    slower = f"{synced.step_s / synced.compute_s:.2f} x the compute alone"
    if synced.step_s <= NEARLY_FREE * synced.compute_s:
        why = f"synchronising every step costs {slower}, within {NEARLY_FREE}"
        return StrategyChoice(synced, why, cluster, hosts)
    every = _smallest_accumulation(synced)
    if every <= most_accumulation(workload):
        tokens = units.SHORT_COUNT.text(workload.target_tokens_per_step * every)
        return StrategyChoice(
            accumulate(cluster, workload, every=every),
            f"synchronising every step costs {slower}; every {every} micro-batches it is within "
            f"{NEARLY_FREE}, at {tokens} target tokens an update",
            cluster,
            hosts,
        )
    if cluster.num_hosts == 1:
        why = f"inside one host there is nothing better, at {slower}"
        return StrategyChoice(synced, why, cluster, hosts)
    streamed = streaming(cluster, workload)
    if streamed.step_s >= synced.step_s:  # small batches: its own work on the weights costs more
        why = f"synchronising every step costs {slower}, and local steps cost no less"
        return StrategyChoice(synced, why, cluster, hosts)
    left = f"{streamed.step_s / streamed.compute_s:.2f} x the compute alone"
    return StrategyChoice(
        streamed,
        f"synchronising every step costs {slower}, and accumulation that hides it leaves "
        f"the range of batches known to train well; local steps with an all-reduce every "
        f"{streamed.every} cost {left}",
        cluster,
        hosts,
    )


def _step_s(choice: StrategyChoice) -> float:
    return choice.prediction.step_s


def _rank_alone(cluster: Cluster) -> StrategyChoice:
    """The fastest rank computes the whole batch alone."""
    one = cluster.fastest_rank
    step_s = one.compute_s
    label = f"one {one.machines[0].unit} alone"
    prediction = Prediction("none", label, step_s, step_s, 0.0)
    return StrategyChoice(prediction, "there is one rank", one, (cluster.fastest_host,))


def _hosts_alone(cluster: Cluster, workload: Workload) -> Iterator[StrategyChoice]:
    """Fewer hosts than all: one host of each kind with several ranks, the faster hosts, and the
    hosts that send as fast as they receive."""
    unlike: dict[object, int] = {}
    for number, machine in enumerate(cluster.machines):
        if machine.ranks > 1 and cluster.num_hosts > 1:
            alike = replace(machine, name="", price_per_hour=None)
            unlike.setdefault(alike, number)
    groups: list[tuple[int, ...]] = [(number,) for number in unlike.values()]
    paces = [machine.share_s(cluster.num_ranks) for machine in cluster.machines]
    for slowest in sorted(set(paces))[:-1]:
        groups.append(tuple(number for number, pace in enumerate(paces) if pace <= slowest))
    if cluster.one_sided:
        limited = cluster.one_sided
        numbered = enumerate(cluster.machines)
        groups.append(tuple(number for number, machine in numbered if machine not in limited))
    for hosts in groups:
        if sum(cluster.machines[number].ranks for number in hosts) < 2:
            continue  # `_rank_alone` covers a single rank
        yield replace(choose_for_all_ranks(cluster.only(hosts), workload), hosts=hosts)


def _limit_gone(one_sided: list[Machine]) -> str:
    if len(one_sided) > _FEW_NAMES:
        return f"{len(one_sided)} hosts without their limits"
    return ", ".join(
        f"{machine.name} sends as it receives"
        if machine.directions.sends_bytes_per_s < machine.directions.receives_bytes_per_s
        else f"{machine.name} receives as it sends"
        for machine in one_sided
    )


def _smallest_accumulation(synced: Prediction) -> int:
    """The smallest K at which accumulation is within 1.15 times the compute."""
    return max(1, math.ceil(synced.exposed_s / ((NEARLY_FREE - 1) * synced.compute_s) - 1e-9))


def _what_ifs(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    """This cluster, then others, the closest first; further hosts are like the first."""
    yield "these hosts", cluster
    if cluster.one_sided:
        yield _limit_gone(cluster.one_sided), cluster.without_limits
    if cluster.num_hosts > 1:
        for bits_per_s in _WHAT_IF_PORTS:
            port = replace(Link.nominal(bits_per_s), latency_s=cluster.link.latency_s)
            if port.bytes_per_s > cluster.link.bytes_per_s * 1.05:
                yield f"{units.BIT_RATE.text(bits_per_s)} ports", replace(cluster, link=port)
    yield "two more hosts", cluster.only(range(cluster.num_hosts + 2))
    larger = cluster
    while (larger := larger.only(range(2 * larger.num_hosts))).num_ranks <= MOST_RANKS:
        if larger.num_hosts > cluster.num_hosts + 2:
            yield f"{larger.num_ranks} ranks", larger
