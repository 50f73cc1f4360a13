"""Measures real steps of one rank without any network; `measuring` runs it.

The result is {"step_s", "flop_per_s"}: the median of the steps, and the model's useful arithmetic
divided by it. Doctor compares hosts by the first; `plan` uses the second.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
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
    model = Transformer(config, source_vocab_size=vocab_size, target_vocab_size=vocab_size)
    model = model.to(world.device)
    step = TrainStep(
        model,
        sync=NoSync(model),
        train=TrainConfig(precision=precision),
        optimizer=OptimizerConfig(),
        world=world,
    )
    update = _update(pairs, vocab_size, world)
    model.train()
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
    matrices = sum(weight.numel() for weight in model.parameters() if weight.dim() == 2)
    return step_s, update.global_target_tokens, matrices


def agree(seconds: Sequence[float]) -> bool:
    """Whether more steps would hardly change their median.

    Its 95% interval is the median ± 1.57 interquartile ranges / sqrt(n) (McGill, Tukey and Larsen
    1978, Variations of box plots).
    """
    first, middle, third = statistics.quantiles(seconds, n=4, method="inclusive")
    return 1.57 * (third - first) / math.sqrt(len(seconds)) <= _UNSURE * middle


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
