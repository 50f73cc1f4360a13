"""A plan as text and as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from dragoman.base import units
from dragoman.base.terminal import plain_table
from dragoman.cluster.batch_rules import batch_rules
from dragoman.cluster.interruptions import Interrupted
from dragoman.cluster.plan import Plan, Row, StrategyChoice
from dragoman.cluster.plan_assumptions import assumptions
from dragoman.cluster.strategies import MOST_TARGET_TOKENS, Machine, Prediction

_NOTES = {
    "plain": "plain fp32: the default of DistributedDataParallel, one ring of all ranks",
    "sync": "sync: gradients each step, bf16 between hosts, reduced inside each host first",
    "accum": "accum K: the same after every K-th batch; fewer, larger updates",
    "diloco": "diloco H: H local steps, then the hosts exchange their changes "
    "in four bits; F: in F parts, while it trains; H=3 on two replicas cost one small "
    "model 0.11 BLEU (-0.96 to +1.18; 1,500 steps, three seeds), longer ones cost more; no other "
    "model is measured (docs/how-to/slow-links.md)",
    "powersgd": "powersgd: low-rank gradients; for experts, it changes what is learned",
}
_FEW_REPLICAS: Final = 4
"""`diloco` has not been trained to the end with more replicas."""
_UNPROVEN: Final = (
    "Rows with diloco on more than four hosts predict the time of a step, not the quality: "
    "it was never trained with more than four replicas, of one small model."
)
_WORTH_TELLING: Final = 0.005
"""Share of the price: a smaller saving is within the error of a plan."""
_ANY: Final = 10_000


def print_plan(plan: Plan, console: Console) -> None:
    """The plan as text: both tables, the assumptions, the choice and why."""
    for line in _heading(plan):
        _say(console, line)
    _show(console, _strategies(plan))
    seen = dict.fromkeys(row.prediction.strategy for row in plan.rows)
    for note in (_NOTES[strategy] for strategy in seen if strategy in _NOTES):
        _say(console, f"  {note}", style="dim")
    _say(console, "")
    _show(console, _what_ifs(plan))
    if shortest := [row.name for row in plan.what_ifs if row.cluster.least_decides]:
        why = "The shortest step of a GPU (see below), not its rate, decides for"
        _say(console, f"{why}: {', '.join(shortest)}.", style="dim")
    without = [one.name for one in plan.cluster.machines if one.price_per_hour is None]
    if _priced(plan) and without:
        why = f"hosts.toml has no price_per_hour for {', '.join(without)}"
        _say(console, f"The cost is not known: {why}.")
    if any(
        row.prediction.strategy == "diloco" and row.cluster.num_hosts > _FEW_REPLICAS
        for row in plan.rows
    ):
        _say(console, _UNPROVEN, style="dim")
    _say(console, "\nAssumptions:")
    for one in assumptions(plan):
        _say(console, f"  {one.what}: {one.value} ({one.source})", style="dim")
    _say(console, "")
    _say(console, recommendation(plan))
    for line in (*worth_of_links(plan), *larger_batches(plan)):
        _say(console, line)
    if plan.interrupted is not None:
        _say(console, interruptions(plan.interrupted, currency=plan.currency))
    _say(console, "Training alone: preparing, validating and saving come on top.", style="dim")


def recommendation(plan: Plan) -> str:
    """The choice in words: what to use, why, how long it takes and what it costs."""
    choice, row = plan.choice, plan.chosen
    chosen = choice.prediction
    cost = "" if row.price is None else f" and {units.money(row.price, currency=plan.currency)}"
    if cost and _has_spot_prices(plan):
        cost += " at the full price"
    what = f"Train on {chosen.label}" if chosen.strategy == "none" else f"Use {chosen.label}"
    if len(choice.hosts) < plan.cluster.num_hosts:
        alone = chosen.strategy == "none"
        what += f" ({choice.cluster.machines[0].name})" if alone else f" on {choice.who}"
    return f"{what}: {units.DURATION.text(row.run_s)}{cost}, because {choice.why}."


def worth_of_links(plan: Plan) -> list[str]:
    """The savings of a faster network, one line for each; nothing without prices.

    Each is compared with the choice for these hosts. If that choice hides the link with local steps
    or larger batches, it is also compared at equal training, synchronising every step. The saving
    divided by the hours of the faster run is the highest price per hour that such a network is
    worth.
    """
    says = []
    for link in plan.faster_links:
        saved = _saving(plan, plan.chosen, link.chosen)
        if saved is None:
            continue
        name = link.name if link.name.endswith("ports") else f"no limit ({link.name})"
        line = f"With {name} the run would cost {saved}"
        if plan.synced is not None and plan.choice.prediction.strategy not in ("sync", "none"):
            synced = _saving(plan, plan.synced, link.synced)
            line += f"; if it synchronised every step, {synced}"
        says.append(f"{line}.")
    return says


def _saving(plan: Plan, now: Row, then: Row) -> str | None:
    """The saving in words: how much cheaper, how much sooner, and its worth per hour."""
    if now.price is None or then.price is None:
        return None
    saved, sooner_s = now.price - then.price, now.run_s - then.run_s
    if saved <= _WORTH_TELLING * now.price:
        return "no less"
    hourly = units.money(saved / then.run_s * units.HOUR_S, currency=plan.currency)
    less = f"{units.money(saved, currency=plan.currency)} less"
    if _has_spot_prices(plan):
        less += " at the full price"
    when = f"{units.DURATION.text(abs(sooner_s))} {'sooner' if sooner_s >= 0 else 'later'}"
    return f"{less} and end {when}, worth {hourly} an hour"


def larger_batches(plan: Plan) -> list[str]:
    """Advice on the learning rate if `accum` enlarges the batch, or if it grew with the ranks."""
    factor = plan.larger_batch
    if plan.update is None or factor < 2:
        return []
    tokens = plan.workload.target_tokens_per_step
    now, then = units.SHORT_COUNT.text(tokens), units.SHORT_COUNT.text(tokens * factor)
    if plan.choice.prediction.strategy == "accum":
        lines = [
            f"An update of {factor} batches has {then} target tokens, not {now}. For the same text "
            "the learning rate follows by one of these rules (advice: nothing is changed):"
        ]
    else:
        name, count = plan.update.batch
        lines = [
            f"The batch has {now} target tokens with any number of ranks, so the learning rate "
            f"stays. With as many on each of {factor} ranks, data.{name}={count * factor} "
            f"({then}), it follows by one of these rules (advice: nothing is changed):"
        ]
    if plan.update.noise_tokens is not None:
        noise = units.SHORT_COUNT.text(plan.update.noise_tokens)
        lines.append(
            f"  The gradient noise scale is {noise} target tokens: larger batches save few steps."
        )
    for rule in batch_rules(plan.update, factor=factor):
        beyond = f"; {rule.beyond}" if rule.beyond else ""
        lines.append(f"  {rule.name} ({rule.source}): {' '.join(rule.settings)}{beyond}")
    if plan.update.has_stages:
        lines.append(f"  Divide the steps of each stage in the recipe by {factor}, too.")
    if tokens * factor > MOST_TARGET_TOKENS:
        most = units.SHORT_COUNT.text(MOST_TARGET_TOKENS)
        lines.append(f"  No rule is known to hold beyond {most} target tokens (Ott et al. 2018).")
    return lines


def interruptions(expected: Interrupted, *, currency: str) -> str:
    """In words: the course if hosts may be taken away, and the course without interruptions."""
    every = f"saving every {units.COUNT.text(expected.every_steps)} steps"
    apart = f"one every {units.DURATION.text(expected.mean_s)}"
    if math.isinf(expected.run_s):
        says = f"If hosts are taken away, {apart}, the run is unlikely ever to end, {every}"
    else:
        says = (
            f"If hosts are taken away, {apart}, the run takes "
            f"{units.DURATION.text(expected.run_s)}{_at(expected.price, currency)}, {every}: "
            f"{expected.count:.3g} interruptions expected"
        )
    if math.isinf(expected.best_run_s):
        best = "nor with any other checkpoint.every_steps"
    else:
        best = (
            f"every {units.COUNT.text(expected.best_every_steps)} steps it would take "
            f"{units.DURATION.text(expected.best_run_s)}{_at(expected.best_price, currency)}, the "
            "least (checkpoint.every_steps)"
        )
    steady = _at(expected.steady_price, currency)
    return f"{says}; {best}. Undisturbed: {units.DURATION.text(expected.steady_s)}{steady}."


def _at(price: float | None, currency: str) -> str:
    return "" if price is None else f" and {units.money(price, currency=currency)}"


def plan_as_json(plan: Plan) -> str:
    """The plan as JSON; units are in the names."""
    cluster, link = plan.cluster, plan.cluster.link
    values = {
        "recipe": plan.workload.name,
        "num_parameters": plan.workload.num_parameters,
        "flop_per_step": plan.workload.flop_per_step,
        "target_tokens_per_step": plan.workload.target_tokens_per_step,
        "max_steps": plan.workload.max_steps,
        "ranks_per_host": list(cluster.ranks_per_host),
        "link_bytes_per_s": link.bytes_per_s,
        "link_latency_s": link.latency_s,
        "link_source": link.source,
        "hosts": [_machine_values(machine) for machine in cluster.machines],
        "shortest_step_decides": cluster.least_decides,
        "assumptions": [one._asdict() for one in assumptions(plan)],
        "currency": plan.currency,
        "strategies": [_row_values(row) for row in plan.strategies],
        "what_ifs": [_row_values(row) for row in plan.what_ifs],
        "choice": _choice_values(plan.choice),
        "faster_links": [
            {
                "name": link.name,
                "chosen": _saving_values(plan.chosen, link.chosen),
                "sync": plan.synced and _saving_values(plan.synced, link.synced),
            }
            for link in plan.faster_links
        ],
        "larger_batch": _larger_batch_values(plan),
        "interrupted": _interrupted_values(plan.interrupted),
    }
    return json.dumps(values, indent=2, ensure_ascii=False)


def _machine_values(machine: Machine) -> dict[str, Any]:
    return {
        "name": machine.name,
        "ranks": machine.ranks,
        "rate": machine.rate,
        "rate_source": machine.source,
        "inside_bytes_per_s": machine.inside.bytes_per_s,
        "inside_source": machine.inside.source,
        "price_per_hour": machine.price_per_hour,
        "sends_bytes_per_s": _known(machine.directions.sends_bytes_per_s),
        "receives_bytes_per_s": _known(machine.directions.receives_bytes_per_s),
    }


def _known(rate: float) -> float | None:
    return None if math.isinf(rate) else rate


def _heading(plan: Plan) -> list[str]:
    workload, cluster = plan.workload, plan.cluster
    size = workload.num_parameters * 4
    compute = f"compute: {units.STEP_TIME.text(cluster.compute_s)} without any network"
    if cluster.is_given and cluster.waits_count:
        compute += f", {cluster.waits:.2f} x --compute: all wait for the slowest of "
        compute += f"{cluster.num_ranks} ranks (see below)"
    if cluster.least_decides:
        slowest = max(cluster.machines, key=lambda machine: machine.least_s)
        compute = (
            f"compute: no shorter than {units.STEP_TIME.text(cluster.least_s)} "
            f"({slowest.least_source}); arithmetic alone would take less"
        )
    return [
        f"{workload.name}: {units.COUNT.text(workload.num_parameters)} parameters "
        f"({units.SIZE.text(size)} of fp32 gradients), "
        f"{units.SHORT_COUNT.text(workload.target_tokens_per_step)} target tokens a step, "
        f"{units.COUNT.text(workload.max_steps)} steps",
        f"hosts: {cluster}, {'between more' if cluster.num_hosts == 1 else 'between them'} "
        f"{units.BYTE_RATE.text(cluster.link.bytes_per_s)} each way in an all-reduce "
        f"({cluster.link.source})",
        *(f"  {machine.name} {machine.directions.limit}" for machine in cluster.one_sided),
        compute,
        "",
    ]


def _say(console: Console, text: str, *, style: str = "") -> None:
    console.print(text, style=style, highlight=False)


def _show(console: Console, table: Table) -> None:
    """The whole table, even if the terminal is narrower: a number cut short is another number."""
    table.width = console.measure(table, options=console.options.update(max_width=_ANY)).maximum
    console.print(table, crop=False)


def _strategies(plan: Plan) -> Table:
    table = plain_table(
        "strategy", right=("step", "waits", "wire", *_run_headings(plan)), no_wrap=True
    )
    for row in plan.strategies:
        step = row.prediction
        cells = [
            row.name,
            units.DURATION.text(step.step_s),
            units.SHARE.text(step.exposed_s / step.step_s),
            units.SIZE.text(step.wire_bytes),
        ]
        table.add_row(*cells, *_run(plan, row), style=_style(row))
    return table


def _what_ifs(plan: Plan) -> Table:
    table = plain_table("what if", "with", right=("step", *_run_headings(plan)), no_wrap=True)
    for row in plan.what_ifs:
        cells = [row.name, row.prediction.label, units.DURATION.text(row.prediction.step_s)]
        table.add_row(*cells, *_run(plan, row), style=_style(row))
    return table


def _run_headings(plan: Plan) -> list[str]:
    return [
        "run",
        *([f"{'full ' * _has_spot_prices(plan)}cost {plan.currency}"] if _priced(plan) else []),
        f"to one {plan.unit}",
    ]


def _has_spot_prices(plan: Plan) -> bool:
    """Whether a host has a spot price, which counts only with the interruptions that it brings."""
    return plan.cluster.spot_price_per_hour != plan.cluster.price_per_hour


def _run(plan: Plan, row: Row) -> list[str]:
    """The values under `_run_headings`."""
    cost = "?" if row.price is None else f"{row.price:,.{0 if row.price >= 1000 else 2}f}"
    faster = row.speed_up >= 1
    slower = 1 / row.speed_up
    digits = 2 if slower < 10 else 1 if slower < 100 else 0
    ratio = f"{row.speed_up:.2f} x" if faster else f"{slower:,.{digits}f} x slower"
    # In hours, so that rows can be compared; less than an hour in minutes or seconds.
    run = (units.HOURS if row.run_s >= units.HOUR_S else units.DURATION).text(row.run_s)
    return [run, *([cost] if _priced(plan) else []), ratio]


def _priced(plan: Plan) -> bool:
    return any(row.price is not None for row in plan.rows)


def _style(row: Row) -> str:
    return "" if row.speed_up >= 1 else "red"


def _row_values(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        **_prediction_values(row.prediction),
        "ranks_per_host": list(row.cluster.ranks_per_host),
        "run_s": row.run_s,
        "price": row.price,
        "speed_up_over_one_rank": row.speed_up,
        "faster_than_one_rank": row.speed_up > 1,
    }


def _saving_values(now: Row, then: Row) -> dict[str, float | None]:
    priced = now.price is not None and then.price is not None
    return {
        "saved_s": now.run_s - then.run_s,
        "saved": (now.price or 0.0) - (then.price or 0.0) if priced else None,
    }


def _larger_batch_values(plan: Plan) -> dict[str, Any] | None:
    if plan.update is None or plan.larger_batch < 2:
        return None
    rules = batch_rules(plan.update, factor=plan.larger_batch)
    return {"factor": plan.larger_batch, "rules": [asdict(rule) for rule in rules]}


def _interrupted_values(expected: Interrupted | None) -> dict[str, Any] | None:
    if expected is None:
        return None
    values = asdict(expected) | {"interruptions": expected.count}
    return {
        name: None if isinstance(value, float) and math.isinf(value) else value
        for name, value in values.items()
    }


def _choice_values(choice: StrategyChoice) -> dict[str, Any]:
    return {
        **_prediction_values(choice.prediction),
        "ranks_per_host": list(choice.cluster.ranks_per_host),
        "hosts": list(choice.hosts),
        "why": choice.why,
    }


def _prediction_values(prediction: Prediction) -> dict[str, Any]:
    values = asdict(prediction)
    wire_bytes = values.pop("wire_bytes")
    return values | {"exposed_s": prediction.exposed_s, "wire_bytes_per_step": wire_bytes}
