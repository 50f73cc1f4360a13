"""What to choose of all ways to train a run, and why: as text and as JSON.

Only options whose quality is known are recommended: one rank alone, fewer hosts, gradients that
are summed in every step, and local steps with no more steps between exchanges than was measured.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dragoman.base import units
from dragoman.base.terminal import Terminal, plain_table
from dragoman.cluster import rates
from dragoman.cluster.options import RESTART_S, Cluster, Machine, Option, options
from dragoman.cluster.workload import Workload
from dragoman.distributed import step_time
from dragoman.distributed.wire import BF16_BYTES, BUCKET_BYTES, FP4_BYTES, FP32_BYTES
from dragoman.recipe.estimate import TYPICAL_LENGTH

_WORTH_IT: Final = 0.98
"""An option replaces a simpler one if its time or price is below this share of the other's: smaller
differences are within the error of a plan."""
_FEW_NAMES: Final = 3
_ANY: Final = 10_000


@dataclass(frozen=True, repr=False)
class Plan:
    """All results of `dragoman plan`. options: the simplest first. hints: what else would help."""

    cluster: Cluster
    currency: str
    hints: tuple[str, ...] = ()
    options: tuple[Option, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", tuple(options(self.cluster)))

    def __repr__(self) -> str:
        """The plan as `dragoman plan` prints it."""
        console = Terminal(
            file=io.StringIO(), record=True, width=110, highlight=False, markup=False, emoji=False
        )
        self.print(console)
        return console.export_text()

    @property
    def workload(self) -> Workload:
        """The run that is planned."""
        return self.cluster.workload

    @property
    def quickest(self) -> Option:
        """The option of known quality that ends first."""
        return self._least(lambda option: option.run_s)

    @property
    def cheapest(self) -> Option:
        """The option of known quality that costs least; without prices, in hours of hosts."""
        if self.is_priced:
            return self._least(lambda option: option.price or 0.0)
        return self._least(lambda option: option.host_s)

    @property
    def together(self) -> Option:
        """All hosts, with the strategy that `auto` chooses for them."""
        return Option("all hosts", self.cluster, self.cluster.exchange.choose()[0])

    @property
    def is_priced(self) -> bool:
        """Whether the prices of all hosts are known."""
        return self.cluster.price_per_hour is not None

    @property
    def unproven(self) -> Option | None:
        """The fastest option whose quality nobody has measured, if it is faster than all others."""
        options = [one for one in self.options if one.is_at_hand and not one.is_quality_known]
        fastest = min(options, key=lambda option: option.run_s, default=None)
        if fastest is None or fastest.run_s > _WORTH_IT * self.quickest.run_s:
            return None
        return fastest

    @property
    def faster_ports(self) -> tuple[Option, ...]:
        """The same hosts with a faster network, as far as that shortens the run."""
        ports = (one for one in self.options if not one.is_at_hand)
        return tuple(one for one in ports if one.run_s < _WORTH_IT * self.quickest.run_s)

    def speed_up(self, option: Option) -> float:
        """Speed relative to the fastest rank alone at equal tokens; below 1 it is slower."""
        return self.options[0].run_s / option.run_s

    def lines(self) -> Iterator[str]:
        """What to choose and why, one sentence a line."""
        workload, cluster = self.workload, self.cluster
        where = str(cluster)
        if cluster.num_hosts > 1:
            rate = units.BYTE_RATE.text(cluster.link.bytes_per_s)
            where += f", {rate} each way between them"
        yield (
            f"{workload.name}: {units.COUNT.text(workload.num_parameters)} parameters, "
            f"{units.COUNT.text(workload.max_steps)} steps of "
            f"{units.SHORT_COUNT.text(workload.target_tokens_per_step)} target tokens; {where}"
        )
        cheapest, quickest = self.cheapest, self.quickest
        if cheapest is quickest:
            what = "Cheapest and quickest" if len(self.options) > 1 else "This run"
            yield f"{what}: {self.describe(quickest)}."
        else:
            least = "Cheapest" if self.is_priced else "Fewest machine-hours"
            yield f"{least}: {self.describe(cheapest)}."
            yield f"Quickest: {self.describe(quickest)}."
        if (unproven := self.unproven) is not None:
            takes = self._time_and_money(unproven.run_s, unproven.price)
            yield (
                f"Not recommended: local steps, {unproven.step.every} apart, would take {takes}, "
                f"but nobody knows how well a model learns so: up to {step_time.KNOWN_EVERY} apart "
                f"on up to {step_time.KNOWN_HOSTS} hosts were measured."
            )
        for faster in self.faster_ports:
            takes = self._time_and_money(faster.run_s, faster.price)
            yield f"With {faster.name}: {takes}{self._worth(faster)}."
        yield from (f"{one.name} {one.directions.limit}." for one in cluster.one_sided)
        for option in dict.fromkeys((cheapest, quickest)):
            yield from self._interruptions(option)
        missing = [one.name for one in cluster.machines if one.price_per_hour is None]
        if 0 < len(missing) < cluster.num_hosts:
            yield f"The cost is not known: {', '.join(missing)} has no price_per_hour."
        yield from self.hints

    def print(self, console: Console, *, explain: bool = False) -> None:
        """The choice, then all options as a table; with `explain` also what the figures assume."""
        for line in self.lines():
            console.print(Text(line), soft_wrap=False)
        console.print()
        table = self._table()
        # The whole table, even if the terminal is narrower: a number cut short is another number.
        table.width = console.measure(table, options=console.options.update(max_width=_ANY)).maximum
        console.print(table, crop=False)
        if not all(option.is_quality_known for option in self.options):
            unknown = "(?): nobody knows how well a model learns so."
            console.print(Text(unknown), style="dim")
        console.print()
        if not explain:
            told = "All steps of the recipe, training alone. For the best model of a given time: "
            told += "dragoman run RECIPE --budget 6h. What these figures assume: "
            told += "dragoman plan RECIPE --explain."
            console.print(Text(told), style="dim")
            return
        console.print(Text("Assumptions:"))
        for one in self.assumptions():
            console.print(Text(f"  {one}"), style="dim")

    def as_json(self) -> str:
        """The plan as JSON; units are in the names, and what is infinite or not known is null."""
        workload = asdict(self.workload) | {"num_parameters": self.workload.num_parameters}
        del workload["shapes"]
        values = {
            "workload": workload,
            "currency": self.currency,
            "cheapest": self.options.index(self.cheapest),
            "quickest": self.options.index(self.quickest),
            "options": [self._values(option) for option in self.options],
            "hints": self.hints,
            "link": asdict(self.cluster.link),
            "hosts": [asdict(machine) for machine in self.cluster.machines],
            "assumptions": list(self.assumptions()),
        }
        return json.dumps(_finite(values), indent=2, ensure_ascii=False)

    def assumptions(self) -> Iterator[str]:
        """The assumptions behind the figures with their sources, those about machines first.

        A source begins with a word of rates.py: measured, published, calculated, given or assumed.
        """
        cluster, workload, link = self.cluster, self.workload, self.cluster.link
        machines = cluster.machines
        for who, machine in _unlike(machines, lambda one: (one.rate, one.source)):
            yield f"a rank{who}: {machine.rate}, whatever the model and batch ({machine.source})"
        if least_s := max(machine.least_s for machine in machines):
            least = units.DURATION.text(least_s)
            yield f"kernels of a GPU's step: {least} to start them ({rates.LAYER_SOURCE})"
        if cluster.num_ranks > 1 and (share := machines[0].together) < 1:
            speed = f"{share:.0%} of the speed of as many single ones"
            yield f"several GPUs: {speed} ({rates.SEVERAL_GPUS_SOURCE})"
        several = [machine for machine in machines if machine.ranks > 1]
        if several and not machines[0].on_gpu:
            yield "ranks of a host: share its processor, two are as fast as one (assumed)"
        for who, machine in _unlike(several, lambda one: one.inside):
            rate = units.BYTE_RATE.text(machine.inside.bytes_per_s)
            yield f"inside a host{who}: {rate} each way ({machine.inside.source})"
        if cluster.num_hosts > 1:
            rate = units.BYTE_RATE.text(link.bytes_per_s)
            yield f"between hosts: {rate} each way ({link.source})"
            yield f"a port: {rates.NOMINAL_SHARE:.1%} of it is payload ({rates.NOMINAL_SOURCE})"
            source = "measured by doctor"
            if link.latency_s == rates.LATENCY_S:
                source = "assumed: one switch between the hosts"
            yield f"a message between hosts: {units.DURATION.text(link.latency_s)} ({source})"
            work = f"{cluster.diloco_weight_s * 1e9:.3g} ns a weight for each exchange"
            yield f"diloco's own work: {work} ({cluster.diloco_source})"
            yield (
                "an exchange of N ranks: 2 (N-1)/N of the gradients, "
                f"{FP32_BYTES} bytes a weight plain and inside hosts, {BF16_BYTES} in bf16, "
                f"{FP4_BYTES:.2f} in four bits; 2 (N-1) messages for each "
                f"{units.SIZE.text(BUCKET_BYTES)} (calculated: ring all-reduce, Patarasuk and Yuan "
                "2009; our tests count the bytes)"
            )
        yield (
            "a step: compute + max(exchange - overlap, its last part); overlap = "
            f"{step_time.OVERLAP_SHARE:.0%} of backward, which is {step_time.BACKWARD_SHARE:.0%} "
            "of a micro-batch (assumed)"
        )
        tokens = units.SHORT_COUNT.text(workload.target_tokens_per_step)
        length = f"{TYPICAL_LENGTH} in a sentence"
        yield f"a batch: full, {tokens} tokens of each side, {length}, and fits (assumed)"
        flop = units.FLOPS.text(workload.flop_per_step / workload.target_tokens_per_step)
        yield (
            f"arithmetic: {flop} for a target token and its source (calculated: 6 for each weight "
            "in a product, Kaplan et al. 2020, and attention)"
        )
        if cluster.spots:
            restart = f"replacement_s, {units.DURATION.text(RESTART_S)}"
            lost = "and half of the work between two checkpoints of all hosts"
            yield f"an interruption: {restart} {lost} (assumed; measured: 37 s in a lab)"

    def _least(self, measure: Callable[[Option], float]) -> Option:
        """The choice with the least of something; the simplest of those that are about as good."""
        choices = [option for option in self.options if option.is_choice]
        best = min(map(measure, choices))
        return next(option for option in choices if measure(option) * _WORTH_IT <= best)

    def describe(self, option: Option) -> str:
        """The option in words: `all hosts, gradients in every step (sync): 12.3 h, 98.40 USD`."""
        how = {
            "sync": ", gradients in every step (sync)",
            "diloco": f", local steps, {option.step.every} apart (diloco)",
        }
        where = f"{option.name}{how.get(option.step.strategy, '')}"
        return f"{where}: {self._time_and_money(option.run_s, option.price)}"

    def _time_and_money(self, seconds_s: float, price: float | None) -> str:
        money = "" if price is None else f", {units.money(price, currency=self.currency)}"
        return f"{_time(seconds_s)}{money}"

    def _worth(self, faster: Option) -> str:
        """The highest price per hour at which such a network pays off, beside the quickest."""
        if faster.price is None or self.quickest.price is None:
            return ""
        hourly = (self.quickest.price - faster.price) / faster.run_s * units.HOUR_S
        if hourly <= 0:
            return ""
        text = units.money(hourly, currency=self.currency)
        return f"; such a network is worth up to {text} an hour"

    def _interruptions(self, option: Option) -> Iterator[str]:
        cluster, run_s = option.cluster, option.interrupted_s
        if not cluster.spots:
            return
        apart = units.DURATION.text(cluster.interruption_s)
        taken = f"If one host is taken away every {apart}, {option.name}"
        if math.isinf(run_s):
            yield f"{taken}: hardly ever ends; lower checkpoint.every_steps."
            return
        takes = self._time_and_money(run_s, option.interrupted_price)
        count = run_s / cluster.interruption_s
        yield f"{taken}: {takes}, with {count:.2g} interruptions."

    def _table(self) -> Table:
        cost = [f"cost {self.currency}"] if self.is_priced else []
        right = ("step", "waits", "run", *cost, "speed")
        table = plain_table("option", "exchange", right=right, no_wrap=True)
        for option in self.options:
            step, price = option.step, option.price or 0.0
            short = {"none": "", "plain": "fp32, one ring", "diloco": f"every {step.every} steps"}
            cells = [
                option.name,
                short.get(step.strategy, "every step") + " (?)" * (not option.is_quality_known),
                units.DURATION.text(step.step_s),
                units.SHARE.text(step.exposed_s / step.step_s),
                _time(option.run_s),
                *[f"{price:,.{0 if price >= 1000 else 2}f}" for _ in cost],
                f"{self.speed_up(option):.2f} x",
            ]
            is_recommended = option in (self.cheapest, self.quickest)
            table.add_row(*cells, style="bold" if is_recommended else "")
        return table

    def _values(self, option: Option) -> dict[str, Any]:
        cluster = option.cluster
        names = ("name", "is_at_hand", "is_quality_known", "run_s", "price")
        values = {name: getattr(option, name) for name in names} | asdict(option.step)
        values["exposed_s"] = option.step.exposed_s
        values["speed_up_over_one_rank"] = self.speed_up(option)
        values["hosts"] = [machine.name for machine in cluster.machines]
        values["ranks_per_host"] = list(cluster.ranks_per_host)
        values["interrupted_s"] = option.interrupted_s if cluster.spots else None
        return values


def _unlike(
    machines: Iterable[Machine], key: Callable[[Machine], object]
) -> list[tuple[str, Machine]]:
    """For each kind: ` on` and its hosts' names ("" if there is one kind), and one machine."""
    kinds: dict[object, list[Machine]] = {}
    for machine in machines:
        kinds.setdefault(key(machine), []).append(machine)
    if len(kinds) == 1:
        return [("", group[0]) for group in kinds.values()]
    named = []
    for group in kinds.values():
        names = [machine.name for machine in group]
        more = [f"{len(names) - 2} more"] if len(names) > _FEW_NAMES else names[2:]
        named.append((f" on {', '.join([*names[:2], *more])}", group[0]))
    return named


def _finite(value: Any) -> Any:
    """The same values, with None for infinity, which JSON lacks."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if value == math.inf else value


def _time(seconds_s: float) -> str:
    """In hours, so that options can be compared; below an hour in minutes or seconds."""
    return (units.HOURS if seconds_s >= units.HOUR_S else units.DURATION).text(seconds_s)
