"""Sequences of random pieces to copy or to reverse, and all that training on them needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.corpus.shards import EOS
from dragoman.data.config import DataConfig
from dragoman.data.loader import BatchStream
from dragoman.distributed.config import DistributedConfig
from dragoman.distributed.strategies import gradient_sync
from dragoman.distributed.world import World
from dragoman.model.config import ModelConfig
from dragoman.model.transformer import Transformer
from dragoman.training.config import OptimizerConfig, TrainConfig
from dragoman.training.step import TrainStep

ONE_RANK = World(rank=0, world_size=1, local_rank=0, device=torch.device("cpu"))
TOY_MODEL = ModelConfig(
    d_model=32, num_heads=2, d_ffn=64, encoder_layers=1, decoder_layers=1, dropout=0.1
)


class ToyPairs:
    """Pairs in memory, as data.loader.PairStore asks for them."""

    def __init__(
        self,
        num_pairs: int,
        *,
        task: Literal["copy", "reverse"] = "copy",
        vocab_size: int = 30,
        longest: int = 10,
        seed: int = 0,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.vocab_size = vocab_size
        self.sources = [
            rng.integers(EOS + 1, vocab_size, rng.integers(2, longest + 1))
            for _ in range(num_pairs)
        ]
        turn = -1 if task == "reverse" else 1
        self.targets = [source[::turn] for source in self.sources]
        self.source_lengths: NDArray[np.integer] = np.array([len(row) for row in self.sources])
        self.target_lengths: NDArray[np.integer] = self.source_lengths

    def gather(
        self, indices: NDArray[np.int64], /
    ) -> tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.integer], NDArray[np.integer]]:
        """Rows end to end and their lengths, source then target."""
        nothing = [np.empty(0, dtype=np.int64)]
        lengths = self.source_lengths[indices]
        return (
            np.concatenate(nothing + [self.sources[row] for row in indices]),
            lengths,
            np.concatenate(nothing + [self.targets[row] for row in indices]),
            lengths,
        )


@dataclass(frozen=True)
class ToyTraining:
    """A model, what makes its updates and the updates themselves."""

    model: Transformer
    step: TrainStep
    stream: BatchStream


@contextmanager
def toy_training(
    pairs: ToyPairs,
    *,
    model: ModelConfig = TOY_MODEL,
    data: DataConfig | None = None,
    train: TrainConfig | None = None,
    optimizer: OptimizerConfig | None = None,
    world: World = ONE_RANK,
    start_update: int = 0,
    distributed: DistributedConfig | None = None,
) -> Iterator[ToyTraining]:
    """Training that has not begun, or that is to go on after `start_update` updates."""
    train = train or TrainConfig(max_steps=20)
    optimizer = optimizer or OptimizerConfig()
    torch.manual_seed(train.seed)
    transformer = Transformer(
        model, source_vocab_size=pairs.vocab_size, target_vocab_size=pairs.vocab_size
    )
    stream = BatchStream(
        pairs,
        data or DataConfig(batch_tokens=100),
        seed=train.seed,
        rank=world.rank,
        world_size=world.world_size,
        start_update=start_update,
        device=world.device,
    )
    with (
        stream,
        gradient_sync(distributed or DistributedConfig(), transformer, world) as sync,
    ):
        step = TrainStep(
            transformer,
            sync=sync,
            train=train,
            precision="fp32" if train.precision == "auto" else train.precision,
            optimizer=optimizer,
            world=world,
        )
        yield ToyTraining(transformer, step, stream)
