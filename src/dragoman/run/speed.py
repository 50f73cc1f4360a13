"""The speed at which this machine trains a model, from a few steps; or hosts, by `plan`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from dragoman.base import units
from dragoman.base.errors import ConfigError
from dragoman.base.memory import keep_freed_memory, memory_errors_named
from dragoman.cluster.hosts import Hosts
from dragoman.cluster.plan_request import Here, PlanRequest, plan_recipe
from dragoman.cluster.rates import WITHOUT_BF16
from dragoman.cluster.workload import workload_of
from dragoman.distributed.wire import FP32_BYTES
from dragoman.distributed.world import join_world
from dragoman.recipe.estimate import TYPICAL_LENGTH
from dragoman.recipe.recipe import Recipe
from dragoman.telemetry.events import HostSampled
from dragoman.telemetry.host import DISTURBING_SHARE, memory_bytes
from dragoman.telemetry.sampler import MachineProbe
from dragoman.training.precision import agreed_precision
from dragoman.training.step_rate import step_cost, time_steps

_CPU_TOKENS: Final = 1280
TIMED_GPU_TOKENS: Final = 16_384
"""Target tokens at a time with which models are timed; on a GPU enough to keep it busy."""
_CHECKPOINT_NUMBERS: Final = 4
"""Numbers per weight: itself, its moving average and Adam's two averages."""
_UNKNOWN_BYTES: Final = 10**15
_TIMINGS: Final = 2
"""A model is timed again if other programs disturbed the first time."""
_MOST_HALVINGS: Final = 3
"""How often the tokens of a timed step are halved until they fit into the memory."""


@dataclass
class TrainingMachine:
    """The machine that trains.

    speed: target tokens per second with a recipe's model; each GPU computes 16,384 at a time.
    num_gpus: GPUs that train. others_share: the largest share of the processors that other programs
    used in a timing so far.
    """

    on_gpu: bool
    has_bf16: bool
    memory_bytes: int
    speed: Callable[[Recipe], float]
    num_gpus: int = 1
    others_share: float = 0.0


def these_hosts(hosts: Hosts, *, file: str) -> TrainingMachine:
    """The facts of several hosts that `choose` needs, with the speed of a model by `dragoman plan`.

    All hosts train, even if fewer would be faster: `fewer_are_faster` says so.
    file: as it was given. The machine's `speed` raises ConfigError if the hosts' speed
    is neither measured by doctor nor given.
    """
    kinds = {host.gpu for host in hosts.host}
    on_gpu = bool(hosts.host[0].gpus)
    has_bf16 = on_gpu and None not in kinds and not kinds & WITHOUT_BF16
    num_ranks = sum(hosts.ranks_per_host)

    def tokens_per_s(recipe: Recipe) -> float:
        if on_gpu:
            batch = {"batch_tokens": num_ranks * TIMED_GPU_TOKENS, "batch_sentences": None}
            data = recipe.data.model_copy(update={**batch, "accumulate": 1})
            recipe = recipe.model_copy(update={"data": data})
        try:
            plan = plan_recipe(recipe, PlanRequest(hosts=file))
        except ConfigError as error:
            raise ConfigError(
                error.problem,
                place=file,
                remedy="run dragoman doctor with these hosts first",
            ) from error
        return plan.workload.target_tokens_per_step / plan.together.step.step_s

    return TrainingMachine(on_gpu, has_bf16, _UNKNOWN_BYTES, tokens_per_s, num_gpus=num_ranks)


def last_copy_s(recipe: Recipe, *, file: str) -> float:
    """Seconds to copy the best checkpoint from the first host, at the rate that doctor has measured
    between the hosts, with the strategy that `auto` chooses for all of them."""
    plan = plan_recipe(recipe, PlanRequest(hosts=file))
    options = recipe.distributed.options_of(plan.together.step.strategy)
    numbers = _CHECKPOINT_NUMBERS + options.shared_numbers + options.own_numbers
    return plan.workload.num_parameters * numbers * FP32_BYTES / plan.cluster.link.bytes_per_s


def fewer_are_faster(recipe: Recipe, *, file: str) -> str:
    """A warning that some of the hosts alone would train faster than all; "" if they would not."""
    plan = plan_recipe(recipe, PlanRequest(hosts=file))
    quickest = plan.quickest
    if quickest.cluster.num_hosts == plan.cluster.num_hosts:
        return ""
    all_s, fewer_s = (units.DURATION.text(one.step.step_s) for one in (plan.together, quickest))
    return (
        f"all hosts train, but {quickest.name} would be faster: a step takes {fewer_s}, of all "
        f"hosts {all_s}"
    )


def this_machine(*, ranks: int, at_most_s: float) -> TrainingMachine:
    """The facts of this machine that `choose` needs; a model is timed only when `choose` asks.

    at_most_s: the most seconds for the steps of one model.
    """
    keep_freed_memory()
    on_gpu = torch.cuda.is_available()
    has_bf16 = on_gpu and torch.cuda.get_device_capability() >= (8, 0)
    memory = torch.cuda.mem_get_info()[1] if on_gpu else memory_bytes()

    def tokens_per_s(recipe: Recipe) -> float:
        with _others_seen() as others:
            found = _tokens_per_s(recipe, ranks, at_most_s)
        machine.others_share = max([machine.others_share, *others])
        return found

    machine = TrainingMachine(on_gpu, has_bf16, memory, tokens_per_s, num_gpus=ranks)
    return machine


def timed_here(recipe: Recipe, *, ranks: int, at_most_s: float = 3.0) -> Here:
    """This machine and the seconds of a step of the recipe's batch, from steps on random text.

    at_most_s: no step begins after that time, but at least two are timed.
    """
    keep_freed_memory()
    work = workload_of(recipe)
    if sys.stderr.isatty():
        weights = units.SHORT_COUNT.text(work.num_parameters)
        print(
            f"timing a model of {weights} weights on this machine for some seconds",
            file=sys.stderr,
            flush=True,
        )
    on_gpu, began = torch.cuda.is_available(), time.monotonic()
    steps_s, shares = list[float](), [0.0]
    for _ in range(_TIMINGS):
        with _others_seen() as others:
            if on_gpu:
                speed = _tokens_per_s(recipe, ranks, at_most_s)
                steps_s.append(work.target_tokens_per_step / speed)
            else:  # the ranks share the processor, so that the work of each adds to the time of all
                batches = ranks * work.micro_batches_per_step
                tokens = work.target_tokens_per_step / batches
                steps_s.append(batches * _step_s(recipe, tokens, at_most_s))
        shares = [*others] or shares
        if shares[-1] <= DISTURBING_SHARE or time.monotonic() - began > at_most_s:
            break
    return Here(ranks, on_gpu, min(steps_s), shares[-1])


def _tokens_per_s(recipe: Recipe, ranks: int, at_most_s: float) -> float:
    """Target tokens per second of all ranks: GPUs compute side by side, but ranks on one CPU share
    it, and the one that is timed takes all of it."""
    if torch.cuda.is_available():
        return ranks * TIMED_GPU_TOKENS / _step_s(recipe, TIMED_GPU_TOKENS, at_most_s)
    return _CPU_TOKENS / _step_s(recipe, _CPU_TOKENS, at_most_s)


def _step_s(recipe: Recipe, tokens: float, at_most_s: float) -> float:
    """Seconds of a step of one rank on this many target tokens of random text.

    If they do not fit into the memory, fewer are timed: a GPU takes as long for all of them.
    """
    pairs = max(1, round(tokens / TYPICAL_LENGTH))
    least = pairs >> _MOST_HALVINGS
    with join_world() as world, memory_errors_named("set a smaller model, or use another machine"):
        options: dict[str, Any] = {
            "vocab_size": recipe.corpus.subword.vocab_size,
            "precision": agreed_precision(recipe.train, world),
            "at_most_s": at_most_s,
        }
        while True:
            try:
                if world.device.type == "cpu":
                    cost = step_cost(world, recipe.model, pairs=pairs, **options)
                    return cost.fixed_s + cost.token_s * tokens
                step_s, seen, _ = time_steps(world, recipe.model, pairs=pairs, **options)
                return step_s * pairs * TYPICAL_LENGTH / seen
            except torch.OutOfMemoryError:
                if pairs <= least:
                    raise
                pairs //= 2


@contextmanager
def _others_seen() -> Iterator[list[float]]:
    """A list that at the end of the block has the share of the processors that other programs used
    inside it. It stays empty if that is not known (only Linux tells) or does not matter: others
    hardly slow down a GPU."""
    shares: list[float] = []
    if torch.cuda.is_available() or sys.platform != "linux":
        yield shares
        return
    probe, began = MachineProbe(disk=Path()), time.monotonic()
    yield shares
    (sample,) = probe.sample(time.monotonic() - began)
    assert isinstance(sample, HostSampled)
    shares.append(sample.others_cpu_share or 0.0)
