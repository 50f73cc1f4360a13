"""From the options of `dragoman plan` to a plan."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from dragoman.base import units
from dragoman.base.errors import ConfigError
from dragoman.cluster.checks import directions, measured_link
from dragoman.cluster.collect import LastMeasurement, recall
from dragoman.cluster.facts import ClusterFacts, HostFacts
from dragoman.cluster.hosts import Host, Hosts, load_hosts
from dragoman.cluster.options import Cluster, Machine, Spot
from dragoman.cluster.plan import Plan
from dragoman.cluster.rates import (
    DEVICES,
    DILOCO_WEIGHT_S,
    LAYER_S,
    SEVERAL_GPUS,
    UNKNOWN,
    WITHOUT_BF16,
    Device,
    Link,
    device,
    inside_of,
)
from dragoman.cluster.workload import Workload, workload_of
from dragoman.model.config import ModelConfig
from dragoman.recipe.recipe import Recipe
from dragoman.telemetry.host import DISTURBING_SHARE, HourlyPrice
from dragoman.training.config import Precision

Value = TypeVar("Value")
_GPU: Final = re.compile(r"(?P<kind>[^:]+?)(?::(?P<count>[1-9]\d{0,3}))?")
_MOST_HOSTS: Final = 9999
_LIKELY: Final = {
    "compute": (1e-6, 1e6, "0.25s"),
    "tflops": (0.1, 1e5, "65, the dense peak in the precision of training"),
}
"""Numbers outside are typing mistakes; larger ones would make the figures infinite."""
_LEAST_GAIN: Final = 1.2
"""Another precision is named if the run is at least this many times as fast with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The options of `dragoman plan` as they were typed; api.records.plan says what they mean."""

    hosts: str | None = None
    gpu: str | None = None
    tflops: float | None = None
    link: str | None = None
    gpu_link: str | None = None
    compute: str | None = None
    price: str | None = None

    @property
    def is_about_this_machine(self) -> bool:
        """Whether neither hosts nor their devices are given."""
        return self.hosts is None and self.gpu is None and self.compute is None


@dataclass(frozen=True, slots=True)
class Here:
    """This machine, timed.

    step_s: seconds of a step of the whole batch by all of its ranks. others_share: the share of the
    processors that other programs used meanwhile.
    """

    ranks: int
    on_gpu: bool
    step_s: float
    others_share: float = 0.0


def plan_recipe(recipe: Recipe, request: PlanRequest, *, here: Here | None = None) -> Plan:
    """The plan for a recipe; ConfigError names the option that is missing or wrong.

    here: the machine that is planned if the request names no other.
    """
    if request.tflops is not None and request.is_about_this_machine:
        raise ConfigError(
            "counts for a kind of GPU, and none is named", place="tflops", remedy="give gpu, too"
        )
    workload, source = workload_of(recipe), "given as compute"
    hints: tuple[str, ...] = ()
    if here is not None and request.is_about_this_machine:
        # Timed here and given by the user, the compute of a rank means the same.
        ranks = f"{'gpu' if here.on_gpu else 'cpu'}:{here.ranks}"
        request = replace(request, gpu=ranks, compute=units.DURATION.text(here.step_s))
        source, hints = "measured here, just now", tuple(_hints_here(here))
    kind, known, last = _hosts(request)
    hosts, currency, doctor = known.host, known.currency, _Doctor(known, last, request)
    if request.price is not None:  # instead of all prices in the file
        price = HourlyPrice.parse(request.price)
        currency = price.currency
        paid = {"price_per_hour": price.amount, "spot_price_per_hour": None}
        hosts = tuple(host.model_copy(update=paid) for host in hosts)
    asked = _Asked(recipe, workload, request, kind, hosts, doctor, source)
    machines = tuple(asked.machine(host) for host in hosts)
    cluster = Cluster(workload, machines, asked.link(), *asked.diloco_weight_s())
    plan = Plan(cluster, currency, hints)
    if (half := asked.half_precision()) is None:
        return plan
    train = recipe.train.model_copy(update={"precision": half})
    faster = plan_recipe(recipe.model_copy(update={"train": train}), request, here=here)
    if plan.quickest.run_s < _LEAST_GAIN * faster.quickest.run_s:
        return plan
    hint = f"With train.precision={half}: {faster.describe(faster.quickest)}."
    return replace(plan, hints=(hint, *hints))


def _hints_here(here: Here) -> Iterator[str]:
    if here.others_share > DISTURBING_SHARE:
        share = units.SHARE.text(here.others_share)
        yield f"Other programs used {share} of the processors while this was timed."


def _hosts(request: PlanRequest) -> tuple[str | None, Hosts, LastMeasurement | None]:
    """The device of all ranks, if it was given; the hosts, and what doctor knows of them."""
    kind, count = _gpu_of(request.gpu)
    if request.hosts is None or request.hosts.isdigit():
        if kind is None and request.compute is None:
            raise ConfigError(
                "the kind of GPU is not known",
                place="gpu",
                remedy="give it and the number of hosts, such as gpu v100:4, hosts 2 "
                "and link 1Gbit",
            )
        num_hosts = int(request.hosts or 1)
        if not 1 <= num_hosts <= _MOST_HOSTS:
            raise ConfigError(
                f"{num_hosts} is not a number of hosts",
                place="hosts",
                remedy=f"write a number from 1 to {_MOST_HOSTS}, or the name of a file",
            )
        names = (f"host {n}" for n in range(1, num_hosts + 1))
        alike = tuple(Host.model_construct(name=name, gpus=count or 1) for name in names)
        return kind, Hosts.model_construct(host=alike), None
    if count is not None:
        raise ConfigError(
            "the hosts have their own numbers of GPUs",
            place="gpu",
            remedy=f"write {kind}, without a number, or leave hosts out",
        )
    known = load_hosts(request.hosts)
    first = known.host[0]
    other = next((one for one in known.host if bool(one.slots) != bool(first.slots)), None)
    if kind is None and other is not None:
        raise ConfigError(
            f"one of {first.name} and {other.name} computes on GPUs, one on its processor",
            place="hosts",
            remedy="leave one of the two out, or give all hosts slots: GPUs and processors cannot "
            "train together",
        )
    return kind, known, recall(known)


def _gpu_of(text: str | None) -> tuple[str | None, int | None]:
    """Kind and number of `gpu`: (v100, None) or (v100, 4)."""
    if text is None:
        return None, None
    match = _GPU.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"{text!r} is not a kind of GPU and a number",
            place="gpu",
            remedy="write v100, or v100:4 for four on each host; name unlike hosts: a:2,b:1",
        )
    return match["kind"].lower(), int(match["count"]) if match["count"] else None


class _Doctor:
    """What doctor last measured of hosts.

    by_host: facts of each host whose arithmetic was measured on all of its GPUs. It is empty if one
    lacks it, as measured rates are not mixed with those of the tables, and if the request names
    other devices.
    """

    def __init__(self, hosts: Hosts, last: LastMeasurement | None, request: PlanRequest) -> None:
        self.facts = ClusterFacts(hosts=()) if last is None else last.facts
        measured = time.localtime(0 if last is None else last.time)
        self.source = time.strftime("measured by doctor %Y-%m-%d %H:%M", measured)
        self.link = measured_link(self.facts)
        self.directions = {} if request.link else directions(self.facts)
        gpus = {host.name: host.gpus for host in hosts.host}
        fit = {
            one.host: one
            for one in self.facts.hosts
            if one.flop_per_s and one.gpus_usable == gpus.get(one.host)
        }
        is_whole = fit.keys() == gpus.keys() and request.gpu is None
        self.by_host: dict[str, HostFacts] = fit if is_whole else {}


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request about hosts.

    kind: the device of all ranks; None if each host has its own. source: of the request's compute.
    """

    recipe: Recipe
    workload: Workload
    request: PlanRequest
    kind: str | None
    hosts: tuple[Host, ...]
    doctor: _Doctor
    source: str

    def machine(self, host: Host) -> Machine:
        """One host of the plan."""
        on_gpu = self._kind(host) != "cpu"
        facts = self.doctor.by_host.get(host.name)
        model = ModelConfig()  # the one that doctor times
        layers = model.encoder_layers + model.decoder_layers
        layer_s = min(LAYER_S, ((facts and facts.step_s) or math.inf) / layers)
        launches = self.workload.num_layers * self.workload.micro_batches_per_step * on_gpu
        least_s, together = launches * layer_s, SEVERAL_GPUS if on_gpu else 1.0
        if self.request.compute is not None:
            given_s = _number("compute", self.request.compute, units.DURATION.parse)
            ranks = [one.ranks for one in self.hosts]
            shares = min(sum(ranks), self.workload.rows_per_micro_batch)
            alone_s = given_s * shares / (1 if on_gpu else max(ranks))
            rate, source = f"{units.STEP_TIME.text(given_s)} a rank", self.source
            least_s, together = min(least_s, given_s), 1.0
        else:
            found = self._device(host)
            alone_s = self.workload.flop_per_step / found.flop_per_s
            rate, source = f"{found.name} at {units.FLOP_RATE.text(found.flop_per_s)}", found.source
        spot = None
        if host.interruption_hours is not None:
            mean_s = host.interruption_hours * units.HOUR_S
            spot = Spot(mean_s, host.replacement_s, host.paid_per_hour)
        price = host.paid_per_hour if host.price_per_hour is None else host.price_per_hour
        return Machine(
            host.ranks,
            alone_s,
            name=host.name,
            rate=rate,
            source=source,
            on_gpu=on_gpu,
            least_s=least_s,
            together=together,
            inside=self._inside(host),
            price_per_hour=price,
            directions=self.doctor.directions.get(host.name, UNKNOWN),
            spot=spot,
        )

    def link(self) -> Link:
        """The link between hosts, given or measured; ConfigError if it is not known."""
        if self.request.link is not None:
            return _typed("link", self.request.link, Link.parse)
        if self.doctor.link is not None:
            return replace(self.doctor.link, source=self.doctor.source)
        if len(self.hosts) == 1:
            return Link.nominal(1e9)  # it carries nothing
        raise ConfigError(
            "the speed of the network is not known",
            place="link",
            remedy="run dragoman doctor with these hosts first, or set link, such as 1Gbit",
        )

    def diloco_weight_s(self) -> tuple[float, str]:
        """Doctor's measurement on these devices, otherwise the assumption."""
        weight_s = self.doctor.facts.diloco_weight_s
        if self.doctor.by_host and weight_s is not None:
            return weight_s, self.doctor.source
        return DILOCO_WEIGHT_S["CPU" if self._kind(self.hosts[0]) == "cpu" else "GPU"]

    def half_precision(self) -> Precision | None:
        """The half precision that all hosts have, if the recipe does not use it and the speed is
        that of the table."""
        kinds = {self._kind(host) for host in self.hosts}
        if self.request.compute or self.request.tflops or self.doctor.by_host:
            return None
        kind = kinds.pop()
        if kinds or kind is None or kind not in DEVICES["half"]:
            return None
        half: Precision = "fp16" if kind in WITHOUT_BF16 else "bf16"
        return None if self._precision(kind) == half else half

    def _precision(self, kind: str | None) -> Precision:
        """The recipe's; if that is "auto", bf16 on GPUs that have it. Of processors the table knows
        only their speed in fp32."""
        precision = self.recipe.train.precision
        if precision != "auto":
            return precision
        return "fp32" if kind == "cpu" or kind in WITHOUT_BF16 else "bf16"

    def _kind(self, host: Host) -> str | None:
        """The device of its ranks: cpu, a kind of GPU, or None for GPUs of an unknown kind."""
        return self.kind or ("cpu" if host.slots else host.gpu)

    def _device(self, host: Host) -> Device:
        facts, kind, train = self.doctor.by_host.get(host.name), self._kind(host), self.recipe.train
        if facts is None or facts.flop_per_s is None:
            if kind is None:
                raise ConfigError(
                    "the kind of GPU is not known",
                    place="gpu",
                    remedy='give gpu v100 (or cpu), write gpu = "v100" into hosts.toml, or give '
                    "compute 0.25s",
                )
            tflops = self.request.tflops
            if tflops is not None:
                _number("tflops", str(tflops), float)
            return device(kind, self._precision(kind), tflops=tflops)
        if host.slots:  # doctor measures one rank with its share of the cores
            source = f"{self.doctor.source}, small model"
            return Device("cpu", facts.flop_per_s * host.slots, source)
        source = f"{self.doctor.source}, base, bf16, 128 sentences, not compiled"
        found = Device("gpu", facts.flop_per_s, source)
        of_table = DEVICES["half"].get(kind or "")
        if train.compile and self._precision(kind) != "fp32" and of_table and of_table.is_compiled:
            # Doctor does not compile, which takes a minute.
            found = max(found, of_table, key=lambda one: one.flop_per_s)
        return found

    def _inside(self, host: Host) -> Link:
        """The link as given, otherwise as measured, otherwise the usual one for the kind."""
        option, text = "gpu_link", self.request.gpu_link
        if text is None and self.request.gpu is None:
            option, text = f"gpu_link of {host.name}", host.gpu_link
        if text is not None:
            return replace(_typed(option, text, Link.parse), latency_s=0.0)
        facts = self.doctor.by_host.get(host.name)
        if facts is not None and facts.inside_bytes_per_s:
            return Link(facts.inside_bytes_per_s, self.doctor.source, 0.0)
        return inside_of(self._kind(host) or "gpu")


def _number(option: str, text: str, parse: Callable[[str], float]) -> float:
    number, (least, most, example) = _typed(option, text, parse), _LIKELY[option]
    if not least <= number <= most:
        raise ConfigError(
            f"{text!r} is not a likely value", place=option, remedy=f"write for example {example}"
        )
    return number


def _typed(option: str, text: str, parse: Callable[[str], Value]) -> Value:
    """The value of an option; ConfigError names the option if the text is not valid."""
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(error.problem, place=option, remedy=error.remedy) from error
