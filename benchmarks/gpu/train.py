"""Training speed on one GPU: ours, Hugging Face on the same batches, and the matrix rate.

    benchmarks/gpu/train.py [--sizes base big] [--precision bf16] [--cells 25600] [--seconds 20]

Prints for each size: source + target tokens a second (padding not counted) of both, their ratio,
peak memory, and our MFU: useful FLOP/s over those of a bf16 8192^3 matrix product measured in this
run. Sentences are random tokens with lengths like those of WMT16 en-de, bucketed by our own
sampler. `--sizes tiny --matrix 512` shows on a CPU that it works; those figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.data.config import DataConfig
from dragoman.data.loader import BatchStream, Update
from dragoman.distributed.config import DistributedConfig
from dragoman.distributed.gradient_sync import gradient_sync
from dragoman.distributed.world import World, join_world
from dragoman.estimate import training_flop
from dragoman.model.config import ModelConfig
from dragoman.model.transformer import Transformer
from dragoman.telemetry.timers import PhaseTimer
from dragoman.train.config import OptimizerConfig, TrainConfig
from dragoman.train.optimizer import make_optimizer
from dragoman.train.step import TrainStep

VOCAB_SIZE = 32_768
NUM_PAIRS = 200_000
SIZES = {
    "tiny": ModelConfig(d_model=64, num_heads=2, d_ffn=128, encoder_layers=1, decoder_layers=1),
    "base": ModelConfig(d_model=512, num_heads=8, d_ffn=2048),
    "big": ModelConfig(d_model=1024, num_heads=16, d_ffn=4096, dropout=0.3),
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
class Speed:
    """What one side reached over some updates."""

    tokens_per_s: float
    flop_per_s: float
    peak_memory_bytes: int


def main() -> None:
    options = _options()
    with join_world() as world:
        matrix_flop_per_s = _matrix_rate(world.device, options.matrix)
        print(f"matrix product: {matrix_flop_per_s / 1e12:.1f} TFLOP/s", flush=True)
        for size in options.sizes:
            updates = _updates(options.cells, options.updates, world)
            ours = _measure(_our_step(SIZES[size], options, world), updates, SIZES[size], world)
            theirs = _measure(_hf_step(SIZES[size], options, world), updates, SIZES[size], world)
            result = {
                "size": size,
                "tokens_per_s": round(ours.tokens_per_s),
                "hugging_face_tokens_per_s": round(theirs.tokens_per_s),
                "ratio": round(ours.tokens_per_s / theirs.tokens_per_s, 2),
                "mfu": round(ours.flop_per_s / matrix_flop_per_s, 3),
                "peak_memory_mb": round(ours.peak_memory_bytes / 1e6),
                "hugging_face_peak_memory_mb": round(theirs.peak_memory_bytes / 1e6),
            }
            print(json.dumps(result), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["base", "big"])
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="bf16")
    parser.add_argument("--cells", type=int, default=25_600, help="of a batch's longer side")
    parser.add_argument("--updates", type=int, default=200, help="measured; as many warm up")
    parser.add_argument("--matrix", type=int, default=8192, help="side of the matrix product")
    parser.add_argument("--no-compile", action="store_true")
    return parser.parse_args()


def _updates(cells: int, num_updates: int, world: World) -> list[Update]:
    config = DataConfig(batch_tokens=cells, length_multiple=16)
    pairs = RandomPairs(NUM_PAIRS)
    with BatchStream(
        pairs, config, seed=1, rank=0, world_size=1, start_update=0, device=world.device
    ) as stream:
        return list(islice(stream, num_updates))


def _our_step(
    config: ModelConfig, options: argparse.Namespace, world: World
) -> Callable[[Update], None]:
    model = Transformer(config, source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE)
    model.to(world.device)
    if not options.no_compile:
        model.encoder.compile()
        model.decoder.compile()
    with gradient_sync(DistributedConfig(), model, world) as sync:
        step = TrainStep(
            model,
            sync=sync,
            optimizer=make_optimizer(model, OptimizerConfig()),
            config=TrainConfig(precision=options.precision),
            optimizer_config=OptimizerConfig(),
            world=world,
            timer=PhaseTimer(world.device),
        )
    return lambda update: (step(update, learning_rate=1e-4), None)[1]


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


def _measure(
    step: Callable[[Update], None], updates: list[Update], config: ModelConfig, world: World
) -> Speed:
    """Once over the updates to compile and warm up, once more by the clock."""
    on_gpu = world.device.type == "cuda"
    for update in updates:
        step(update)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    start = time.perf_counter()
    for update in updates:
        step(update)
    if on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    tokens = sum(u.global_source_tokens + u.global_target_tokens for u in updates)
    flop = sum(_useful_flop(update, config) for update in updates)
    peak = torch.cuda.max_memory_allocated() if on_gpu else 0
    return Speed(tokens / seconds, flop / seconds, peak)


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
