"""Measures real steps of one rank without any network; `measuring` runs `measure_steps`.

Its result is {"step_s", "flop_per_s"}: the median of the steps, and the model's useful arithmetic
divided by it. Doctor compares hosts by the first; `plan` uses the second.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dragoman.data.batch import make_batch
from dragoman.data.loader import Update
from dragoman.distributed.gradient_sync import NoSync
from dragoman.distributed.world import World
from dragoman.model.config import ModelConfig
from dragoman.model.transformer import Transformer
from dragoman.training.config import OptimizerConfig, Precision, TrainConfig
from dragoman.training.step import TrainStep

_STEPS: Final = 20
_LEAST_STEPS: Final = 3
_WARM_STEPS: Final = 2
_AT_MOST_S: Final = 5.0
_UNSURE: Final = 0.05
"""Steps suffice if their median is known to this share of it, with 95% confidence."""
_FIRST_PIECE: Final = 4
"""Smaller ids are the special pieces."""
_FLOP_PER_WEIGHT: Final = 6
"""FLOP for each token and each weight of a matrix: 2 forward, 4 backward."""
_SMALL: Final = ModelConfig(
    d_model=256, num_heads=4, d_ffn=1024, encoder_layers=2, decoder_layers=2
)
_SIZES: Final = {"cpu": (_SMALL, 8_000, 16), "cuda": (ModelConfig(), 32_000, 128)}
"""Model, vocabulary and sentence pairs by device: small enough for seconds, no smaller."""
_LENGTH: Final = 31
_FEW_PAIRS: Final = 8
"""A step on half as many takes much less than the straight line says."""
_MANY_PAIRS: Final = 32
"""With fewer, what disturbs either step would move the line too much."""
_MORE: Final = 3
"""A step on few pairs mostly reads and writes the weights. So this many times as many pairs as
would fill the time, if the time grew with them, hardly take longer than that."""


def measure_steps(world: World) -> dict[str, float]:
    """Train a new model on random pieces until the steps agree, for up to five seconds."""
    config, vocab_size, pairs = _SIZES[world.device.type]
    precision: Precision = "bf16" if world.device.type == "cuda" else "fp32"
    step_s, tokens, matrices = time_steps(
        world, config, vocab_size=vocab_size, pairs=pairs, precision=precision
    )
    flop = _FLOP_PER_WEIGHT * matrices * tokens
    return {"step_s": step_s, "flop_per_s": flop / step_s}


def time_steps(
    world: World,
    config: ModelConfig,
    *,
    vocab_size: int,
    pairs: int,
    precision: Precision,
    at_most_s: float = _AT_MOST_S,
) -> tuple[float, int, int]:
    """Seconds of a step on this many pairs, their target tokens, and the weights in matrices.

    at_most_s: no step begins after that time, but at least three are timed.
    """
    step = _new_step(world, config, vocab_size, precision)
    update = _update(pairs, vocab_size, world)
    started = time.monotonic()
    ends: list[float] = []
    for number in range(_WARM_STEPS + _STEPS):
        if number == _WARM_STEPS:
            step.timer.take()
        if number >= _WARM_STEPS + _LEAST_STEPS and (
            time.monotonic() - started > at_most_s
            or agree(np.diff(ends[_WARM_STEPS - 1 :]).tolist())
        ):
            break
        step(update, learning_rate=1e-4)
        step.timer.step_done()
        ends.append(time.perf_counter())
    step_s = step.timer.take().step_median_s
    matrices = sum(weight.numel() for weight in step.model.parameters() if weight.dim() == 2)
    return step_s, update.global_target_tokens, matrices


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step on one batch: a straight line.

    fixed_s: whatever the size of the batch, mostly to read and write the weights. token_s: for each
    target token.
    """

    fixed_s: float
    token_s: float


def step_cost(
    world: World,
    config: ModelConfig,
    *,
    vocab_size: int,
    pairs: int,
    precision: Precision,
    at_most_s: float,
) -> StepCost:
    """The cost of a step on a CPU, from steps on a few pairs and on more, up to this many.

    A step of a large model on its whole batch may take ten seconds, and the first one longer.
    at_most_s: no step begins after that time, but there are three: the first, which does not
    count, and one of either size.
    """
    step, started = _new_step(world, config, vocab_size, precision), time.monotonic()

    def timed(update: Update) -> float:
        began = time.perf_counter()
        step(update, learning_rate=1e-4)
        step.timer.step_done()
        step.timer.take()
        return time.perf_counter() - began

    few = _update(min(_FEW_PAIRS, pairs), vocab_size, world)
    timed(few)
    of_few, of_many = [timed(few)], list[float]()
    more = int(_MORE * few.global_pairs * at_most_s / of_few[0])
    many = _update(min(max(more, _MANY_PAIRS), pairs), vocab_size, world)
    while len(of_many) < _STEPS:
        of_many.append(timed(many))
        if time.monotonic() - started > at_most_s:
            break
        of_few.append(timed(few))
        if len(of_many) >= _LEAST_STEPS and agree(of_few) and agree(of_many):
            break
    few_s, many_s = statistics.median(of_few), statistics.median(of_many)
    few_tokens, many_tokens = few.global_target_tokens, many.global_target_tokens
    if many_tokens == few_tokens or many_s <= few_s:
        return StepCost(0.0, many_s / many_tokens)
    token_s = (many_s - few_s) / (many_tokens - few_tokens)
    return StepCost(max(few_s - token_s * few_tokens, 0.0), token_s)


def agree(seconds: Sequence[float]) -> bool:
    """Whether more steps would hardly change their median.

    Its 95% interval is the median ± 1.57 interquartile ranges / sqrt(n) (McGill, Tukey and Larsen
    1978, Variations of box plots).
    """
    first, middle, third = statistics.quantiles(seconds, n=4, method="inclusive")
    return 1.57 * (third - first) / math.sqrt(len(seconds)) <= _UNSURE * middle


def _new_step(
    world: World, config: ModelConfig, vocab_size: int, precision: Precision
) -> TrainStep:
    """The step of a new model."""
    model = Transformer(config, source_vocab_size=vocab_size, target_vocab_size=vocab_size)
    model = model.to(world.device).train()
    return TrainStep(
        model,
        sync=NoSync(model),
        train=TrainConfig(),
        precision=precision,
        optimizer=OptimizerConfig(),
        world=world,
    )


def _update(pairs: int, vocab_size: int, world: World) -> Update:
    """Sentences of one length on both sides, so that each matrix sees the same number of tokens."""
    pieces = np.random.default_rng(1).integers(_FIRST_PIECE, vocab_size, pairs * _LENGTH)
    lengths = np.full(pairs, _LENGTH)
    batch = make_batch(pieces, lengths, pieces, lengths).to(world.device)
    return Update(
        update_index=0,
        epoch=0,
        micro_batches=[batch],
        global_target_tokens=batch.num_target_tokens,
        global_source_tokens=batch.num_source_tokens,
        global_pairs=pairs,
        global_cells=batch.num_cells,
    )
