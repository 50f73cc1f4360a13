"""`dragoman plan`: from what a user typed to a plan."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from dragoman.base import units
from dragoman.base.errors import ConfigError
from dragoman.cluster.checks import measured_link
from dragoman.cluster.facts import HostFacts
from dragoman.cluster.hosts import MOST_PRICE, Host, Hosts, load_hosts
from dragoman.cluster.measured import Measured, recall
from dragoman.cluster.plan import Plan, make_plan
from dragoman.cluster.rates import (
    LAYER_S,
    LAYER_SOURCE,
    Device,
    Inside,
    Link,
    device,
    inside_of,
    parse_ranks,
)
from dragoman.cluster.step_time import DILOCO_SOURCES, DILOCO_WEIGHT_S, GPU_SPREAD
from dragoman.cluster.strategies import Cluster, Machine
from dragoman.cluster.workload import Workload, workload_of
from dragoman.model.config import ModelConfig
from dragoman.recipe.recipe import Recipe
from dragoman.train.config import Precision

Value = TypeVar("Value")
_EXAMPLE: Final = "such as --link 100Mbit --ranks 4 --gpu v100"
_RANGE_STEP_S: Final = (1e-6, 1e6)
"""What is typed beyond these is a slip; a plan would be made of infinities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The options of `dragoman plan`, as they were typed; None if they were not.

    hosts: a file or the inline form, in place of ranks; what doctor measured on them last counts
    if link and gpu are not given. link: a rate, bits for a port and bytes for a measurement.
    ranks: 4, 2+1 or 1x8. gpu: the kind of all ranks. gpu_link: what is between those of one host, a
    kind or a measured rate. compute: seconds of one rank's share of a step without network, with
    all ranks of its host at work, in place of what is known of the kind. price: of one host for an
    hour.
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
    workload = workload_of(recipe)
    hosts = load_hosts(request.hosts) if request.hosts is not None else None
    if hosts is not None and request.gpu is None:
        _check_kinds(hosts)
    measured = None if hosts is None else recall(hosts)
    ranks = parse_ranks(request.ranks or "1") if hosts is None else hosts.ranks_per_host
    asked = _Asked(workload, recipe.train.precision, request, ranks, hosts, measured)
    link = asked.link()
    machines = tuple(asked.machine(number) for number in range(len(ranks)))
    machines, currency = _priced(machines, hosts, request.price)
    weight_s, source = asked.diloco_weight_s()
    cluster = Cluster(machines, link, weight_s, source)
    return make_plan(workload, cluster, currency=currency)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, and what is known of its hosts: None and no facts if only ranks were given."""

    workload: Workload
    precision: Precision
    request: PlanRequest
    ranks: tuple[int, ...]
    hosts: Hosts | None
    measured: Measured | None

    def machine(self, number: int) -> Machine:
        """One host, without its price."""
        host = self.hosts.host[number] if self.hosts is not None else None
        ranks = self.ranks[number]
        kind = self._kind(host)
        on_cpu = kind == "cpu"
        flop, rows = self.workload.flop_per_step, self.workload.rows_per_micro_batch
        if self.request.compute is not None:
            given_s = _compute_s(self.request.compute)
            shares = min(sum(self.ranks), rows)
            alone_s = given_s * shares / (max(self.ranks) if on_cpu else 1)
            rate, source = f"{units.STEP_TIME.text(given_s)} a rank", "given as --compute"
            if kind is None:
                source += "; assumed: GPUs, of a kind that is not known (--gpu says it)"
            least_s, least_source = self._least_s(0.0 if on_cpu else LAYER_S), LAYER_SOURCE
            if given_s < least_s:
                least_s, least_source = given_s, source
        else:
            found = self._device(host, kind)
            alone_s = flop / found.flop_per_s
            rate, source = f"{found.name} at {units.FLOP_RATE.text(found.flop_per_s)}", found.source
            least_s, least_source = self._least_s(found.layer_s), found.layer_source
        return Machine(
            ranks,
            alone_s,
            name=f"host {number + 1}" if host is None else host.name,
            rate=rate,
            source=source,
            unit="CPU" if on_cpu else "GPU",
            inside=self._inside(host),
            least_s=least_s,
            least_source=least_source,
            most_shares=rows,
            shares_processor=on_cpu,
            spread=0.0 if on_cpu else GPU_SPREAD,
        )

    def link(self) -> Link:
        """Between hosts, as it was given, else as it was measured."""
        said, measured = self.request.link, self.measured
        if said is not None:
            return _typed("--link", said, Link.parse)
        link = measured_link(measured.facts) if measured else None
        if link is None and len(self.ranks) == 1:  # for what-ifs with more hosts
            port = Link.nominal(1e9)
            return replace(port, source=port.source.replace("given", "assumed"))
        if link is None:
            raise ConfigError(
                "the speed of the network is not known",
                place="--link",
                remedy="run dragoman doctor --hosts first, or give the speed of the port (1Gbit)",
            )
        return replace(link, source=f"{link.source} {_when(measured)}")

    def diloco_weight_s(self) -> tuple[float, str]:
        """What doctor measured on the devices that are asked about, else what is assumed."""
        if self._all_measured() and self.request.gpu is None and self.measured is not None:
            weight_s = self.measured.facts.diloco_weight_s
            if weight_s is not None:
                return weight_s, f"measured by doctor {_when(self.measured)}"
        kind = "cpu" if self._kind(self.hosts.host[0] if self.hosts else None) == "cpu" else "gpu"
        return DILOCO_WEIGHT_S[kind], DILOCO_SOURCES[kind]

    def _kind(self, host: Host | None) -> str | None:
        """Of its ranks: cpu, a kind of GPU, or None for GPUs of a kind that is not known."""
        if self.request.gpu is not None:
            return self.request.gpu.lower()
        if host is None:
            return None
        return "cpu" if host.slots else host.gpu

    def _least_s(self, layer_s: float) -> float:
        return layer_s * self.workload.num_layers * self.workload.micro_batches_per_step

    def _device(self, host: Host | None, kind: str | None) -> Device:
        if host is not None and self.request.gpu is None and self._all_measured():
            return self._measured_device(host)
        if kind is None:
            raise ConfigError(
                "the kind of GPU is not known",
                place="--gpu",
                remedy='give --gpu v100, write gpu = "v100" into hosts.toml, or give '
                "--compute 0.25s",
            )
        return device(kind, self.precision)

    def _facts(self, host: Host) -> HostFacts | None:
        """What doctor found there on the devices that are asked about.

        A host whose GPUs doctor did not see, or was not asked for, has computed on its processor.
        """
        facts = self.measured.facts.hosts if self.measured else ()
        fitting = (one for one in facts if (one.host, one.gpus_usable) == (host.name, host.gpus))
        return next(fitting, None)

    def _all_measured(self) -> bool:
        """Whether doctor has measured the arithmetic of all hosts; a part cannot be compared."""
        if self.hosts is None:
            return False
        facts = [self._facts(host) for host in self.hosts.host]
        return all(one is not None and one.flop_per_s for one in facts)

    def _measured_device(self, host: Host) -> Device:
        """On a processor doctor measures one rank with its share of the cores."""
        facts = self._facts(host)
        assert facts is not None
        assert facts.flop_per_s is not None
        source = f"measured by doctor {_when(self.measured)}"
        if host.slots:
            return Device("cpu", facts.flop_per_s * host.slots, f"{source}, small model", 0.0)
        small = ModelConfig()
        found = Device("gpu", facts.flop_per_s, f"{source}, base, bf16, 128 sentences")
        layer_s = (facts.step_s or math.inf) / (small.encoder_layers + small.decoder_layers)
        if layer_s < found.layer_s:
            found = replace(
                found, layer_s=layer_s, layer_source=f"assumed: no longer than {source}"
            )
        return found

    def _inside(self, host: Host | None) -> Inside:
        """Given, else measured, else what is usual for the kind."""
        if self.request.gpu_link is not None:
            return _typed("--gpu-link", self.request.gpu_link, Inside.parse)
        if host is not None and self.request.gpu is None:
            if host.gpu_link is not None:
                return _typed(f"gpu_link of {host.name}", host.gpu_link, Inside.parse)
            facts = self._facts(host)
            if facts is not None and facts.inside_bytes_per_s is not None:
                source = f"measured by doctor {_when(self.measured)}"
                return Inside("measured", facts.inside_bytes_per_s, source)
        return inside_of(self._kind(host) or "gpu")


def _typed(option: str, text: str, parse: Callable[[str], Value]) -> Value:
    """What an option says; ConfigError names the option if that is nothing."""
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(error.problem, place=option, remedy=error.remedy) from error


def _check_kinds(hosts: Hosts) -> None:
    """Raises ConfigError if some have GPUs and some slots: doctor would not let them train."""
    first = hosts.host[0]
    other = next((one for one in hosts.host if bool(one.slots) != bool(first.slots)), None)
    if other is not None:
        raise ConfigError(
            f"one of {first.name} and {other.name} computes on GPUs, one on its processor",
            place="--hosts",
            remedy="leave one of the two out, or give all hosts slots: nothing sums between them",
        )


def _compute_s(text: str) -> float:
    step_s = _typed("--compute", text, units.DURATION.parse)
    least_s, most_s = _RANGE_STEP_S
    if not least_s <= step_s <= most_s:
        raise ConfigError(
            f"{text!r} is no time of a step", place="--compute", remedy="write for example 0.25s"
        )
    return step_s


def _priced(
    machines: tuple[Machine, ...], hosts: Hosts | None, price: str | None
) -> tuple[tuple[Machine, ...], str]:
    """The machines with what each costs for an hour, and the currency."""
    if price is not None:
        amount, currency = _typed("--price", price, units.parse_money)
        if not 0 <= amount <= MOST_PRICE:
            raise ConfigError(
                f"{price!r} is no price of a host",
                place="--price",
                remedy='write for example "3 USD"',
            )
        return tuple(replace(one, price_per_hour=amount) for one in machines), currency
    if hosts is None:
        return machines, ""
    pairs = zip(machines, hosts.host, strict=True)
    priced = tuple(replace(one, price_per_hour=host.price_per_hour) for one, host in pairs)
    return priced, hosts.currency


def _when(measured: Measured | None) -> str:
    assert measured is not None
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(measured.time))
