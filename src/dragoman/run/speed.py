"""The speed at which this machine trains a model and writes its checkpoints, from short trials."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from dragoman.base import units
from dragoman.base.errors import ConfigError
from dragoman.base.memory import keep_freed_memory, memory_errors_named
from dragoman.cluster.hosts import Hosts
from dragoman.cluster.plan_request import Here, PlanRequest, plan_recipe
from dragoman.cluster.rates import WITHOUT_BF16
from dragoman.cluster.workload import workload_of
from dragoman.distributed.wire import FP32_BYTES
from dragoman.distributed.world import World, join_world
from dragoman.recipe.estimate import TYPICAL_LENGTH
from dragoman.recipe.recipe import Recipe
from dragoman.telemetry.events import HostSampled
from dragoman.telemetry.host import DISTURBING_SHARE, memory_bytes
from dragoman.telemetry.sampler import MachineProbe
from dragoman.training.precision import agreed_precision
from dragoman.training.step_rate import step_cost, time_steps

_CPU_TOKENS: Final = 1024
TIMED_GPU_TOKENS: Final = 16_384
"""Target tokens at a time with which models are timed on a GPU: enough to keep it busy."""
_CHECKPOINT_NUMBERS: Final = 4
"""Numbers per weight: itself, its moving average and Adam's two averages."""
_UNKNOWN_BYTES: Final = 10**15
_TIMINGS: Final = 2
"""A model is timed again if other programs disturbed the first time."""
_MOST_HALVINGS: Final = 3
"""How often the tokens of a timed step are halved until they fit into the memory."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of training, by all ranks together. tokens_per_step: target tokens."""

    step_s: float
    tokens_per_step: float

    @property
    def tokens_per_s(self) -> float:
        """Target tokens that are trained on per second."""
        return self.tokens_per_step / self.step_s


@dataclass
class TrainingMachine:
    """The machine that trains.

    speed: target tokens per second with a recipe's model; each GPU computes 16,384 at a time.
    num_gpus: GPUs that train. after_s: seconds after the training that depend on the model.
    others_share: the largest share of the processors that other programs used in a timing so far.
    """

    on_gpu: bool
    has_bf16: bool
    memory_bytes: int
    speed: Callable[[Recipe], float]
    num_gpus: int = 1
    after_s: Callable[[Recipe], float] = lambda _recipe: 0.0
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


def this_machine(*, ranks: int, vocab_size: int, at_most_s: float) -> TrainingMachine:
    """The facts of this machine that `choose` needs; a model is timed only when `choose` asks.

    at_most_s: the most seconds for the steps of one model.
    """
    keep_freed_memory()
    on_gpu = torch.cuda.is_available()
    has_bf16 = on_gpu and torch.cuda.get_device_capability() >= (8, 0)
    memory = torch.cuda.mem_get_info()[1] if on_gpu else memory_bytes()

    def tokens_per_s(recipe: Recipe) -> float:
        with _others_seen(machine):
            found = _timed(recipe, ranks, vocab_size, at_most_s)
        return found.tokens_per_s

    machine = TrainingMachine(on_gpu, has_bf16, memory, tokens_per_s, num_gpus=ranks)
    return machine


def timed_here(recipe: Recipe, *, ranks: int, at_most_s: float = 3.0) -> Here:
    """This machine and the seconds of a step of the recipe's batch, from steps on random text.

    at_most_s: no step begins after that time, but at least two are timed.
    """
    keep_freed_memory()
    if sys.stderr.isatty():
        weights = units.SHORT_COUNT.text(workload_of(recipe).num_parameters)
        print(
            f"timing a model of {weights} weights on this machine for some seconds",
            file=sys.stderr,
            flush=True,
        )
    machine = TrainingMachine(torch.cuda.is_available(), False, 0, lambda _: 0.0)
    steps_s, began = list[float](), time.monotonic()
    for _ in range(_TIMINGS):
        machine.others_share = 0.0
        with _others_seen(machine):
            steps_s.append(_step_s(recipe, ranks, at_most_s))
        if machine.others_share <= DISTURBING_SHARE or time.monotonic() - began > at_most_s:
            break
    return Here(ranks, machine.on_gpu, min(steps_s), machine.others_share)


def _step_s(recipe: Recipe, ranks: int, at_most_s: float) -> float:
    """Seconds of a step of the recipe's batch by all ranks of this machine."""
    work = workload_of(recipe)
    pieces = recipe.corpus.subword.vocab_size
    if torch.cuda.is_available():
        speed = _timed(recipe, ranks, pieces, at_most_s)
        return work.target_tokens_per_step / speed.tokens_per_s
    batches = ranks * work.micro_batches_per_step
    tokens = work.target_tokens_per_step / batches
    with join_world() as world, memory_errors_named("set a smaller model, or use another machine"):
        cost = step_cost(
            world,
            recipe.model,
            vocab_size=pieces,
            pairs=max(1, round(tokens / TYPICAL_LENGTH)),
            precision=agreed_precision(recipe.train, world),
            at_most_s=at_most_s,
        )
    # The ranks share the processor, so that each one's work adds to the time of all.
    return batches * (cost.fixed_s + cost.token_s * tokens)


@contextmanager
def _others_seen(machine: TrainingMachine) -> Iterator[None]:
    """Note how much of the processors other programs use inside the block: only Linux tells, and
    they hardly slow down a GPU."""
    if machine.on_gpu or sys.platform != "linux":
        yield
        return
    probe, began = MachineProbe(disk=Path()), time.monotonic()
    yield
    (sample,) = probe.sample(time.monotonic() - began)
    assert isinstance(sample, HostSampled)
    machine.others_share = max(machine.others_share, sample.others_cpu_share or 0.0)


def _timed(recipe: Recipe, ranks: int, vocab_size: int, at_most_s: float) -> Speed:
    """The speed of a recipe's model, with fewer tokens at a time if they do not fit into memory."""
    with join_world() as world, memory_errors_named("set a smaller model, or use another machine"):
        tokens = most = TIMED_GPU_TOKENS if world.device.type == "cuda" else _CPU_TOKENS
        while True:
            try:
                step_s, seen, _ = time_steps(
                    world,
                    recipe.model,
                    vocab_size=vocab_size,
                    pairs=tokens // TYPICAL_LENGTH,
                    precision=agreed_precision(recipe.train, world),
                    at_most_s=at_most_s,
                )
            except torch.OutOfMemoryError:
                if tokens <= most >> _MOST_HALVINGS:
                    raise
                tokens //= 2
            else:  # a GPU would take as long for the most tokens, if they fitted
                return Speed(step_s / _beside(world, ranks), seen * most / tokens)


def _beside(world: World, ranks: int) -> int:
    """The number of ranks that compute side by side at the speed of one alone: GPUs do; processes
    on one CPU share it, and this one takes all of it."""
    return ranks if world.device.type == "cuda" else 1
