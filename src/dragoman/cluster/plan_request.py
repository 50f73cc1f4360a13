"""`dragoman plan`: from what a user typed to a plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from dragoman.base import units
from dragoman.base.errors import ConfigError
from dragoman.cluster.checks import measured_link
from dragoman.cluster.hosts import MOST_PRICE, Hosts, load_hosts
from dragoman.cluster.links import Inside, Layout, Link, inside_of
from dragoman.cluster.measured import Measured, recall
from dragoman.cluster.plan import Plan, make_plan
from dragoman.cluster.step_time import DILOCO_WEIGHT_S
from dragoman.cluster.strategies import Cluster, Compute
from dragoman.cluster.throughput import LEAST_STEP_S, Device, device
from dragoman.cluster.workload import Workload, workload_of
from dragoman.recipe.recipe import Recipe

Value = TypeVar("Value")
_EXAMPLE: Final = "such as --link 100Mbit --ranks 4 --gpu v100"
_RANGE_STEP_S: Final = (1e-6, 1e6)
"""What is typed beyond these is a slip; a plan would be made of infinities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The options of `dragoman plan`, as they were typed; None where they were not.

    hosts: a file or the inline form, in place of ranks; what doctor measured on them last counts
    where link and gpu are not given. link: a rate, bits for a port and bytes for a measurement.
    ranks: 4 or 2+1. gpu: the kind of all ranks. gpu_link: what is between those of one host, a
    kind or a measured rate. compute: seconds of one rank's share of a step
    without network, in place of gpu. price: of one host for an hour.
    """

    link: str | None = None
    hosts: str | None = None
    ranks: str | None = None
    gpu: str | None = None
    gpu_link: str | None = None
    compute: str | None = None
    price: str | None = None


def plan_recipe(recipe: Recipe, request: PlanRequest) -> Plan:
    """The plan for a recipe; ConfigError names the option that is missing or wrong."""
    if (request.hosts is None) == (request.ranks is None):
        raise ConfigError(
            "either --hosts or --ranks says what to plan for", place="plan", remedy=_EXAMPLE
        )
    hosts = load_hosts(request.hosts) if request.hosts is not None else None
    if hosts is not None and request.gpu is None:
        _check_kinds(hosts)
    measured = None if hosts is None else recall(hosts)
    layout = _layout(hosts, request.ranks)
    inside = _inside(layout, hosts, measured, request)
    link = replace(_link(request.link, measured, num_hosts=layout.num_hosts), inside=inside)
    workload = workload_of(recipe)
    compute = _compute(workload, layout, hosts, measured, request)
    cluster = Cluster(layout, link, _diloco_weight_s(compute, hosts, measured, request))
    prices, currency = _prices(hosts, request.price, num_hosts=layout.num_hosts)
    return make_plan(workload, cluster, compute, prices_per_hour=prices, currency=currency)


def _typed(option: str, text: str, parse: Callable[[str], Value]) -> Value:
    """What an option says; ConfigError names the option where that is nothing."""
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(error.problem, place=option, remedy=error.remedy) from error


def _check_kinds(hosts: Hosts) -> None:
    """Raises ConfigError where some have GPUs and some slots: doctor would not let them train."""
    first = hosts.host[0]
    other = next((one for one in hosts.host if bool(one.slots) != bool(first.slots)), None)
    if other is not None:
        raise ConfigError(
            f"one of {first.name} and {other.name} computes on GPUs, one on its processor",
            place="--hosts",
            remedy="leave one of the two out, or give all hosts slots: nothing sums between them",
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
        amount, currency = _typed("--price", price, units.parse_money)
        if not 0 <= amount <= MOST_PRICE:
            raise ConfigError(
                f"{price!r} is no price of a host",
                place="--price",
                remedy='write for example "3 USD"',
            )
        return [amount] * num_hosts, currency
    if hosts is not None:
        return [host.price_per_hour for host in hosts.host], hosts.currency
    return [None] * num_hosts, ""


def _compute(
    workload: Workload,
    layout: Layout,
    hosts: Hosts | None,
    measured: Measured | None,
    request: PlanRequest,
) -> Compute:
    if request.compute is not None and request.gpu is not None:
        raise ConfigError(
            "--compute says it already: seconds of a step, whatever the GPU",
            place="--gpu",
            remedy="leave one of the two out",
        )
    if request.compute is not None:
        step_s = _typed("--compute", request.compute, units.DURATION.parse)
        least_s, most_s = _RANGE_STEP_S
        if not least_s <= step_s <= most_s:
            raise ConfigError(
                f"{request.compute!r} is no time of a step",
                place="--compute",
                remedy="write for example 0.25s",
            )
        return Compute(step_s * layout.num_ranks, "given as --compute")
    if request.gpu is None and hosts is not None and (found := _measured_devices(hosts, measured)):
        return Compute.on(found, workload, layout)
    return Compute.on(_devices(hosts, request.gpu), workload, layout)


def _measured_devices(hosts: Hosts, measured: Measured | None) -> list[Device]:
    """Of each host, as doctor found it; none where it has not looked at all of them.

    On a processor doctor measures one rank with its share of the cores; the host is all of them.
    A host whose GPUs doctor did not see, or was not asked for, has computed on its processor.
    """
    facts = measured.facts.hosts if measured else ()
    rates = {(one.host, one.gpus_usable): one.flop_per_s for one in facts}
    found = []
    for host in hosts.host:
        if not (rate := rates.get((host.name, host.gpus))):
            return []
        name, least_step_s = ("cpu", 0.0) if host.slots else ("gpu", LEAST_STEP_S)
        rate *= host.slots or 1
        found.append(Device(name, rate, f"measured by doctor {_when(measured)}", least_step_s))
    return found


def _diloco_weight_s(
    compute: Compute, hosts: Hosts | None, measured: Measured | None, request: PlanRequest
) -> float:
    """As doctor measured it on the devices that are asked about."""
    known = hosts is not None and request.gpu is None and _measured_devices(hosts, measured)
    if known and measured and measured.facts.diloco_weight_s is not None:
        return measured.facts.diloco_weight_s
    # --compute does not name what computes: GPUs, unless the hosts have none.
    slots = hosts is not None and all(one.slots for one in hosts.host)
    on_cpu = compute.unit == "CPU" or (slots and request.gpu is None)
    return DILOCO_WEIGHT_S["cpu" if on_cpu else "gpu"]


def _inside(
    layout: Layout, hosts: Hosts | None, measured: Measured | None, request: PlanRequest
) -> Inside:
    """The slowest link inside a host of several ranks: given, else measured, else the usual one."""
    if request.gpu_link is not None:
        return _typed("--gpu-link", request.gpu_link, Inside.parse)
    if hosts is None:
        return inside_of(request.gpu or "gpu")
    facts = {one.host: one for one in measured.facts.hosts} if measured else {}
    found = []
    for host in hosts.host:
        known = facts.get(host.name)
        rate = None if known is None or request.gpu else known.inside_bytes_per_s
        if host.ranks == 1 and layout.most_ranks > 1:
            continue
        if host.gpu_link is not None and request.gpu is None:
            found.append(_typed(f"gpu_link of {host.name}", host.gpu_link, Inside.parse))
        elif rate is not None:
            found.append(Inside("measured", rate, f"measured by doctor {_when(measured)}"))
        else:
            found.append(inside_of(request.gpu or host.gpu or ("cpu" if host.slots else "gpu")))
    return min(found, key=lambda one: one.bytes_per_s)


def _link(said: str | None, measured: Measured | None, *, num_hosts: int) -> Link:
    """As it was given, else as it was measured."""
    if said is not None:
        return _typed("--link", said, Link.parse)
    link = measured_link(measured.facts) if measured else None
    if link is None and num_hosts == 1:  # for what-ifs with more hosts
        return replace(Link.nominal(1e9), source="assumed: a port of 1 Gbit/s")
    if link is None:
        raise ConfigError(
            "the speed of the network is not known",
            place="--link",
            remedy="run dragoman doctor --hosts first, or give the speed of the port (1Gbit)",
        )
    return replace(link, source=f"{link.source} {_when(measured)}")


def _when(measured: Measured | None) -> str:
    assert measured is not None
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(measured.time))


def _devices(hosts: Hosts | None, gpu: str | None) -> list[Device]:
    """Of each host, or one for all of them."""
    if gpu is not None:
        return [device(gpu)]
    names = [host.gpu or ("cpu" if host.slots else None) for host in hosts.host] if hosts else []
    known = [device(name) for name in names if name is not None]
    if not known or len(known) < len(names):
        raise ConfigError(
            "the kind of GPU is not known",
            place="--gpu",
            remedy='give --gpu v100, write gpu = "v100" into hosts.toml, or give --compute 0.25s',
        )
    return known
