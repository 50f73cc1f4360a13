"""`strategy = "auto"`: time the compute and the exchange of this training, then pick.

The choice is made once, before the first step. It is printed with its reason and kept in every
checkpoint: a run resumes with its first strategy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple

import torch

from dragoman.base import units
from dragoman.data.loader import Update
from dragoman.distributed.config import DistributedConfig
from dragoman.distributed.diloco_work import measure_weight_s
from dragoman.distributed.gradient_sync import NoSync
from dragoman.distributed.link_rate import measure_link
from dragoman.distributed.step_time import Exchange, HostRanks, Step
from dragoman.distributed.topology import find_topology
from dragoman.distributed.world import World
from dragoman.recipe.recipe import Recipe
from dragoman.telemetry.events import Alert, Recorder, StrategyChosen
from dragoman.training.config import Precision
from dragoman.training.step import TrainStep

_WARM_STEPS: Final = 2
_TIMED_STEPS: Final = 7


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
    precision: Precision,
    world: World,
    events: Recorder,
) -> ChosenStrategy:
    """Choose a strategy for a recipe on these ranks; every rank calls it and gets the same one.

    updates: the first ones of the run; the model is not changed by them.
    """
    if world.world_size == 1:
        return ChosenStrategy(recipe.distributed.model_copy(update={"strategy": "sync"}), None)
    compute_s, _ = measure_compute(recipe, model, updates, precision=precision, world=world)
    with closing(find_topology(world)) as topology:
        rate = measure_link(world, topology)
    several = topology.num_hosts > 1
    exchange = Exchange(
        # Sums between hosts were timed with those inside hosts.
        hosts=tuple(
            HostRanks(len(ranks), math.inf if several else rate.bytes_per_s)
            for ranks in topology.hosts
        ),
        compute_s=compute_s,
        shapes=[tuple(weight.shape) for weight in model.parameters()],
        bytes_per_s=rate.bytes_per_s,
        latency_s=rate.latency_s,
        micro_batches=recipe.data.accumulate,
        # Inside one host there is no `diloco` to choose.
        weight_s=measure_weight_s(world) if several else 0.0,
    )
    step, why = exchange.choose()
    if world.is_main:
        if (fewer := fewer_are_faster(exchange, step)) is not None:
            events.write(fewer, step=0)
        chosen = StrategyChosen(
            strategy=step.strategy,
            label=step.label,
            why=why,
            compute_s=compute_s,
            link_bytes_per_s=rate.bytes_per_s,
            planned_step_s=step.step_s,
            planned_run_s=step.step_s * recipe.train.max_steps,
        )
        events.write(chosen, step=0)
    link_bytes_per_s = rate.bytes_per_s if several else None
    return ChosenStrategy(resolved(recipe.distributed, step), step.step_s, link_bytes_per_s)


def fewer_are_faster(exchange: Exchange, step: Step) -> Alert | None:
    """An alert if one rank, or the host with most of them, would train faster than all together.

    Ranks are alike; alone, one of them would do the work of all.
    """
    whole_s = exchange.compute_s * sum(host.ranks for host in exchange.hosts)
    largest = max(exchange.hosts)
    host = replace(exchange, hosts=(largest,), compute_s=whole_s / largest.ranks)
    hosted_s = host.sync().step_s
    fewer_s, who = min(whole_s, hosted_s), "one rank"
    if hosted_s < whole_s:
        who = f"the {largest.ranks} ranks of one host"
    if step.step_s <= fewer_s:
        return None
    all_s, alone_s = units.DURATION.text(step.step_s), units.DURATION.text(fewer_s)
    return Alert(
        severity="warning",
        cause=f"a step of all ranks takes {all_s}, of {who} alone {alone_s}: more ranks are not "
        "faster here",
        remedy="stop and train on fewer, or give the hosts a faster network",
    )


def measure_compute(
    recipe: Recipe,
    model: torch.nn.Module,
    updates: Iterator[Update],
    *,
    precision: Precision,
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
        precision=precision,
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


def resolved(config: DistributedConfig, step: Step) -> DistributedConfig:
    """The section of the recipe with the choice in place of "auto".

    Data is sent in the number formats that the choice assumed, whatever the recipe says.
    """
    update: dict[str, object] = {"strategy": step.strategy, "wire": "bf16"}
    if step.strategy == "diloco":
        numbers = {"every": step.every, "fragments": step.fragments, "delay": step.delay}
        update["diloco"] = config.diloco.model_copy(update={**numbers, "wire": "fp4"})
    return config.model_copy(update=update)
