"""The assumptions behind the figures of a plan, one line each: subject, value and source.

A source begins with a word of `rates`: measured, published, assumed, ... A figure that is known for
one machine or model is called assumed for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from dragoman.base import units
from dragoman.cluster import interruptions, rates, step_time, strategies
from dragoman.cluster.plan import NEARLY_FREE, Plan
from dragoman.cluster.strategies import Machine
from dragoman.distributed import wire
from dragoman.recipe.estimate import TYPICAL_LENGTH


class Assumption(NamedTuple):
    """One assumption of a plan."""

    what: str
    value: str
    source: str


def assumptions(plan: Plan) -> list[Assumption]:
    """All assumptions of this plan, those about machines first."""
    parts = (_compute, _network, _work, _spots, _rules)
    return [Assumption(*line) for part in parts for line in part(plan)]


Lines = Iterable[tuple[str, str, str]]


def _compute(plan: Plan) -> Lines:
    cluster = plan.cluster
    for who, machine in _unlike(cluster.machines, lambda one: (one.rate, one.source)):
        yield f"a rank{who}", machine.rate, machine.source
    yield "its rate", "the same for every model, batch and share of a batch", "assumed"
    slowest = max(cluster.machines, key=lambda one: one.least_s)
    if slowest.least_s > 0:
        count = plan.workload.micro_batches_per_step
        times = "" if count == 1 else f", {count} times: data.accumulate"
        least = units.DURATION.text(slowest.least_s)
        value = f"no shorter than {least}: kernels have to be started{times}"
        yield "a step of a GPU", value, slowest.least_source
    waiting = [row.cluster for row in plan.rows if row.cluster.waits_count]
    if waiting:
        given = "; --compute is taken for the mean, and multiplied by it" * cluster.is_given
        yield (
            "steps of like GPUs",
            f"differ by {slowest.spread:.1%} (standard deviation), and all wait for the slowest: "
            f"{waiting[0].waits:.2f} x the mean with {waiting[0].num_ranks}{given}",
            step_time.SPREAD_SOURCE,
        )
    if slowest.shares_processor:
        yield "ranks of a host", "share its processor: two are as fast as one alone", "assumed"


def _network(plan: Plan) -> Lines:
    cluster, link = plan.cluster, plan.cluster.link
    several = [machine for machine in cluster.machines if machine.ranks > 1]
    for who, machine in _unlike(several, lambda one: one.inside):
        inside = machine.inside
        rate = (
            f"{inside.name}, {units.BYTE_RATE.text(inside.bytes_per_s)} each way in an all-reduce"
        )
        yield f"inside {who.removeprefix(' on ') or 'a host'}", rate, inside.source
    if several:
        yield "a message inside a host", "no time of its own", "assumed"
    rate = f"{units.BYTE_RATE.text(link.bytes_per_s)} each way"
    if cluster.one_sided:
        ways = "; ".join(f"{one.name} {one.directions.limit}" for one in cluster.one_sided)
        rate += f" in an all-reduce: {ways}"
    yield "between hosts", rate, link.source
    yield "a port's rate", f"{rates.NOMINAL_SHARE:.1%} of it is payload", rates.NOMINAL_SOURCE
    yield (
        "a message between hosts",
        f"{units.DURATION.text(link.latency_s)}, and twice around all hosts for each part: a ring, "
        "no tree",
        link.latency_source,
    )
    yield (
        "overlap",
        f"backward is {step_time.BACKWARD_SHARE:.0%} of the compute, {step_time.OVERLAP_SHARE:.0%} "
        "of the last micro-batch's hides gradients on their way, the last of the "
        f"{units.SIZE.text(wire.BUCKET_BYTES)} parts excepted",
        step_time.OVERLAP_SOURCE,
    )
    yield (
        "bytes a weight",
        f"{wire.FP32_BYTES} plain and inside hosts, {wire.BF16_BYTES} in bf16, "
        f"{wire.FP4_BYTES:.2f} in four bits, 2 (N-1)/N times for N ranks",
        "calculated: ring all-reduce (Patarasuk and Yuan 2009); our tests count them",
    )


def _work(plan: Plan) -> Lines:
    workload = plan.workload
    yield (
        "a batch",
        f"full, {units.SHORT_COUNT.text(workload.target_tokens_per_step)} target tokens, as many "
        f"source tokens, {TYPICAL_LENGTH} in a sentence; a rank's share fits its memory (see "
        "run --dry-run)",
        "assumed",
    )
    flop = workload.flop_per_step / workload.target_tokens_per_step
    yield (
        "arithmetic",
        f"{units.FLOPS.text(flop)} for a target token and its source",
        "calculated: 6 for each weight in a product (Kaplan et al. 2020), and attention",
    )
    yield (
        "work of powersgd",
        f"{step_time.POWERSGD_COMPUTE - 1:.0%} of the compute; rank {strategies.POWERSGD_RANK}, "
        f"used if it shrinks a matrix by more than {wire.POWERSGD_LEAST_GAIN} x",
        step_time.POWERSGD_SOURCE,
    )
    weight_s = plan.cluster.diloco_weight_s
    yield (
        "work of diloco",
        f"{weight_s * 1e9:.3g} ns a weight from one all-reduce to the next",
        plan.cluster.diloco_source,
    )


def _spots(plan: Plan) -> Lines:
    expected = plan.interrupted
    if expected is None:
        return
    yield (
        "interruptions",
        f"at a constant rate, one every {units.DURATION.text(expected.mean_s)} among the hosts; "
        "each costs the work since the last checkpoint and the restart; all are paid meanwhile",
        "given; calculated: Daly 2006",
    )
    yield (
        "restart",
        f"{units.DURATION.text(expected.restart_s)}: replacement_s, and "
        f"{units.DURATION.text(interruptions.RESTART_S)} to start again",
        f"given; {interruptions.RESTART_SOURCE}",
    )
    yield (
        "a checkpoint",
        f"{interruptions.SAVED_BYTES} bytes a weight, {units.DURATION.text(expected.save_s)} at "
        f"{units.BYTE_RATE.text(plan.cluster.save_bytes_per_s)}",
        plan.cluster.save_source,
    )


def _rules(plan: Plan) -> Lines:
    del plan
    yield (
        "larger batches",
        f"learn as well up to {strategies.MOST_TARGET_TOKENS:,} target tokens, with at least "
        f"{strategies.LEAST_UPDATES:,} updates",
        "published: Ott et al. 2018; assumed for other corpora",
    )
    yield (
        "rules of the choice",
        f"a network that costs no more than {NEARLY_FREE} x is left alone; at most "
        f"K={strategies.MOST_ACCUMULATION}, F={strategies.MOST_FRAGMENTS}, "
        f"H={strategies.MOST_SYNC_EVERY}; links may be {strategies.DELAY_MARGIN} x slower; steps "
        f"{strategies.MOST_STEP_RATIO} x longer for younger gradients",
        "assumed: our choice",
    )
    yield "further hosts", "like the first, in rate, links and price", "assumed"


def _unlike(
    machines: Iterable[Machine], key: Callable[[Machine], object]
) -> list[tuple[str, Machine]]:
    """For each kind: ` on` and its hosts' names ("" if there is one kind), and one machine."""
    kinds: dict[object, list[Machine]] = {}
    for machine in machines:
        kinds.setdefault(key(machine), []).append(machine)
    if len(kinds) == 1:
        return [("", group[0]) for group in kinds.values()]
    return [(f" on {_names(group)}", group[0]) for group in kinds.values()]


def _names(machines: list[Machine]) -> str:
    names = [machine.name for machine in machines]
    return ", ".join(names if len(names) <= 3 else [*names[:2], f"{len(names) - 2} more"])
