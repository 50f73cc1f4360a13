"""Our side of the CPU benchmark: dragoman's own training parts on the peers' encoded text.

Started by run.py with the peers' environment (PEER_OUT, PEER_T0 ...), which also puts their
`meter` on the path: it counts tokens from the batches and time from the optimizer's steps.
Arguments: folder of the encoded text, d_model, heads, d_ffn, layers, dropout inside attention and
feed-forward.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from meter import METER, describe_model
from numpy.typing import NDArray

from dragoman.base.memory import keep_freed_memory
from dragoman.data.config import DataConfig
from dragoman.data.loader import BatchStream
from dragoman.distributed.config import DistributedConfig
from dragoman.distributed.strategies import gradient_sync
from dragoman.distributed.world import join_world
from dragoman.model.config import ModelConfig
from dragoman.model.transformer import Transformer
from dragoman.training.config import OptimizerConfig, TrainConfig
from dragoman.training.precision import agreed_precision
from dragoman.training.schedule import ScheduleConfig, learning_rate
from dragoman.training.step import TrainStep

UNKNOWN = 1
VOCAB_SIZE = 8000


class EncodedText:
    """The peers' text, one sentence of pieces a line, as BatchStream wants it."""

    def __init__(self, folder: Path) -> None:
        pieces = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
        self._ids = {piece: number for number, piece in enumerate(pieces, 4)}
        self._source = self._read(folder / "train.sp.en")
        self._target = self._read(folder / "train.sp.de")
        self.source_lengths = np.array([len(row) for row in self._source], dtype=np.int32)
        self.target_lengths = np.array([len(row) for row in self._target], dtype=np.int32)

    def gather(
        self, indices: NDArray[np.int64], /
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        """The rows of some pairs."""
        return (
            np.concatenate([self._source[index] for index in indices]),
            self.source_lengths[indices],
            np.concatenate([self._target[index] for index in indices]),
            self.target_lengths[indices],
        )

    def _read(self, path: Path) -> list[NDArray[np.uint16]]:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        ids = self._ids
        return [
            np.array([ids.get(piece, UNKNOWN) for piece in line.split()], dtype=np.uint16)
            for line in lines
        ]


def main() -> None:
    keep_freed_memory()
    METER.install()
    folder = Path(sys.argv[1])
    d_model, num_heads, d_ffn, layers = map(int, sys.argv[2:6])
    inner_dropout = float(sys.argv[6])
    train = TrainConfig.model_validate({"precision": sys.argv[7]})
    config = ModelConfig(
        d_model=d_model,
        num_heads=num_heads,
        d_ffn=d_ffn,
        encoder_layers=layers,
        decoder_layers=layers,
        attention_dropout=inner_dropout,
        activation_dropout=inner_dropout,
    )
    schedule = ScheduleConfig(kind="noam")
    with join_world() as world:
        torch.manual_seed(1)
        model = Transformer(config, source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE)
        describe_model(model)
        with (
            gradient_sync(DistributedConfig(), model, world) as sync,
            BatchStream(
                EncodedText(folder),
                # One length, as in the batches of the others.
                DataConfig(batch_tokens=4096, length_groups=1),
                seed=1,
                rank=0,
                world_size=1,
                start_update=0,
                device=world.device,
            ) as updates,
        ):
            step = TrainStep(
                model,
                sync=sync,
                train=train,
                precision=agreed_precision(train, world),
                optimizer=OptimizerConfig(),
                world=world,
            )
            for update in updates:
                (batch,) = update.micro_batches
                METER.batch(
                    src=batch.num_source_tokens - update.global_pairs,
                    trg=batch.num_target_tokens,
                    sents=update.global_pairs,
                    cells_src=batch.source_BS.numel(),
                    cells_trg=batch.target_BT.numel(),
                )
                rate = learning_rate(
                    update.update_index, schedule, d_model=d_model, max_steps=100_000
                )
                step(update, learning_rate=rate)


if __name__ == "__main__":
    main()
