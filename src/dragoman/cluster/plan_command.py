"""`dragoman plan`: from what a user typed to a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman import units
from dragoman.cluster.hosts import Hosts, load_hosts
from dragoman.cluster.links import Layout, Link
from dragoman.cluster.plan import Plan, make_plan
from dragoman.cluster.strategies import Cluster, Compute
from dragoman.cluster.throughput import Device, device
from dragoman.cluster.workload import Workload, workload_of
from dragoman.errors import ConfigError
from dragoman.recipe import Recipe

_EXAMPLE = "such as --link 100Mbit --ranks 4 --gpu v100"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The options of `dragoman plan`, as they were typed; None where they were not.

    hosts: a file or the inline form, in place of ranks. link: a rate, bits for a port and bytes
    for a measurement. ranks: 4 or 2+1. gpu: the kind of all ranks. compute: seconds of one rank's
    share of a step without network, in place of gpu. price: of one host for an hour.
    """

    link: str | None = None
    hosts: str | None = None
    ranks: str | None = None
    gpu: str | None = None
    compute: str | None = None
    price: str | None = None


def plan_recipe(recipe: Recipe, request: PlanRequest) -> Plan:
    """The plan for a recipe; ConfigError names the option that is missing or wrong."""
    if (request.hosts is None) == (request.ranks is None):
        raise ConfigError(
            "either --hosts or --ranks says what to plan for", place="plan", remedy=_EXAMPLE
        )
    if request.link is None:
        raise ConfigError(
            "the speed of the network is not known",
            place="--link",
            remedy="give what doctor measured (12 MB/s), or the speed of the port (1Gbit)",
        )
    hosts = load_hosts(request.hosts) if request.hosts is not None else None
    layout = _layout(hosts, request.ranks)
    cluster = Cluster(layout, Link.parse(request.link))
    workload = workload_of(recipe)
    prices, currency = _prices(hosts, request.price, num_hosts=layout.num_hosts)
    return make_plan(
        workload,
        cluster,
        _compute(workload, layout, hosts, request),
        prices_per_hour=prices,
        currency=currency,
    )


def _layout(hosts: Hosts | None, ranks: str | None) -> Layout:
    if hosts is not None:
        return Layout(hosts.ranks_per_host)
    assert ranks is not None
    return Layout.parse(ranks)


def _prices(
    hosts: Hosts | None, price: str | None, *, num_hosts: int
) -> tuple[Sequence[float | None], str]:
    """Of each host for an hour, and the currency."""
    if price is not None:
        amount, currency = units.parse_money(price)
        return [amount] * num_hosts, currency
    if hosts is not None:
        return [host.price_per_hour for host in hosts.host], hosts.currency
    return [None] * num_hosts, ""


def _compute(
    workload: Workload, layout: Layout, hosts: Hosts | None, request: PlanRequest
) -> Compute:
    if request.compute is not None:
        step_s = units.DURATION.parse(request.compute)
        if step_s <= 0:
            raise ConfigError(
                f"{request.compute!r} is no time", place="--compute", remedy="write 0.25s"
            )
        return Compute(step_s * layout.num_ranks, "given as --compute")
    return Compute.on(_slowest(hosts, request.gpu), workload)


def _slowest(hosts: Hosts | None, gpu: str | None) -> Device:
    """The device that all the others wait for: every rank has an equal share of a batch."""
    if gpu is not None:
        return device(gpu)
    names = [host.gpu or ("cpu" if host.slots else None) for host in hosts.host] if hosts else []
    known = [device(name) for name in names if name is not None]
    if not known or len(known) < len(names):
        raise ConfigError(
            "the kind of GPU is not known",
            place="--gpu",
            remedy='give --gpu v100, write gpu = "v100" into hosts.toml, or give --compute 0.25s',
        )
    return min(known, key=lambda one: one.flop_per_s)
