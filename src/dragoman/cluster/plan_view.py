"""A plan as people read it and as programs do."""

from __future__ import annotations

import json
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from dragoman.base import units
from dragoman.cluster import step_time
from dragoman.cluster.plan import Choice, Plan, Row

_NOTES = {
    "plain": "plain fp32: what DistributedDataParallel does by default, one ring of all ranks",
    "sync": "sync: gradients each step, bf16 between hosts, reduced inside each host first",
    "accum": "accum K: the same after every K-th batch; fewer, larger updates",
    "diloco": "diloco H: H local steps, then the hosts put together what they "
    "learned, in four bits; F: in F parts, while it trains; H=3 learned as sync does in one small "
    "model (1,500 steps, two and four replicas, BLEU within 1), longer ones less; beyond that "
    "nobody has measured (docs/how-to/slow-links.md)",
    "powersgd": "powersgd: low-rank gradients; for experts, it changes what is learned",
}
_FEW_REPLICAS: Final = 4
"""More hosts than these have trained with `diloco` nowhere, as far as its quality is known."""
_UNPROVEN: Final = (
    "Rows with diloco on more than four hosts say what a step takes, not what is learned: "
    "its quality is measured with at most four replicas of one small model."
)
_ANY: Final = 10_000


def print_plan(plan: Plan, console: Console) -> None:
    """The plan as text: what it assumes, both tables, the choice and why."""
    for line in _assumptions(plan):
        _say(console, line)
    _show(console, _strategies(plan))
    seen = dict.fromkeys(row.prediction.strategy for row in plan.strategies)
    for note in (_NOTES[strategy] for strategy in seen if strategy in _NOTES):
        _say(console, f"  {note}", style="dim")
    _say(console, "")
    _show(console, _what_ifs(plan))
    if any(map(_is_unproven, _all_rows(plan))):
        _say(console, _UNPROVEN, style="dim")
    _say(console, "")
    _say(console, recommendation(plan))
    _say(console, "Training alone: preparing, validating and saving come on top.", style="dim")


def recommendation(plan: Plan) -> str:
    """The choice in words: what, why, how long and for how much."""
    chosen = plan.choice.prediction
    row = next(row for row in _all_rows(plan) if row.prediction == chosen)
    cost = "" if row.price is None else f" and {units.money(row.price, currency=plan.currency)}"
    what = f"Train on {chosen.label}" if chosen.strategy == "none" else f"Use {chosen.label}"
    if plan.choice.layout.num_hosts < plan.cluster.layout.num_hosts and chosen.strategy != "none":
        what += f" on the {row.name}"
    return f"{what}: {units.DURATION.text(row.run_s)}{cost}, because {plan.choice.why}."


def plan_as_json(plan: Plan) -> str:
    """The same as JSON; units are in the names."""
    cluster, link = plan.cluster, plan.cluster.link
    values = {
        "recipe": plan.workload.name,
        "num_parameters": plan.workload.num_parameters,
        "flop_per_step": plan.workload.flop_per_step,
        "target_tokens_per_step": plan.workload.target_tokens_per_step,
        "max_steps": plan.workload.max_steps,
        "ranks_per_host": list(cluster.layout.ranks_per_host),
        "link_bytes_per_s": link.bytes_per_s,
        "link_latency_s": link.latency_s,
        "link_source": link.source,
        "inside_bytes_per_s": link.inside.bytes_per_s,
        "inside_source": link.inside.source,
        "gpu_spread": plan.compute.spread,
        "compute_source": plan.compute.source,
        "currency": plan.currency,
        "strategies": [_row_values(row) for row in plan.strategies],
        "what_ifs": [_row_values(row) for row in plan.what_ifs],
        "choice": _choice_values(plan.choice),
    }
    return json.dumps(values, indent=2, ensure_ascii=False)


def _assumptions(plan: Plan) -> list[str]:
    workload, cluster = plan.workload, plan.cluster
    size = workload.num_parameters * 4
    compute, link = plan.compute, cluster.link
    compute_s = compute.step_s(cluster.layout.num_ranks)
    waits = 1 + compute.spread * step_time.largest_of_draws(cluster.layout.num_ranks)
    return [
        f"{workload.name}: {units.COUNT.text(workload.num_parameters)} parameters "
        f"({units.SIZE.text(size)} of fp32 gradients), "
        f"{units.SHORT_COUNT.text(workload.target_tokens_per_step)} target tokens a step, "
        f"{units.COUNT.text(workload.max_steps)} steps",
        f"network: {cluster.layout}, {units.BYTE_RATE.text(link.bytes_per_s)} each way "
        f"({link.source})",
        f"inside a host: {link.inside.name}, {units.BYTE_RATE.text(link.inside.bytes_per_s)} each "
        f"way in an all-reduce ({link.inside.source})",
        f"compute: {units.STEP_TIME.text(compute_s)} without any network; {compute.source}",
        *(
            [
                f"waiting for the slowest: {waits:.2f} x the mean step, counted in it (assumed; "
                "fitted to 8 x A100 of NVIDIA's table)"
            ]
            if waits > 1
            else []
        ),
        "",
    ]


def _say(console: Console, text: str, *, style: str = "") -> None:
    console.print(text, style=style, highlight=False)


def _show(console: Console, table: Table) -> None:
    """Whole, also where the terminal is narrower: a number that is cut short is another number."""
    table.width = console.measure(table, options=console.options.update(max_width=_ANY)).maximum
    console.print(table, crop=False)


def _strategies(plan: Plan) -> Table:
    table = _table(["strategy"], ["step", "waits", "wire", *_run_headings(plan)])
    for row in plan.strategies:
        step = row.prediction
        cells = [
            row.name,
            _step(step.step_s),
            units.SHARE.text(step.exposed_s / step.step_s),
            units.SIZE.text(step.wire_bytes),
        ]
        table.add_row(*cells, *_run(plan, row), style=_style(row))
    return table


def _what_ifs(plan: Plan) -> Table:
    table = _table(["what if", "with"], ["step", *_run_headings(plan)])
    for row in plan.what_ifs:
        cells = [row.name, row.prediction.label, _step(row.prediction.step_s)]
        table.add_row(*cells, *_run(plan, row), style=_style(row))
    return table


def _table(left: list[str], right: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in left:
        table.add_column(heading, no_wrap=True)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _run_headings(plan: Plan) -> list[str]:
    return [
        "run",
        *([f"cost {plan.currency}"] if _priced(plan) else []),
        f"to one {plan.compute.unit}",
    ]


def _run(plan: Plan, row: Row) -> list[str]:
    """What stands under `_run_headings`."""
    cost = "?" if row.price is None else f"{row.price:,.{0 if row.price >= 1000 else 2}f}"
    faster = row.speed_up >= 1
    slower = 1 / row.speed_up
    digits = 2 if slower < 10 else 1 if slower < 100 else 0
    ratio = f"{row.speed_up:.2f} x" if faster else f"{slower:,.{digits}f} x slower"
    return [units.HOURS.text(row.run_s), *([cost] if _priced(plan) else []), ratio]


def _is_unproven(row: Row) -> bool:
    return row.prediction.strategy == "diloco" and row.layout.num_hosts > _FEW_REPLICAS


def _priced(plan: Plan) -> bool:
    return any(row.price is not None for row in _all_rows(plan))


def _step(seconds: float) -> str:
    return units.STEP_TIME.text(seconds).removesuffix("/step")


def _style(row: Row) -> str:
    return "" if row.speed_up >= 1 else "red"


def _all_rows(plan: Plan) -> tuple[Row, ...]:
    return plan.strategies + plan.what_ifs


def _row_values(row: Row) -> dict[str, Any]:
    prediction = row.prediction
    return {
        "name": row.name,
        "strategy": prediction.strategy,
        "label": prediction.label,
        "every": prediction.every,
        "num_fragments": prediction.num_fragments,
        "ranks_per_host": list(row.layout.ranks_per_host),
        "step_s": prediction.step_s,
        "compute_s": prediction.compute_s,
        "exposed_s": prediction.exposed_s,
        "wire_bytes_per_step": prediction.wire_bytes,
        "run_s": row.run_s,
        "price": row.price,
        "speed_up_over_one_rank": row.speed_up,
        "faster_than_one_rank": row.speed_up > 1,
    }


def _choice_values(choice: Choice) -> dict[str, Any]:
    prediction = choice.prediction
    return {
        "strategy": prediction.strategy,
        "label": prediction.label,
        "every": prediction.every,
        "num_fragments": prediction.num_fragments,
        "step_s": prediction.step_s,
        "ranks_per_host": list(choice.layout.ranks_per_host),
        "first_host": choice.first_host,
        "why": choice.why,
    }
