"""What a run will take with every strategy, what it would take otherwise, and what to choose."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dragoman.base import units
from dragoman.cluster.links import Layout, Link
from dragoman.cluster.strategies import (
    SYNC_EVERY,
    Cluster,
    Compute,
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
"""A network that lengthens a step by no more than this is left alone."""
MOST_RANKS: Final = 512
_WHAT_IF_PORTS: Final = (1e9, 10e9)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a plan: a strategy on a cluster, for the whole run.

    alone_s: seconds of a step on one rank alone. price_per_hour: of all its hosts, or None.
    """

    name: str
    layout: Layout
    prediction: Prediction
    alone_s: float
    max_steps: int
    price_per_hour: float | None

    @property
    def run_s(self) -> float:
        """Seconds of training; without preparation, validation and saving."""
        return self.prediction.step_s * self.max_steps

    @property
    def price(self) -> float | None:
        """Of `run_s`; None where a host's price is not known."""
        return None if self.price_per_hour is None else self.price_per_hour * self.run_s / 3600

    @property
    def speed_up(self) -> float:
        """Against one rank alone at equal tokens; below 1 it is slower."""
        return self.alone_s / self.prediction.step_s


@dataclass(frozen=True, slots=True)
class Choice:
    """What `auto` takes, and why in one sentence.

    layout: the ranks that take part. first_host: the first of their hosts, counted from 0.
    """

    prediction: Prediction
    why: str
    layout: Layout
    first_host: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that `dragoman plan` says."""

    workload: Workload
    cluster: Cluster
    compute: Compute
    currency: str
    strategies: tuple[Row, ...]
    what_ifs: tuple[Row, ...]
    choice: Choice


def make_plan(
    workload: Workload,
    cluster: Cluster,
    compute: Compute,
    *,
    prices_per_hour: Sequence[float | None],
    currency: str,
) -> Plan:
    """All strategies and what-ifs; prices are those of the hosts in their order."""
    costs = _Costs(workload, compute, tuple(prices_per_hour))
    everyone = range(cluster.layout.num_hosts)
    strategies = tuple(
        costs.row(prediction.label, cluster.layout, prediction, hosts=everyone)
        for prediction in predict_all(cluster, workload, compute)
    )
    what_ifs = [
        costs.chosen(name, other.layout, choose(other, workload, compute))
        for name, other in _what_ifs(cluster)
    ]
    if (host := _host_alone(cluster, workload, compute)) is not None:
        what_ifs.insert(0, costs.chosen(_name_alone(host), host.layout, host))
    single = _rank_alone(compute)
    what_ifs.insert(0, costs.chosen(single.prediction.label, single.layout, single))
    return Plan(
        workload,
        cluster,
        compute,
        currency,
        strategies,
        tuple(what_ifs),
        choose(cluster, workload, compute),
    )


def predict_all(cluster: Cluster, workload: Workload, compute: Compute) -> list[Prediction]:
    """Every strategy that this cluster can run, the plain one first."""
    compute_s = compute.step_s(cluster.layout.num_ranks)
    if cluster.layout.num_ranks == 1:
        return [alone(compute)]
    predictions = [plain(cluster, workload, compute_s), sync(cluster, workload, compute_s)]
    most = most_accumulation(workload)
    smallest = _smallest_accumulation(predictions[1])
    predictions += [
        accumulate(cluster, workload, compute_s, every=every)
        for every in sorted({min(max(smallest, 2), most), most} - {0, 1})
    ]
    if cluster.layout.num_hosts > 1:
        predictions.append(diloco(cluster, workload, compute_s, every=SYNC_EVERY))
        predictions.append(streaming(cluster, workload, compute_s))
    predictions.append(powersgd(cluster, workload, compute_s))
    return predictions


def alone(compute: Compute) -> Prediction:
    """The fastest rank does the whole batch and speaks to nobody."""
    step_s = compute.single_s
    return Prediction("none", f"one {compute.unit} alone", step_s, step_s, 0.0)


def choose(cluster: Cluster, workload: Workload, compute: Compute) -> Choice:
    """`auto`: what trains as usual if the network allows it, else what needs it least.

    `sync` where its step is within 1.15 of the compute; else the smallest accumulation that is
    and stays in the range of tokens per update known to train as well; else streaming DiLoCo
    with the smallest H that hides the link, up to 500, where that is faster than `sync`. One host
    alone, or one GPU of it, where all of them are not faster.
    """
    single = _rank_alone(compute)
    if cluster.layout.num_ranks == 1:
        return single
    everyone = choose_for_all_ranks(cluster, workload, compute.step_s(cluster.layout.num_ranks))
    host = _host_alone(cluster, workload, compute)
    fewer = min((one for one in (single, host) if one is not None), key=_step_s)
    if _step_s(everyone) < _step_s(fewer):
        return everyone
    label = fewer.prediction.label
    who = label if fewer.prediction.strategy == "none" else f"{label} on the {_name_alone(fewer)}"
    return replace(
        fewer,
        why=f"{everyone.prediction.label} over this link would take "
        f"{units.STEP_TIME.text(_step_s(everyone))}, {who} "
        f"{units.STEP_TIME.text(_step_s(fewer))}: more ranks are no speed-up here",
    )


def _step_s(choice: Choice) -> float:
    return choice.prediction.step_s


def _rank_alone(compute: Compute) -> Choice:
    return Choice(alone(compute), "there is one rank", Layout((1,)), compute.fastest_host)


def _host_alone(cluster: Cluster, workload: Workload, compute: Compute) -> Choice | None:
    """The fastest of the hosts that have several ranks, by itself; None where it is all or none."""
    if cluster.layout.num_hosts == 1:
        return None
    unlike: dict[tuple[int, float], int] = {}
    for number, ranks in enumerate(cluster.layout.ranks_per_host):
        if ranks > 1:
            unlike.setdefault((ranks, compute.on_host(number).alone_s), number)
    choices = [
        replace(
            choose_for_all_ranks(
                replace(cluster, layout=Layout((ranks,))),
                workload,
                compute.on_host(number).step_s(ranks),
            ),
            first_host=number,
        )
        for (ranks, _), number in unlike.items()
    ]
    return min(choices, key=_step_s, default=None)


def _name_alone(choice: Choice) -> str:
    number = choice.first_host + 1
    return "first host alone" if number == 1 else f"host {number} alone"


def choose_for_all_ranks(cluster: Cluster, workload: Workload, compute_s: float) -> Choice:
    """The same where every rank is to take part, be one alone faster or not."""
    synced = sync(cluster, workload, compute_s)
    slower = f"{synced.step_s / compute_s:.2f} x the compute alone"
    if _nearly_free(synced):
        why = f"synchronising every step costs {slower}, within {NEARLY_FREE}"
        return Choice(synced, why, cluster.layout)
    every = _smallest_accumulation(synced)
    if every <= most_accumulation(workload):
        tokens = units.SHORT_COUNT.text(workload.target_tokens_per_step * every)
        return Choice(
            accumulate(cluster, workload, compute_s, every=every),
            f"synchronising every step costs {slower}; every {every} micro-batches it is within "
            f"{NEARLY_FREE}, at {tokens} target tokens an update",
            cluster.layout,
        )
    if cluster.layout.num_hosts == 1:
        why = f"inside one host there is nothing better, at {slower}"
        return Choice(synced, why, cluster.layout)
    streamed = streaming(cluster, workload, compute_s)
    if streamed.step_s >= synced.step_s:  # its own work on the weights, where batches are small
        why = f"synchronising every step costs {slower}, and local steps cost no less"
        return Choice(synced, why, cluster.layout)
    left = f"{streamed.step_s / compute_s:.2f} x the compute alone"
    return Choice(
        streamed,
        f"synchronising every step costs {slower}, and accumulation that hides it leaves "
        f"the range of batches known to train well; local steps with a sum every "
        f"{streamed.every} cost {left}",
        cluster.layout,
    )


def _nearly_free(prediction: Prediction) -> bool:
    return prediction.step_s <= NEARLY_FREE * prediction.compute_s


def _smallest_accumulation(synced: Prediction) -> int:
    """The smallest K at which accumulation is within 1.15 of the compute."""
    return max(1, math.ceil(synced.exposed_s / ((NEARLY_FREE - 1) * synced.compute_s) - 1e-9))


def _what_ifs(cluster: Cluster) -> list[tuple[str, Cluster]]:
    """Other clusters than this one, the nearer ones first."""
    layout, link = cluster.layout, cluster.link
    found = [("as it is", cluster)]
    if layout.num_hosts > 1:
        found += [
            (f"{units.BIT_RATE.text(bits_per_s)} ports", replace(cluster, link=port))
            for bits_per_s in _WHAT_IF_PORTS
            if (port := Link.nominal(bits_per_s)).bytes_per_s > link.bytes_per_s * 1.05
        ]
    larger = layout.extended(layout.num_hosts + 2)
    found.append(("two more hosts", replace(cluster, layout=larger)))
    found += [
        (f"{larger.num_ranks} ranks", replace(cluster, layout=larger))
        for larger in _doublings(layout)
        if larger.num_hosts > layout.num_hosts + 2
    ]
    return found


def _doublings(layout: Layout) -> Iterator[Layout]:
    """Twice as many hosts, and again, as far as a plan goes."""
    while (layout := layout.extended(2 * layout.num_hosts)).num_ranks <= MOST_RANKS:
        yield layout


@dataclass(frozen=True, slots=True)
class _Costs:
    """Turns predictions into lines of a plan."""

    workload: Workload
    compute: Compute
    prices_per_hour: tuple[float | None, ...]

    def row(self, name: str, layout: Layout, prediction: Prediction, *, hosts: range) -> Row:
        """hosts: those that are paid for, by number."""
        return Row(
            name,
            layout,
            prediction,
            alone(self.compute).step_s,
            self.workload.max_steps,
            self._price(hosts),
        )

    def chosen(self, name: str, layout: Layout, choice: Choice) -> Row:
        """Hosts that do not take part are left to others."""
        first, prediction = choice.first_host, choice.prediction
        if choice.layout.num_hosts < layout.num_hosts and prediction.strategy != "none":
            prediction = replace(prediction, label=f"1 host, {prediction.label}")
        hosts = range(first, first + choice.layout.num_hosts)
        return self.row(name, layout, prediction, hosts=hosts)

    def _price(self, hosts: range) -> float | None:
        """Of these hosts; those that are not there yet cost as much as the first."""
        known = self.prices_per_hour
        prices = [known[n] if n < len(known) else known[0] for n in hosts]
        return None if None in prices else math.fsum(p for p in prices if p is not None)
