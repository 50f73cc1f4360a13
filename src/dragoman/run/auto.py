"""`strategy = "auto"`: measure link and compute with what training uses, then ask the planner.

The choice is made once, before the first step. It is printed with its reason and kept in every
checkpoint: a run resumes with its first strategy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

import torch

from dragoman.cluster.plan import StrategyChoice, choose, choose_for_all_ranks
from dragoman.cluster.rates import Inside, Link, inside_of
from dragoman.cluster.strategies import Cluster, Machine
from dragoman.cluster.workload import Workload
from dragoman.data.loader import Update
from dragoman.distributed.config import DistributedConfig
from dragoman.distributed.diloco_work import measure_weight_s
from dragoman.distributed.gradient_sync import NoSync
from dragoman.distributed.link_rate import LinkRate, measure_link
from dragoman.distributed.topology import Topology, find_topology
from dragoman.distributed.world import World
from dragoman.recipe.recipe import Recipe
from dragoman.telemetry.events import Alert, EventWriter, StrategyChosen
from dragoman.training.step import TrainStep

_WARM_STEPS: Final = 2
_TIMED_STEPS: Final = 7
_LONGEST_ADAM_PERIOD: Final = 8
"""Steps: with 3 and 6 of them `diloco` learns more with an outer Adam, with 32 less; the turning
point between 6 and 32 was not measured."""


class ChosenStrategy(NamedTuple):
    """The recipe's section with the choice in it, and the planned seconds per step."""

    config: DistributedConfig
    planned_step_s: float | None
    link_bytes_per_s: float | None = None
    """The link's measured rate, if there are several hosts and the choice was made now."""


def choose_strategy(
    recipe: Recipe,
    model: torch.nn.Module,
    updates: Iterator[Update],
    *,
    world: World,
    events: EventWriter,
) -> ChosenStrategy:
    """Choose a strategy for a recipe on these ranks; every rank calls it and gets the same one.

    updates: the first ones of the run; the model is not changed by them.
    """
    if world.world_size == 1:
        return ChosenStrategy(recipe.distributed.model_copy(update={"strategy": "sync"}), None)
    topology = find_topology(world)
    compute_s, tokens = measure_compute(recipe, model, updates, world=world)
    rate = measure_link(world, topology)
    workload = Workload(
        name=recipe.name,
        shapes=tuple(tuple(weight.shape) for weight in model.parameters()),
        flop_per_step=0.0,
        target_tokens_per_step=tokens,
        max_steps=recipe.train.max_steps,
        micro_batches_per_step=recipe.data.accumulate,
    )
    # Ranks of one measured speed; alone, one of them would do the work of all.
    alike = Machine(alone_s=compute_s * world.world_size, inside=inside(rate, topology, world))
    cluster = Cluster.of(
        map(len, topology.hosts),
        Link(rate.bytes_per_s, rate.latency_s),
        like=alike,
        # Inside one host there is no `diloco` to choose.
        diloco_weight_s=measure_weight_s(world) if topology.num_hosts > 1 else 0.0,
    )
    choice, best = choose_for_all_ranks(cluster, workload), choose(cluster, workload)
    if world.is_main:
        if best.cluster.ranks_per_host != cluster.ranks_per_host:
            remedy = "stop and train on fewer, or give the hosts a faster network"
            alert = Alert(severity="warning", cause=best.why, remedy=remedy)
            events.write(alert, step=0)
        events.write(_told(choice, rate, max_steps=recipe.train.max_steps), step=0)
    link_bytes_per_s = rate.bytes_per_s if topology.num_hosts > 1 else None
    return ChosenStrategy(
        resolved(recipe.distributed, choice), choice.prediction.step_s, link_bytes_per_s
    )


def measure_compute(
    recipe: Recipe,
    model: torch.nn.Module,
    updates: Iterator[Update],
    *,
    world: World,
    at_most_s: float = math.inf,
) -> tuple[float, float]:
    """Seconds per step on the slowest rank without any network, and target tokens per step.

    These are real steps with a learning rate of zero, so that the weights stay as they are.
    at_most_s: no step begins after that time, but at least one is timed.
    """
    step = TrainStep(
        model,
        sync=NoSync(model),
        train=recipe.train,
        optimizer=recipe.optimizer,
        world=world,
    )
    tokens = steps = 0
    model.train()
    started = time.monotonic()
    for number, update in enumerate(islice(updates, _WARM_STEPS + _TIMED_STEPS)):
        if number == _WARM_STEPS:
            step.timer.take()
        if number > _WARM_STEPS and time.monotonic() - started > at_most_s:
            break
        step(update, learning_rate=0.0)
        step.timer.step_done()
        tokens += update.global_target_tokens
        steps += 1
    own_s = step.timer.take().step_median_s
    return max(world.gather_json(own_s)), tokens / steps


def device_name(world: World) -> str:
    """The device of this rank: `cpu`, or its driver's name for it."""
    if world.device.type == "cpu":
        return "cpu"
    return torch.cuda.get_device_name(world.device)


def inside(rate: LinkRate, topology: Topology, world: World) -> Inside:
    """The rate between the ranks of a host: as measured if there is one host, otherwise the usual
    rate of this kind of device."""
    if topology.num_hosts == 1:
        return Inside("measured", rate.bytes_per_s, "measured")
    return inside_of(device_name(world))


def resolved(config: DistributedConfig, choice: StrategyChoice) -> DistributedConfig:
    """The section of the recipe with the choice in place of "auto".

    Data is sent in the number formats that the plan assumed, whatever the recipe says.
    """
    chosen = choice.prediction
    update: dict[str, object] = {"strategy": chosen.strategy, "wire": "bf16"}
    if chosen.strategy == "accum":
        update["accum"] = config.accum.model_copy(update={"every": chosen.every})
    if chosen.strategy == "diloco":
        numbers = {
            "every": chosen.every,
            "fragments": max(1, chosen.num_fragments),
            "delay": chosen.delay,
            "wire": "fp4",
            "outer": config.diloco.outer if chosen.every <= _LONGEST_ADAM_PERIOD else "sgd",
        }
        update["diloco"] = config.diloco.model_copy(update=numbers)
    return config.model_copy(update=update)


def _told(choice: StrategyChoice, rate: LinkRate, *, max_steps: int) -> StrategyChosen:
    plan = choice.prediction
    return StrategyChosen(
        strategy=plan.strategy,
        label=plan.label,
        why=choice.why,
        compute_s=plan.compute_s,
        link_bytes_per_s=rate.bytes_per_s,
        link_latency_s=rate.latency_s,
        planned_step_s=plan.step_s,
        planned_run_s=plan.step_s * max_steps,
        planned_wire_bytes=round(plan.wire_bytes),
    )
