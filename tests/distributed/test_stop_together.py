"""A signal or a clock that one rank alone notices stops all ranks after the same update."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from dragoman.distributed.world import World
from dragoman.model.transformer import Transformer
from dragoman.telemetry.events import read_events
from dragoman.training.clock import Budget
from dragoman.training.config import CheckpointConfig, TrainConfig
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
    events = list(read_events(tmp_path / "events" / "log.jsonl"))
    intervals = [event for event in events if event.kind == "train_interval"]
    assert all(len(event.payload["interval_s"]) == 2 for event in intervals)
    assert sum(event.kind == "checkpoint_written" for event in events) == len(intervals)
    steps = [event.step for event in intervals]
    assert (steps[0], steps[-1]) == (1, 6), "the clock of rank 0 asks at once, and all follow"


def _fit_in_time(world: World, directory: str) -> Any:
    def before_update(_update_index: int, _model: Transformer) -> None:
        time.sleep(0.02)

    # PyTorch imports more at its first use, which takes seconds.
    ToyRun(Path(directory) / "first", TrainConfig(max_steps=1)).fit(world)
    budget = Budget(
        asked="",
        started=time.time() - 1000 * world.rank,  # only the clock of rank 0 counts
        seconds_s=6.0,
        validation_s=0.01,
        search_s=0.01,
        after_s=0.0,
        after_searches=0.0,
    )
    run = ToyRun(
        Path(directory),
        TrainConfig(max_steps=100, validate_at_start=False, log_every_steps=1),
        before_update=before_update,
        budget=budget,
    )
    result = run.fit(world)
    return [result.reason, result.state.step, result.state.progress]


@pytest.mark.system
def test_all_ranks_follow_the_clock_of_rank_0(tmp_path: Path) -> None:
    first, second = run_ranks(_fit_in_time, str(tmp_path), world_size=2)
    reason, step, progress = first
    assert second == first
    assert reason == "max_steps"
    assert 9 <= step < 500
    # Usually above 0.9. If the machine stands still for seconds, the reading after that ends the
    # training, and the progress is that of the last update.
    assert progress > 0.2
