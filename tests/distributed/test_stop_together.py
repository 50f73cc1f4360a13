"""A signal or a clock that one rank alone notices stops all ranks after the same update."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from dragoman.distributed.config import AccumConfig, DistributedConfig
from dragoman.distributed.world import World
from dragoman.model.transformer import Transformer
from dragoman.telemetry.events import read_events
from dragoman.training.config import CheckpointConfig, TrainConfig
from dragoman.training.pace import Budget
from ranks import run_ranks
from toy_fit import ToyRun


def _fit(world: World, directory: str) -> Any:
    def before_update(update_index: int, _model: Transformer) -> None:
        if update_index == 5 and world.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    run = ToyRun(
        Path(directory),
        TrainConfig(max_steps=50),
        CheckpointConfig(every_steps=100, every_minutes=1e-9),
        before_update=before_update,
    )
    result = run.fit(world)
    return [result.reason, result.state.step]


def test_all_ranks_stop_after_the_same_update(tmp_path: Path) -> None:
    assert run_ranks(_fit, str(tmp_path), world_size=2) == [["signal", 6], ["signal", 6]]
    assert (tmp_path / "checkpoints" / "step-0000006").is_dir()
    assert not list((tmp_path / "checkpoints").glob(".*"))
    losses = []
    for rank in (0, 1):
        events = list(read_events(tmp_path / "events" / f"rank-{rank:04d}.jsonl"))
        intervals = [event for event in events if event.kind == "train_interval"]
        losses.append([(event.step, event.payload["train_loss"]) for event in intervals])
        written = sum(event.kind == "checkpoint_written" for event in events)
        assert written == (len(intervals) if rank == 0 else 0)
    assert losses[0] == losses[1]
    steps = [step for step, _ in losses[0]]
    assert (steps[0], steps[-1]) == (1, 6), "the clock of rank 0 asks at once, and all follow"


def _fit_in_time(world: World, directory: str) -> Any:
    def before_update(_update_index: int, _model: Transformer) -> None:
        time.sleep(0.02)

    # PyTorch imports more at its first use, which takes seconds.
    ToyRun(Path(directory) / "first", TrainConfig(max_steps=1)).fit(world)
    budget = Budget(
        asked="",
        started=time.time(),
        seconds_s=6.0,
        aim_s=6.0,
        validation_s=0.01,
        search_s=0.01,
        after_s=0.0,
        after_searches=0.0,
        expected_bleu=20.0,
        expected_bleu_low=10.0,
        expected_bleu_high=30.0,
    )
    run = ToyRun(
        Path(directory),
        TrainConfig(max_steps=10_000, validate_every_steps=1000),
        distributed=DistributedConfig(strategy="accum", accum=AccumConfig(every=3)),
        before_update=before_update,
        budget=budget,
    )
    result = run.fit(world)
    return [result.reason, result.state.step, result.state.max_steps]


def test_all_ranks_agree_on_the_length_that_fits_a_budget(tmp_path: Path) -> None:
    first, second = run_ranks(_fit_in_time, str(tmp_path), world_size=2)
    reason, step, length = first
    assert second == first
    assert (reason, step) == ("max_steps", length)
    assert length % 3 == 0
    assert length < 500
