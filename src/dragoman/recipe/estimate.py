"""Memory, disk and arithmetic of a run, computed for a dry run before anything is read or written.

Tokens count the end of sentence. Numbers that depend on the text are upper bounds: every
micro-batch is full, every sentence as long as the recipe lets it be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from dragoman.data.config import DataConfig
from dragoman.distributed.config import DistributedConfig
from dragoman.distributed.wire import FP32_BYTES
from dragoman.model.config import ModelConfig
from dragoman.recipe.recipe import Recipe
from dragoman.recipe.text_size import text_bytes
from dragoman.training.inventory import DiskForecast, forecast_disk

TYPICAL_LENGTH: Final = 25
"""Length of a sentence, if useful FLOPs must assume one; attention's share is small."""

_ADAM_MOMENTS: Final = 2
_LOSS_CHUNK_BYTES: Final = 3 * (4 << 20) * FP32_BYTES
"""Copies of the logits that exist at a time, including those of the softmax."""
_SHARD_SHARE: Final = 0.6
"""Shard bytes per byte of text: two bytes per piece of 3 to 5 characters, and the lengths."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one rank. The sum is a peak: all of it exists when the backward pass begins."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    ema_bytes: int
    strategy_bytes: int
    activations_bytes: int
    loss_bytes: int

    @property
    def total_bytes(self) -> int:
        """The sum of all parts; Python and PyTorch themselves take about 0.5 GB more."""
        return sum(getattr(self, part.name) for part in fields(self))


@dataclass(frozen=True, slots=True)
class Estimate:
    """The needs of a run of a recipe. Token counts are upper bounds.

    shards_bytes: None if the text is not here yet to be measured.
    """

    num_parameters: int
    num_updates: int
    target_tokens_per_update: int
    flop_per_target_token: float
    memory: Memory
    disk: DiskForecast
    shards_bytes: int | None

    @property
    def target_tokens(self) -> int:
        """Target tokens of the whole run."""
        return self.num_updates * self.target_tokens_per_update

    @property
    def total_flop(self) -> float:
        """Useful FLOPs of the whole run."""
        return self.target_tokens * self.flop_per_target_token


def estimate(recipe: Recipe, *, world_size: int = 1) -> Estimate:
    """Parameters, tokens, FLOPs, memory of one of `world_size` ranks, and disk."""
    vocab_size = recipe.corpus.subword.vocab_size
    num_parameters = recipe.model.num_parameters(
        source_vocab_size=vocab_size, target_vocab_size=vocab_size
    )
    with_ema = recipe.train.ema_decay > 0
    cells = cells_per_micro_batch(recipe.data, max_pieces=recipe.corpus.max_pieces)
    length = min(TYPICAL_LENGTH, recipe.corpus.max_pieces + 1)
    flop_per_pair = training_flop(
        recipe.model, target_vocab_size=vocab_size, source_length=length, target_length=length
    )
    precision = recipe.train.precision  # auto: on a device that is not known, so the most it takes
    half = precision not in ("fp32", "auto")
    kept, saved = strategy_numbers(recipe.distributed, world_size)
    sizes = [text_bytes(entry, Path(recipe.corpus.folder)) for entry in recipe.corpus.train]
    id_bytes = 2 if vocab_size <= 1 << 16 else 4
    return Estimate(
        num_parameters=num_parameters,
        num_updates=recipe.train.max_steps,
        target_tokens_per_update=cells * recipe.data.accumulate,
        flop_per_target_token=flop_per_pair / length,
        memory=Memory(
            # Autocast keeps the weights in half precision beside the fp32 ones during a step.
            weights_bytes=num_parameters * (FP32_BYTES + 2 * (precision != "fp32")),
            gradients_bytes=num_parameters * FP32_BYTES,
            optimizer_bytes=num_parameters * _ADAM_MOMENTS * FP32_BYTES,
            ema_bytes=num_parameters * FP32_BYTES * with_ema,
            strategy_bytes=round(num_parameters * FP32_BYTES * kept),
            activations_bytes=activation_bytes(
                recipe.model, tokens=-(-cells // world_size), half=half
            ),
            loss_bytes=_LOSS_CHUNK_BYTES + vocab_size * recipe.model.d_model * FP32_BYTES,
        ),
        disk=forecast_disk(
            num_parameters,
            train=recipe.train,
            checkpoint=recipe.checkpoint,
            world_size=world_size,
            strategy_tensors=saved,
        ),
        shards_bytes=None
        if None in sizes
        else round(sum(size or 0 for size in sizes) * _SHARD_SHARE * id_bytes / 2),
    )


def strategy_numbers(config: DistributedConfig, world_size: int) -> tuple[float, int]:
    """For each weight: the numbers that a strategy keeps on a rank, and those that all ranks save.

    Both come on top of weights, gradient and the optimizer of rank 0. `auto` may choose `diloco`,
    which needs the most.
    """
    if world_size == 1:
        return 0, 0
    options = config.diloco if config.strategy == "auto" else config.options
    saved = options.shared_numbers + world_size * options.own_numbers
    if options.has_own_optimizers:
        saved += _ADAM_MOMENTS * (world_size - 1)
    return options.kept_numbers, saved


def cells_per_micro_batch(config: DataConfig, *, max_pieces: int) -> int:
    """Cells of the longer side of one global micro-batch, at most; no side has more."""
    longest = math.ceil((max_pieces + 1) / config.length_multiple) * config.length_multiple
    if config.batch_sentences is not None:
        return config.batch_sentences * longest
    assert config.batch_tokens is not None
    return max(config.batch_tokens, longest)


def training_flop(
    config: ModelConfig, *, target_vocab_size: int, source_length: int, target_length: int
) -> float:
    """Useful FLOPs of one pair of these lengths, forward and backward.

    6 for each weight in a matrix product that a token meets (2 forward, 4 backward; Kaplan et al.
    2020, section 2.1), softmax included; 12 x width for each pair of tokens that attend, of which
    causal attention has half. Padding and recomputation are not useful and do not count.
    """
    d, s, t = config.d_model, source_length, target_length
    ffn = (3 if config.activation == "swiglu" else 2) * d * config.d_ffn
    # Keys and values of cross-attention are made once for each source token.
    source_weights = config.encoder_layers * (4 * d * d + ffn) + config.decoder_layers * 2 * d * d
    target_weights = config.decoder_layers * (6 * d * d + ffn) + target_vocab_size * d
    attended = config.encoder_layers * s * s + config.decoder_layers * (t * t / 2 + s * t)
    return 6 * (s * source_weights + t * target_weights) + 12 * d * attended


def activation_bytes(config: ModelConfig, *, tokens: int, half: bool) -> int:
    """Bytes that the backward pass needs for `tokens` source and as many target tokens.

    A sub-layer keeps the residual stream that enters its norm (fp32, even under autocast), and in
    the precision of the products (half: two bytes): the norm's output, each projection's output,
    the mixed values as attention gives them and again as rows, the activation's input and output
    as far as its derivative needs them; dropout keeps a mask of one byte. torch.compile keeps less;
    attention dropout on a CPU keeps the attention weights as well.
    """
    d, f = config.d_model, config.d_ffn
    product = 2 if half else FP32_BYTES
    mask = 1 if config.dropout else 0
    residual = d * (FP32_BYTES + product + mask)
    # Query, key, value and twice the mixed values; cross-attention's keys are as many tokens.
    attention = residual + 5 * d * product
    kept = {"relu": 1, "gelu": 2, "silu": 2, "swiglu": 4}[config.activation]
    ffn = residual + f * kept * product
    if config.activation_dropout:
        ffn += f * (product + 1)
    encoder = config.encoder_layers * (attention + ffn)
    decoder = config.decoder_layers * (2 * attention + ffn)
    ends = 2 * d * (FP32_BYTES + product + mask)
    return tokens * (encoder + decoder + ends)
