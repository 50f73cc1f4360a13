"""A whole toy training run in a directory; run as a program, it can be killed and run again."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

from dragoman.data.batch import make_batch
from dragoman.data.config import DataConfig
from dragoman.data.loader import Update
from dragoman.distributed.config import DistributedConfig
from dragoman.distributed.world import World
from dragoman.model.config import ModelConfig
from dragoman.model.incremental import inference
from dragoman.model.transformer import Transformer
from dragoman.telemetry.events import (
    EventWriter,
    MetricScored,
    Outbox,
    Recorder,
    SampleTranslation,
    Validated,
)
from dragoman.training.checkpoint import CheckpointStore, TrainState, read_state
from dragoman.training.clock import Budget
from dragoman.training.config import CheckpointConfig, OptimizerConfig, TrainConfig
from dragoman.training.schedule import ScheduleConfig, learning_rate
from dragoman.training.snapshot import agreed_checkpoint, resume
from dragoman.training.trainer import FitResult, fit
from toy_task import ONE_RANK, TOY_MODEL, ToyPairs, toy_training

TRAIN_PAIRS = ToyPairs(300, seed=1)
DEV_PAIRS = ToyPairs(40, seed=2)


@dataclass(frozen=True)
class ToyValidation:
    """A validation as the trainer needs it."""

    dev_loss: float
    bleu: float | None = None
    samples: Sequence[SampleTranslation] = ()
    further_scores: Sequence[MetricScored] = ()

    def event(self) -> Validated:
        """The event with what was measured, and None for all else."""
        return Validated(
            dev_loss=self.dev_loss,
            dev_perplexity=2.0**self.dev_loss,
            train_slice_loss=None,
            bleu=self.bleu,
            bleu_low=None,
            bleu_high=None,
            bleu_signature=None,
            chrf=None,
            chrf_low=None,
            chrf_high=None,
            chrf_signature=None,
            dev_pairs=len(DEV_PAIRS.sources),
            decoded_pairs=0,
            loss_s=0.0,
            decode_s=0.0,
        )


def dev_loss(model: nn.Module) -> float:
    """Nats per target token on the dev pairs, dropout off."""
    batch = make_batch(*DEV_PAIRS.gather(np.arange(len(DEV_PAIRS.sources))))
    with inference([model]):
        return float(model(batch).nll) / batch.num_target_tokens


EVERY_FIVE = CheckpointConfig(every_steps=5, keep_last=100)
CONSTANT_RATE = ScheduleConfig(kind="constant", warmup_steps=4)
ADAM = OptimizerConfig()
SMALL_BATCHES = DataConfig(batch_tokens=100)
SYNC = DistributedConfig()


@dataclass(frozen=True)
class ToyRun:
    """The settings of a run; `directory` holds its checkpoints and events."""

    directory: Path
    train: TrainConfig
    checkpoint: CheckpointConfig = EVERY_FIVE
    schedule: ScheduleConfig = CONSTANT_RATE
    optimizer: OptimizerConfig = ADAM
    data: DataConfig = SMALL_BATCHES
    model: ModelConfig = TOY_MODEL
    pairs: ToyPairs = TRAIN_PAIRS
    distributed: DistributedConfig = SYNC
    link_bytes_per_s: float | None = None
    budget: Budget | None = None
    stage_starts: Sequence[int] = (0,)
    before_update: Callable[[int, Transformer], None] = field(default=lambda _step, _model: None)
    change_update: Callable[[Update], Update] = field(default=lambda update: update)
    rate_factor: Callable[[float], float] = field(default=lambda _step: 1.0)
    """The schedule's rate, by the number of the step."""
    validate: Callable[[int, Transformer], ToyValidation] = field(
        default=lambda _step, model: ToyValidation(dev_loss(model))
    )

    def fresh_state(self, world: World) -> TrainState:
        """The state before the first update."""
        return TrainState(
            seed=self.train.seed,
            world_size=world.world_size,
            recipe_digest="recipe",
            corpus_digest="corpus",
            link_bytes_per_s=self.link_bytes_per_s,
        )

    def fit(self, world: World = ONE_RANK, *, events: Recorder | None = None) -> FitResult:
        """Train to the end, from the newest checkpoint if there is one.

        events: records the run; None: one that is made for it.
        """
        store = CheckpointStore(self.directory / "checkpoints", self.checkpoint)
        newest = store.paths()[-1:]
        recording: AbstractContextManager[Recorder] = (
            nullcontext(events) if events else recorder(self.directory / "events", rank=world.rank)
        )
        with (
            recording as recorded,
            toy_training(
                self.pairs,
                model=self.model,
                data=self.data,
                train=self.train,
                optimizer=self.optimizer,
                world=world,
                start_update=read_state(newest[0]).step if newest else 0,
                distributed=self.distributed,
            ) as training,
        ):
            checkpoint = agreed_checkpoint(store, world, _refuse)
            if checkpoint is None:
                state = self.fresh_state(world)
            else:
                state = resume(checkpoint, store, training.step)
            model = training.model

            def rate(step: float) -> float:
                return self.rate_factor(step) * learning_rate(
                    step,
                    self.schedule,
                    d_model=self.model.d_model,
                    max_steps=self.train.max_steps,
                )

            def updates() -> Iterator[Update]:
                for update in training.stream:
                    self.before_update(update.update_index, model)
                    yield self.change_update(update)

            return fit(
                training.step,
                updates(),
                state=state,
                config=self.train,
                learning_rate=rate,
                untrained_loss=math.log(self.pairs.vocab_size),
                validate=lambda step: self.validate(step, model),
                store=store,
                events=recorded,
                budget=self.budget,
                stage_starts=self.stage_starts,
            )


def recorder(directory: Path, *, rank: int) -> Recorder:
    """Where a rank records events: rank 0 writes those of all."""
    return Outbox(rank=rank) if rank else EventWriter(directory)


def _refuse(error: Exception) -> None:
    raise error


def main() -> None:
    """Train in the directory that the command line names, saving often."""
    torch.set_num_threads(1)
    ToyRun(
        Path(sys.argv[1]),
        TrainConfig(max_steps=int(sys.argv[2]), validate_every_steps=20, ema_decay=0.9),
        CheckpointConfig(every_steps=7),
    ).fit()


if __name__ == "__main__":
    main()
