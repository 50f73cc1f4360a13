"""A rank that stands still is named while the others wait for it, and tells of it afterwards."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dragoman.distributed.standing import FolderBoard
from dragoman.distributed.world import World
from dragoman.reporting.health import examine
from dragoman.reporting.reading import read_facts
from dragoman.telemetry.events import Event, EventWriter, read_events
from dragoman.telemetry.timers import PhaseTimer
from dragoman.training.pauses import LATE_S, PauseWatch
from processes import wait_until
from ranks import run_ranks
from toy_task import ONE_RANK

PAUSE_FROM = 60
PAUSE_S = 8.0


def training(world: World, directory: str) -> Any:
    """A run whose rank 1 leaves its process id when it is to be stopped."""
    from dragoman.training.config import CheckpointConfig, TrainConfig
    from toy_fit import ToyRun

    def before_update(update_index: int, _model: object) -> None:
        if update_index == PAUSE_FROM and world.rank == 1:
            draft = Path(directory) / "draft"
            draft.write_text(str(os.getpid()))
            draft.rename(Path(directory) / "stop-me")
            time.sleep(1)
        time.sleep(0.05)

    run = ToyRun(
        Path(directory),
        TrainConfig(max_steps=120, log_every_steps=10, validate_every_steps=1000),
        checkpoint=CheckpointConfig(every_steps=1000),
        before_update=before_update,
    )
    return run.fit(world).state.step


def _alerts(directory: Path, rank: int, words: str) -> list[Event]:
    """Those with these words; a machine that is busy otherwise may give cause for others."""
    events = read_events(directory / "events" / f"rank-{rank:04d}.jsonl")
    return [one for one in events if one.kind == "alert" and words in one.payload["cause"]]


@pytest.mark.timeout(120)
def test_a_paused_rank_is_named_while_it_stands_and_afterwards(tmp_path: Path) -> None:
    stopped_at: list[float] = []

    def pause() -> None:
        wait_until((tmp_path / "stop-me").exists, limit_s=60)
        pid = int((tmp_path / "stop-me").read_text())
        os.kill(pid, signal.SIGSTOP)
        stopped_at.append(time.time())
        time.sleep(PAUSE_S)
        os.kill(pid, signal.SIGCONT)

    pausing = threading.Thread(target=pause)
    pausing.start()
    run_ranks(training, str(tmp_path), world_size=2, timeout_s=100)
    pausing.join()
    host = os.uname().nodename

    (warning,) = _alerts(tmp_path, 0, "has not come")
    (back,) = _alerts(tmp_path, 0, "goes on")
    assert f"rank 1 on {host} has not come to the sum of step" in warning.payload["cause"]
    assert "no sign of life" in warning.payload["cause"]
    assert stopped_at[0] < warning.time < stopped_at[0] + PAUSE_S, "told while it stands still"
    assert f"rank 1 on {host} goes on" in back.payload["cause"]
    (own,) = _alerts(tmp_path, 1, "stood still")
    assert f"rank 1 on {host} stood still for" in own.payload["cause"]
    assert "others" not in own.payload["cause"], "it cannot know what they did meanwhile"

    facts = read_facts(tmp_path)
    (pause_seen,) = facts.pauses
    assert pause_seen.own
    assert pause_seen.seconds_s == pytest.approx(PAUSE_S, abs=1.5)
    assert abs(pause_seen.began - stopped_at[0]) < 1.5
    verdicts = {one.key: one for one in examine(facts)}
    assert verdicts["pauses"].answer == "yes"
    for rank in facts.ranks:  # no part of a step holds the pause
        for interval in rank.intervals:
            assert interval.interval_s is not None
            assert interval.interval_s < PAUSE_S, (rank.rank, interval)


def validating(world: World, directory: str) -> Any:
    """Its first validation is long on rank 0; in the second, rank 1 leaves its process id."""
    from dragoman.training.config import CheckpointConfig, TrainConfig
    from toy_fit import ToyRun, ToyValidation

    def validate(step: int, _model: object) -> ToyValidation:
        if step == 20 and world.is_main:
            time.sleep(LATE_S + 4)
        if step == 40 and world.rank == 1:
            time.sleep(3)  # it says once a second what it does
            draft = Path(directory) / "draft"
            draft.write_text(str(os.getpid()))
            draft.rename(Path(directory) / "stop-me")
            time.sleep(1)
        world.barrier()
        return ToyValidation(1.0)

    run = ToyRun(
        Path(directory),
        TrainConfig(
            max_steps=50, log_every_steps=10, validate_every_steps=20, validate_at_start=False
        ),
        checkpoint=CheckpointConfig(every_steps=1000),
        validate=validate,
    )
    return run.fit(world).state.step


@pytest.mark.system
@pytest.mark.timeout(120)
def test_a_rank_that_stands_still_in_a_validation_is_named(tmp_path: Path) -> None:
    stopped_at: list[float] = []
    pause_s = LATE_S + 6

    def pause() -> None:
        wait_until((tmp_path / "stop-me").exists, limit_s=80)
        pid = int((tmp_path / "stop-me").read_text())
        os.kill(pid, signal.SIGSTOP)
        stopped_at.append(time.time())
        time.sleep(pause_s)
        os.kill(pid, signal.SIGCONT)

    pausing = threading.Thread(target=pause)
    pausing.start()
    assert run_ranks(validating, str(tmp_path), world_size=2, timeout_s=100) == [50, 50]
    pausing.join()
    host = os.uname().nodename
    (warning,) = _alerts(tmp_path, 0, "no sign of life")
    (back,) = _alerts(tmp_path, 0, "goes on")
    assert f"rank 1 on {host} has given no sign of life" in warning.payload["cause"]
    assert "were validating after step 40" in warning.payload["cause"]
    assert stopped_at[0] < warning.time < stopped_at[0] + pause_s, "told while it stands still"
    assert f"rank 1 on {host} goes on" in back.payload["cause"]
    events = read_events(tmp_path / "events" / "rank-0000.jsonl")
    (seen,) = [
        one.payload for one in events if one.kind == "rank_paused" and not one.payload["own"]
    ]
    assert seen["during"] == "validating"
    assert seen["seconds_s"] == pytest.approx(pause_s, abs=3)


@pytest.mark.system
def test_a_rank_that_has_ended_is_not_missed(tmp_path: Path) -> None:
    """Rank 0 may save for long after the others have left."""
    worlds = [replace(ONE_RANK, rank=rank, world_size=2) for rank in (0, 1)]
    board = FolderBoard(tmp_path, "standing-")
    with EventWriter(tmp_path / "events") as events:
        watches = [
            PauseWatch(world, PhaseTimer(ONE_RANK.device), events, board) for world in worlds
        ]
        with watches[0], watches[0].outside("saving"):
            with watches[1], watches[1].outside("saving"):
                time.sleep(2.5)
            time.sleep(LATE_S + 4)
    assert [one for one in read_events(events.path) if one.kind == "alert"] == []
