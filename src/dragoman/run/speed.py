"""The speed at which this machine trains a model and writes its checkpoints, from short trials."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file

from dragoman.base.errors import ConfigError
from dragoman.base.memory import keep_freed_memory, memory_errors_named
from dragoman.cluster.hosts import Hosts
from dragoman.cluster.plan import choose_for_all_ranks
from dragoman.cluster.plan_request import PlanRequest, plan_recipe
from dragoman.cluster.rates import WITHOUT_BF16
from dragoman.corpus.manifest import Manifest
from dragoman.distributed.wire import FP32_BYTES
from dragoman.distributed.world import World, join_world
from dragoman.inference.translation import new_model
from dragoman.recipe.estimate import TYPICAL_LENGTH
from dragoman.recipe.recipe import Recipe
from dragoman.run.auto import measure_compute
from dragoman.run.choose import TIMED_GPU_TOKENS, TrainingMachine
from dragoman.run.worker import batches
from dragoman.telemetry.host import memory_bytes
from dragoman.training.durable import publish
from dragoman.training.step_rate import time_steps

_CPU_TOKENS: Final = 1024
_CHECKPOINT_NUMBERS: Final = 4
"""Numbers per weight: itself, its moving average and Adam's two averages."""
_WRITTEN_NUMBERS: Final = 4_000_000
"""The most numbers that are written to time a save: 16 MB."""
_UNKNOWN_BYTES: Final = 10**15
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


def measure_training(recipe: Recipe, prepared: Path, *, ranks: int, at_most_s: float) -> Speed:
    """The speed of training this recipe, from real steps on its text with a learning rate of 0.

    ranks: the number of ranks that will train. at_most_s: no step begins after that time.
    """
    keep_freed_memory()  # as a training does
    manifest = Manifest.load(prepared)
    with join_world() as world, batches(recipe, prepared, 0, world) as updates:
        model = new_model(recipe, manifest).to(world.device)
        step_s, tokens = measure_compute(recipe, model, updates, world=world, at_most_s=at_most_s)
        return Speed(step_s / _beside(world, ranks), tokens)


def measure_save(recipe: Recipe, manifest: Manifest, folder: Path) -> float:
    """Seconds to write a checkpoint of this recipe to the disk of a folder.

    At most 16 MB of it are written, and removed. Raises MachineError if they cannot be written.
    """

    def seconds(count: int) -> float:
        tensors = {"numbers": torch.rand(count)}
        trial = folder / f".save-{os.getpid()}"
        began = time.perf_counter()
        publish(trial, lambda draft: save_file(tensors, draft / "model.safetensors"))
        seconds_s = time.perf_counter() - began
        shutil.rmtree(trial, ignore_errors=True)
        return seconds_s

    numbers = _CHECKPOINT_NUMBERS * recipe.model.num_parameters(
        source_vocab_size=manifest.source_vocab_size, target_vocab_size=manifest.target_vocab_size
    )
    written = min(numbers, _WRITTEN_NUMBERS)
    folder_s = seconds(1)  # of an almost empty one, whatever its size
    return folder_s + max(seconds(written) - folder_s, 0.0) * numbers / written


def these_hosts(hosts: Hosts, *, file: str) -> TrainingMachine:
    """The facts of several hosts that `choose` needs, with the speed of a model by `dragoman plan`.

    All hosts train, even if fewer would be faster: `fewer_are_faster` says so.
    file: as it was given with --hosts. The machine's `speed` raises ConfigError if the hosts' speed
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
                remedy="run dragoman doctor --hosts first, with this file",
            ) from error
        chosen = choose_for_all_ranks(plan.cluster, plan.workload)
        return plan.workload.target_tokens_per_step / chosen.prediction.step_s

    return TrainingMachine(on_gpu, has_bf16, _UNKNOWN_BYTES, tokens_per_s, num_gpus=num_ranks)


def last_copy_s(recipe: Recipe, *, file: str) -> float:
    """Seconds to copy the best checkpoint from the first host, at the rate that doctor has measured
    between the hosts, with the strategy that `auto` chooses for all of them."""
    plan = plan_recipe(recipe, PlanRequest(hosts=file))
    chosen = choose_for_all_ranks(plan.cluster, plan.workload)
    options = recipe.distributed.options_of(chosen.prediction.strategy)
    numbers = _CHECKPOINT_NUMBERS + options.shared_numbers + options.own_numbers
    return plan.workload.num_parameters * numbers * FP32_BYTES / plan.cluster.link.bytes_per_s


def fewer_are_faster(recipe: Recipe, *, file: str) -> str:
    """A warning that some of the hosts alone would train faster than all; "" if they would not."""
    plan = plan_recipe(recipe, PlanRequest(hosts=file))
    choice = plan.choice
    if len(choice.hosts) == plan.cluster.num_hosts:
        return ""
    return f"all hosts train, but {choice.who} would be faster: {choice.why}"


def this_machine(*, ranks: int, vocab_size: int, at_most_s: float) -> TrainingMachine:
    """The facts of this machine that `choose` needs; a model is timed only when `choose` asks.

    at_most_s: the most seconds for the steps of one model.
    """
    keep_freed_memory()
    on_gpu = torch.cuda.is_available()
    has_bf16 = on_gpu and torch.cuda.get_device_capability() >= (8, 0)
    memory = torch.cuda.mem_get_info()[1] if on_gpu else memory_bytes()
    speed = _timing(ranks, vocab_size, at_most_s, has_bf16)
    return TrainingMachine(on_gpu, has_bf16, memory, speed, num_gpus=ranks)


def _timing(
    ranks: int, vocab_size: int, at_most_s: float, has_bf16: bool
) -> Callable[[Recipe], float]:
    def tokens_per_s(recipe: Recipe) -> float:
        remedy = "set a smaller model, or use another machine"
        with join_world() as world, memory_errors_named(remedy):
            tokens = most = TIMED_GPU_TOKENS if world.device.type == "cuda" else _CPU_TOKENS
            while True:
                try:
                    step_s, seen, _ = time_steps(
                        world,
                        recipe.model,
                        vocab_size=vocab_size,
                        pairs=tokens // TYPICAL_LENGTH,
                        precision="bf16" if has_bf16 else "fp32",
                        at_most_s=at_most_s,
                    )
                except torch.OutOfMemoryError:
                    if tokens <= most >> _MOST_HALVINGS:
                        raise
                    tokens //= 2
                else:  # a GPU would take as long for the most tokens, if they fitted
                    return seen * most / tokens / step_s * _beside(world, ranks)

    return tokens_per_s


def _beside(world: World, ranks: int) -> int:
    """The number of ranks that compute side by side at the speed of one alone: GPUs do; processes
    on one CPU share it, and this one takes all of it."""
    return ranks if world.device.type == "cuda" else 1
