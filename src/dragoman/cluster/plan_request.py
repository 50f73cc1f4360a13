"""From the options of `dragoman plan` to a plan."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from dragoman.base import units
from dragoman.base.errors import ConfigError
from dragoman.cluster.batch_rules import UpdateSettings
from dragoman.cluster.checks import directions, measured_link
from dragoman.cluster.collect import LastMeasurement, recall
from dragoman.cluster.facts import HostFacts
from dragoman.cluster.hosts import Host, load_hosts
from dragoman.cluster.plan import Plan, make_plan
from dragoman.cluster.rates import (
    LAYER_S,
    LAYER_SOURCE,
    Device,
    Directions,
    Inside,
    Link,
    device,
    inside_of,
    parse_ranks,
)
from dragoman.cluster.step_time import (
    DILOCO_SOURCES,
    DILOCO_WEIGHT_S,
    GPU_SPREAD,
    SAVE_BYTES_PER_S,
    SAVE_SOURCE,
)
from dragoman.cluster.strategies import Cluster, Machine, Spot
from dragoman.cluster.workload import Workload, workload_of
from dragoman.model.config import ModelConfig
from dragoman.recipe.recipe import Recipe
from dragoman.telemetry.host import HourlyPrice
from dragoman.training.config import Precision

Value = TypeVar("Value")
_EXAMPLE: Final = "such as --link 100Mbit --ranks 4 --gpu v100"
_RANGE_STEP_S: Final = (1e-6, 1e6)
"""Numbers outside are typing mistakes; larger ones would make the figures infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The options of `dragoman plan` as they were typed; None if one was not given.

    hosts: a file or the inline form, instead of ranks; doctor's last measurement of them gives the
        rates that link and gpu leave open.
    link: a rate, in bits for a port and in bytes for a measurement.
    ranks: 4, 2+1 or 1x8.
    gpu: the device of all ranks, a kind of GPU or cpu.
    gpu_link: the link between the GPUs of one host, a kind or a measured rate.
    compute: time of one rank's share of a step without network, the mean over ranks while all ranks
        of a host work; it replaces the known speed of the kind.
    price: the price of one host for an hour; it replaces the prices of all hosts.
    """

    link: str | None = None
    hosts: str | None = None
    ranks: str | None = None
    gpu: str | None = None
    gpu_link: str | None = None
    compute: str | None = None
    price: str | None = None


def plan_recipe(recipe: Recipe, request: PlanRequest, *, noise_tokens: float | None = None) -> Plan:
    """The plan for a recipe; ConfigError names the option that is missing or wrong.

    noise_tokens: the gradient noise scale, in target tokens, that a similar run has measured.
    """
    if (request.hosts is None) == (request.ranks is None):
        raise ConfigError("needs --hosts or --ranks, not both", place="plan", remedy=_EXAMPLE)
    workload = workload_of(recipe)
    if request.hosts is not None:
        known = load_hosts(request.hosts)
        hosts, currency, measured = known.host, known.currency, recall(known)
    else:
        counts = enumerate(parse_ranks(request.ranks or ""), start=1)
        hosts = tuple(Host.model_construct(name=f"host {n}", gpus=count) for n, count in counts)
        currency, measured = "", None
    if request.gpu is None:
        _check_kinds(hosts)
    elif request.compute is None:
        device(request.gpu, recipe.train.precision)  # reports a wrong name before a missing link
    if request.price is not None:  # instead of all prices in the file
        price = HourlyPrice.parse(request.price)
        currency = price.currency
        paid = {"price_per_hour": price.amount, "spot_price_per_hour": None}
        hosts = tuple(host.model_copy(update=paid) for host in hosts)
    asked = _Asked(workload, recipe.train.precision, request, hosts, measured)
    link = asked.link()
    machines = tuple(asked.machine(host) for host in hosts)
    cluster = Cluster(machines, link, *asked.diloco_weight_s(), *asked.save_bytes_per_s())
    tokens = workload.target_tokens_per_step
    update = UpdateSettings.of(recipe, tokens=tokens, noise_tokens=noise_tokens)
    return make_plan(workload, cluster, currency=currency, update=update)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, its hosts and their facts. Hosts that were not named have only ranks."""

    workload: Workload
    precision: Precision
    request: PlanRequest
    hosts: tuple[Host, ...]
    measured: LastMeasurement | None

    def machine(self, host: Host) -> Machine:
        """One host, with the price in its settings."""
        kind = self._kind(host)
        on_cpu = kind == "cpu"
        rows = self.workload.rows_per_micro_batch
        kernels_s = self.workload.num_layers * self.workload.micro_batches_per_step
        if self.request.compute is not None:
            given_s = _compute_s(self.request.compute)
            ranks = [one.ranks for one in self.hosts]
            alone_s = given_s * min(sum(ranks), rows) / (max(ranks) if on_cpu else 1)
            rate, source = f"{units.STEP_TIME.text(given_s)} a rank", "given as --compute"
            least_s, least_source = kernels_s * (0.0 if on_cpu else LAYER_S), LAYER_SOURCE
            if given_s < least_s:
                least_s, least_source = given_s, source
            if kind is None:
                source += "; assumed: GPUs, of a kind that is not known (--gpu says it)"
        else:
            found = self._device(host)
            alone_s = self.workload.flop_per_step / found.flop_per_s
            rate, source = f"{found.name} at {units.FLOP_RATE.text(found.flop_per_s)}", found.source
            least_s, least_source = kernels_s * found.layer_s, found.layer_source
        spot = None
        if host.interruption_hours is not None:
            mean_s = host.interruption_hours * units.HOUR_S
            spot = Spot(mean_s, host.replacement_s, host.paid_per_hour)
        return Machine(
            host.ranks,
            alone_s,
            name=host.name,
            rate=rate,
            source=source,
            unit="CPU" if on_cpu else "GPU",
            inside=self._inside(host),
            least_s=least_s,
            least_source=least_source,
            is_given=self.request.compute is not None,
            most_shares=rows,
            shares_processor=on_cpu,
            spread=0.0 if on_cpu else GPU_SPREAD,
            price_per_hour=host.paid_per_hour
            if host.price_per_hour is None
            else host.price_per_hour,
            directions=self._directions(host),
            spot=spot,
        )

    def link(self) -> Link:
        """The link between hosts: given, measured, or a port of 1 Gbit/s if there is one host.

        Raises ConfigError if it is not known.
        """
        if self.request.link is not None:
            return _typed("--link", self.request.link, Link.parse)
        link = measured_link(self.measured.facts) if self.measured else None
        if link is not None:
            return replace(link, source=f"{link.source} {_when(self.measured)}")
        if len(self.hosts) == 1:  # for what-ifs with more hosts
            port = Link.nominal(1e9)
            return replace(port, source=port.source.replace("given", "assumed"))
        raise ConfigError(
            "the speed of the network is not known",
            place="--link",
            remedy="run dragoman doctor --hosts first, or give the speed of the port (1Gbit)",
        )

    def _directions(self, host: Host) -> Directions:
        """The directions as doctor measured them; unknown without that, or if a link was given."""
        if self.request.link is not None or self.measured is None:
            return Directions()
        return directions(self.measured.facts).get(host.name, Directions())

    def diloco_weight_s(self) -> tuple[float, str]:
        """Doctor's measurement on these devices, otherwise the assumption."""
        if self._all_measured() and self.measured is not None:
            weight_s = self.measured.facts.diloco_weight_s
            if weight_s is not None:
                return weight_s, f"measured by doctor {_when(self.measured)}"
        kind = "cpu" if self._kind(self.hosts[0]) == "cpu" else "gpu"
        return DILOCO_WEIGHT_S[kind], DILOCO_SOURCES[kind]

    def save_bytes_per_s(self) -> tuple[float, str]:
        """The rate of the slowest disk that doctor measured, otherwise the assumption."""
        facts = self.measured.facts.hosts if self.measured else ()
        rates = [one.disk_write_bytes_per_s for one in facts if one.disk_write_bytes_per_s]
        if not rates:
            return SAVE_BYTES_PER_S, SAVE_SOURCE
        return min(rates), f"measured by doctor {_when(self.measured)}"

    def _kind(self, host: Host) -> str | None:
        """The device of its ranks: cpu, a kind of GPU, or None for GPUs of an unknown kind."""
        if self.request.gpu is not None:
            return self.request.gpu.lower()
        return "cpu" if host.slots else host.gpu

    def _facts(self, host: Host) -> HostFacts | None:
        """Doctor's facts about the host; None if there are none, or if a kind of GPU was given.

        If doctor could not use all of its GPUs, it measured other devices, or nothing.
        """
        facts = self.measured.facts.hosts if self.measured and self.request.gpu is None else ()
        fitting = (one for one in facts if (one.host, one.gpus_usable) == (host.name, host.gpus))
        return next(fitting, None)

    def _all_measured(self) -> bool:
        """Whether doctor has measured the arithmetic of all hosts: measured rates are not mixed
        with those of the tables."""
        facts = [self._facts(host) for host in self.hosts]
        return all(one is not None and one.flop_per_s for one in facts)

    def _device(self, host: Host) -> Device:
        facts = self._facts(host)
        if facts is None or facts.flop_per_s is None or not self._all_measured():
            if (kind := self._kind(host)) is None:
                raise ConfigError(
                    "the kind of GPU is not known",
                    place="--gpu",
                    remedy='give --gpu v100 (or cpu), write gpu = "v100" into hosts.toml, or give '
                    "--compute 0.25s",
                )
            return device(kind, self.precision)
        source = f"measured by doctor {_when(self.measured)}"
        if host.slots:  # doctor measures one rank with its share of the cores
            return Device("cpu", facts.flop_per_s * host.slots, f"{source}, small model", 0.0)
        found = Device("gpu", facts.flop_per_s, f"{source}, base, bf16, 128 sentences")
        base = ModelConfig()
        layer_s = (facts.step_s or math.inf) / (base.encoder_layers + base.decoder_layers)
        if layer_s < found.layer_s:
            found = replace(
                found, layer_s=layer_s, layer_source=f"assumed: no longer than {source}"
            )
        return found

    def _inside(self, host: Host) -> Inside:
        """The link as given, otherwise as measured, otherwise the usual one for the kind."""
        if self.request.gpu_link is not None:
            return _typed("--gpu-link", self.request.gpu_link, Inside.parse)
        if host.gpu_link is not None and self.request.gpu is None:
            return _typed(f"gpu_link of {host.name}", host.gpu_link, Inside.parse)
        facts = self._facts(host)
        if facts is not None and facts.inside_bytes_per_s is not None:
            source = f"measured by doctor {_when(self.measured)}"
            return Inside("measured", facts.inside_bytes_per_s, source)
        return inside_of(self._kind(host) or "gpu")


def _typed(option: str, text: str, parse: Callable[[str], Value]) -> Value:
    """The value of an option; ConfigError names the option if the text is not valid."""
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(error.problem, place=option, remedy=error.remedy) from error


def _check_kinds(hosts: tuple[Host, ...]) -> None:
    """Raises ConfigError if some hosts have GPUs and some have slots: doctor would reject them."""
    first = hosts[0]
    other = next((one for one in hosts if bool(one.slots) != bool(first.slots)), None)
    if other is not None:
        raise ConfigError(
            f"one of {first.name} and {other.name} computes on GPUs, one on its processor",
            place="--hosts",
            remedy="leave one of the two out, or give all hosts slots: GPUs and processors cannot "
            "train together",
        )


def _compute_s(text: str) -> float:
    step_s = _typed("--compute", text, units.DURATION.parse)
    least_s, most_s = _RANGE_STEP_S
    if not least_s <= step_s <= most_s:
        raise ConfigError(
            f"{text!r} is not the time of a step",
            place="--compute",
            remedy="write for example 0.25s",
        )
    return step_s


def _when(measured: LastMeasurement | None) -> str:
    assert measured is not None
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(measured.time))
