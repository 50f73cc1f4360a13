"""Training speed on one GPU: ours, Hugging Face on the same batches, and the matrix rate.

    benchmarks/gpu/train.py [--sizes base big] [--precision bf16] [--cells 65536] [--rounds 3]

Prints for each size: source + target tokens a second (padding not counted) of both, the median of
the rounds' ratios, peak memory, and our MFU: useful FLOP/s over those of a bf16 8192^3 matrix
product measured in this run. Both sides take turns over the same batches. Sentences are random
tokens with lengths like those of WMT16 en-de, bucketed by our own sampler. `--sizes tiny --matrix
512 --updates 20` shows on a CPU that it works; those figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dragoman.data.config import DataConfig
from dragoman.data.loader import BatchStream, Update
from dragoman.distributed.gradient_sync import GradientSync, NoSync
from dragoman.distributed.world import World, join_world
from dragoman.model.config import ModelConfig
from dragoman.model.transformer import Transformer, compile_stacks
from dragoman.recipe.estimate import training_flop
from dragoman.training.config import OptimizerConfig, TrainConfig
from dragoman.training.step import TrainStep

VOCAB_SIZE = 32_768
NUM_PAIRS = 200_000
# As in the shipped recipes.
SIZES = {
    "tiny": ModelConfig(d_model=64, num_heads=2, d_ffn=128, encoder_layers=1, decoder_layers=1),
    "base": ModelConfig(d_model=512, num_heads=8, d_ffn=2048, attention_bias=False),
    "big": ModelConfig(d_model=1024, num_heads=16, d_ffn=4096, dropout=0.3, attention_bias=False),
}


class RandomPairs:
    """Pairs of random pieces; lengths are log-normal with a mean of 27, as in WMT16 en-de."""

    def __init__(self, num_pairs: int) -> None:
        self._random = np.random.default_rng(1)
        lengths = self._random.lognormal(3.1, 0.6, num_pairs)
        ratio = self._random.normal(1.05, 0.15, num_pairs)
        self.source_lengths = np.clip(lengths, 1, 120).astype(np.int32)
        self.target_lengths = np.clip(lengths * ratio, 1, 120).astype(np.int32)

    def gather(
        self, indices: NDArray[np.int64], /
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        """The rows of some pairs, as BatchStream wants them."""
        source, target = self.source_lengths[indices], self.target_lengths[indices]
        return self._pieces(source), source, self._pieces(target), target

    def _pieces(self, lengths: NDArray[np.int32]) -> NDArray[np.int64]:
        return self._random.integers(4, VOCAB_SIZE, int(lengths.sum()))


@dataclass(frozen=True)
class Side:
    """One side after some turns: seconds of each, and what it held at most."""

    step: Callable[[Update], None]
    warm_s: float
    seconds: list[float]
    peak_memory_bytes: list[int]

    @classmethod
    def warmed(cls, step: Callable[[Update], None], updates: Sequence[Update]) -> Self:
        """After once over the updates, which compiles what is to be compiled."""
        return cls(step, _timed(step, updates), [], [])

    def take_turn(self, updates: Sequence[Update]) -> None:
        """Once over the updates, by the clock."""
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        self.seconds.append(_timed(self.step, updates))
        if torch.cuda.is_available():
            self.peak_memory_bytes.append(torch.cuda.max_memory_allocated())


def main() -> None:
    options = _options()
    with join_world() as world:
        matrix_flop_per_s = _matrix_rate(world.device, options.matrix)
        print(f"matrix product: {matrix_flop_per_s / 1e12:.1f} TFLOP/s", flush=True)
        for size in options.sizes:
            result = _compare(size, options, world, matrix_flop_per_s)
            print(json.dumps({"size": size, **result}), flush=True)


def _compare(
    size: str, options: argparse.Namespace, world: World, matrix_flop_per_s: float
) -> dict[str, Any]:
    updates = training_updates(options, world, groups=1)  # of one length, as the peer's batches
    our_side = our_step(
        SIZES[size], world, precision=options.precision, compiled=not options.no_compile
    )
    ours = Side.warmed(our_side, updates)
    theirs = Side.warmed(_hf_step(SIZES[size], options, world), updates)
    for _ in range(options.rounds):
        ours.take_turn(updates)
        theirs.take_turn(updates)
    tokens = sum(u.global_source_tokens + u.global_target_tokens for u in updates)
    flop = sum(_useful_flop(update, SIZES[size]) for update in updates)
    seconds = statistics.median(ours.seconds)
    ratios = [their / our for our, their in zip(ours.seconds, theirs.seconds, strict=True)]
    return {
        "tokens_per_s": round(tokens / seconds),
        "hugging_face_tokens_per_s": round(tokens / statistics.median(theirs.seconds)),
        "ratio": round(statistics.median(ratios), 2),
        "ratio_range": [round(min(ratios), 2), round(max(ratios), 2)],
        "mfu": round(flop / seconds / matrix_flop_per_s, 3),
        "padding_share": round(1 - tokens / sum(update.global_cells for update in updates), 3),
        "ms_per_update": round(1000 * seconds / len(updates), 2),
        "warm_s": [round(ours.warm_s, 1), round(theirs.warm_s, 1)],
        "peak_memory_mb": round(max(ours.peak_memory_bytes, default=0) / 1e6),
        "hugging_face_peak_memory_mb": round(max(theirs.peak_memory_bytes, default=0) / 1e6),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["base", "big"])
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="bf16")
    parser.add_argument("--cells", type=int, default=65_536, help="of a batch's longer side")
    parser.add_argument("--length-multiple", type=int, default=8)
    parser.add_argument("--updates", type=int, default=100, help="in a turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--matrix", type=int, default=8192, help="side of the matrix product")
    parser.add_argument("--no-compile", action="store_true")
    return parser.parse_args()


def training_updates(options: argparse.Namespace, world: World, *, groups: int) -> list[Update]:
    config = DataConfig(
        batch_tokens=options.cells, length_groups=groups, length_multiple=options.length_multiple
    )
    pairs = RandomPairs(NUM_PAIRS)
    with BatchStream(
        pairs, config, seed=1, rank=0, world_size=1, start_update=0, device=world.device
    ) as stream:
        return list(islice(stream, options.updates))


def our_step(
    config: ModelConfig,
    world: World,
    *,
    precision: Literal["fp32", "bf16", "fp16"] = "bf16",
    compiled: bool = True,
    make_sync: Callable[[nn.Module], GradientSync] = NoSync,
) -> Callable[[Update], None]:
    """The parts that make an update of a new model, as in `dragoman train`."""
    model = Transformer(config, source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE)
    model.to(world.device)
    if compiled:
        compile_stacks(model, precision)
    step = TrainStep(
        model,
        sync=make_sync(model),
        train=TrainConfig(),
        precision=precision,
        optimizer=OptimizerConfig(),
        world=world,
    )

    def make(update: Update) -> None:
        step(update, learning_rate=1e-4)

    return make


def _hf_step(
    config: ModelConfig, options: argparse.Namespace, world: World
) -> Callable[[Update], None]:
    """Marian with SDPA, fused Adam and autocast: what a careful user of the library would do."""
    from transformers import MarianConfig, MarianMTModel

    model: torch.nn.Module = MarianMTModel(
        MarianConfig(
            vocab_size=VOCAB_SIZE,
            d_model=config.d_model,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.d_ffn,
            decoder_ffn_dim=config.d_ffn,
            dropout=config.dropout,
            activation_function="relu",
            max_position_embeddings=256,
            scale_embedding=True,
            pad_token_id=0,
            eos_token_id=3,
            decoder_start_token_id=2,
        )
    )
    model.to(world.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[options.precision]

    def step(update: Update) -> None:
        (batch,) = update.micro_batches
        with torch.autocast(world.device.type, dtype, enabled=dtype is not None):
            logits = model(
                input_ids=batch.source_BS,
                attention_mask=(batch.source_BS != 0).long(),
                decoder_input_ids=batch.decoder_input_BT,
            ).logits
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1),
                batch.target_BT.flatten(),
                ignore_index=0,
                label_smoothing=0.1,
            )
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _timed(step: Callable[[Update], None], updates: Sequence[Update]) -> float:
    """Seconds of all updates, until the device has made the last."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = time.perf_counter()
    for update in updates:
        step(update)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _useful_flop(update: Update, config: ModelConfig) -> float:
    lengths = [
        (batch.source_lengths_B.float().mean().item(), batch.target_lengths_B.float().mean().item())
        for batch in update.micro_batches
    ]
    return sum(
        training_flop(
            config,
            target_vocab_size=VOCAB_SIZE,
            source_length=round(source),
            target_length=round(target),
        )
        * len(batch.source_lengths_B)
        for batch, (source, target) in zip(update.micro_batches, lengths, strict=True)
    )


def _matrix_rate(device: torch.device, side: int) -> float:
    """FLOP/s of a bf16 product of random square matrices."""
    left, right = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    for repeats in (5, 20):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            left @ right
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    return 2 * side**3 * repeats / seconds


if __name__ == "__main__":
    main()
