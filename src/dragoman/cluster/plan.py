"""What a run will take with every strategy, what it would take otherwise, and what to choose."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dragoman import units
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
    """What `auto` takes, and why in one sentence."""

    prediction: Prediction
    why: str


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
    strategies = tuple(
        costs.row(prediction.label, cluster.layout, prediction)
        for prediction in predict_all(cluster, workload, compute)
    )
    what_ifs = tuple(
        costs.row(name, other.layout, choose(other, workload, compute).prediction)
        for name, other in _what_ifs(cluster)
    )
    return Plan(
        workload,
        cluster,
        compute,
        currency,
        strategies,
        (costs.alone(), *what_ifs),
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
    """One rank that does the whole batch and speaks to nobody."""
    step_s = compute.step_s(1)
    return Prediction("none", f"one {compute.unit} alone", step_s, step_s, 0.0)


def choose(cluster: Cluster, workload: Workload, compute: Compute) -> Choice:
    """`auto`: what trains as usual if the network allows it, else what needs it least.

    `sync` where its step is within 1.15 of the compute; else the smallest accumulation that is
    and stays in the range of tokens per update known to train as well; else streaming DiLoCo
    with the smallest H that hides the link, 50 to 500. One GPU alone where none is faster.
    """
    single = alone(compute)
    if cluster.layout.num_ranks == 1:
        return Choice(single, "there is one rank")
    compute_s = compute.step_s(cluster.layout.num_ranks)
    choice = choose_for_all_ranks(cluster, workload, compute_s)
    if choice.prediction.step_s >= single.step_s:
        return Choice(
            single,
            f"{choice.prediction.label} over this link would take "
            f"{units.STEP_TIME.text(choice.prediction.step_s)}, {single.label} "
            f"{units.STEP_TIME.text(single.step_s)}: more ranks are no speed-up here",
        )
    return choice


def choose_for_all_ranks(cluster: Cluster, workload: Workload, compute_s: float) -> Choice:
    """The same where every rank is to take part, be one alone faster or not."""
    synced = sync(cluster, workload, compute_s)
    slower = f"{synced.step_s / compute_s:.2f} x the compute alone"
    if _nearly_free(synced):
        return Choice(synced, f"synchronising every step costs {slower}, within {NEARLY_FREE}")
    every = _smallest_accumulation(synced)
    if every <= most_accumulation(workload):
        tokens = units.SHORT_COUNT.text(workload.target_tokens_per_step * every)
        return Choice(
            accumulate(cluster, workload, compute_s, every=every),
            f"synchronising every step costs {slower}; every {every} micro-batches it is within "
            f"{NEARLY_FREE}, at {tokens} target tokens an update",
        )
    if cluster.layout.num_hosts == 1:
        return Choice(synced, f"inside one host there is nothing better, at {slower}")
    streamed = streaming(cluster, workload, compute_s)
    left = f"{streamed.step_s / compute_s:.2f} x the compute alone"
    return Choice(
        streamed,
        f"synchronising every step costs {slower}, and accumulation that hides it leaves "
        f"the range of batches known to train well; local steps with an average every "
        f"{streamed.every} cost {left}",
    )


def _nearly_free(prediction: Prediction) -> bool:
    return prediction.step_s <= NEARLY_FREE * prediction.compute_s


def _smallest_accumulation(synced: Prediction) -> int:
    """The smallest K at which accumulation is within 1.15 of the compute."""
    return max(1, math.ceil(synced.exposed_s / ((NEARLY_FREE - 1) * synced.compute_s) - 1e-9))


def _what_ifs(cluster: Cluster) -> list[tuple[str, Cluster]]:
    """Other clusters than this one, the nearer ones first."""
    layout, link = cluster.layout, cluster.link
    found = []
    if layout.num_hosts > 1 and layout.ranks_per_host[0] > 1:
        found.append(("first host alone", replace(cluster, layout=layout.extended(1))))
    found.append(("as it is", cluster))
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

    def row(self, name: str, layout: Layout, prediction: Prediction) -> Row:
        # A run that is best done by one GPU leaves the other hosts to others.
        num_hosts = 1 if prediction.strategy == "none" else layout.num_hosts
        return Row(
            name,
            layout,
            prediction,
            self.compute.step_s(1),
            self.workload.max_steps,
            self._price(num_hosts),
        )

    def alone(self) -> Row:
        prediction = alone(self.compute)
        return self.row(prediction.label, Layout((1,)), prediction)

    def _price(self, num_hosts: int) -> float | None:
        """Of the first so many hosts; those that are not there yet cost as much as the first."""
        known = self.prices_per_hour
        prices = [known[n] if n < len(known) else known[0] for n in range(num_hosts)]
        return None if None in prices else math.fsum(p for p in prices if p is not None)
