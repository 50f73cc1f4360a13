"""A rank that becomes slow in the middle of a run is named while the run goes on."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from dragoman.distributed.world import World
from dragoman.telemetry.events import Event, read_events
from ranks import run_ranks

ODD_STEP = 37
"""One slow step long before: it is not the turning point."""
SLOW_FROM = 45
MAX_STEPS = 62
USUAL_S, SLOW_S = 0.03, 0.4


def training(world: World, directory: str) -> Any:
    """A run of two ranks; from one step on, the work of rank 1 takes ten times as long."""
    from dragoman.train.config import CheckpointConfig, TrainConfig
    from toy_fit import ToyRun

    updates: list[int] = []
    slow = [ODD_STEP, *range(SLOW_FROM, MAX_STEPS)] if not world.is_main else []

    def add_work(update_index: int, model: Any) -> None:
        if update_index == 0:
            work = model.register_forward_pre_hook
            work(lambda *_: time.sleep(SLOW_S if updates[-1] in slow else USUAL_S))
        updates.append(update_index + 1)

    run = ToyRun(
        Path(directory),
        TrainConfig(
            max_steps=MAX_STEPS,
            log_every_steps=10,
            validate_every_steps=1000,
            validate_at_start=False,
        ),
        checkpoint=CheckpointConfig(every_steps=1000),
        before_update=add_work,
    )
    return run.fit(world).state.step


def _slow_alerts(directory: Path) -> list[Event]:
    events = read_events(directory / "events" / "rank-0000.jsonl")
    return [one for one in events if one.kind == "alert" and "was usual" in one.payload["cause"]]


@pytest.mark.timeout(120)
def test_a_rank_that_becomes_slow_is_named(tmp_path: Path) -> None:
    assert run_ranks(training, str(tmp_path), world_size=2, timeout_s=100) == [MAX_STEPS] * 2
    alerts = _slow_alerts(tmp_path)
    assert alerts
    last = alerts[-1]
    cause = last.payload["cause"]
    assert last.step is not None
    assert SLOW_FROM < last.step <= SLOW_FROM + 20
    assert f"rank 1 on {os.uname().nodename} takes" in cause
    assert "by itself, the median rank" in cause
    since = re.search(r"since step (\d+), \d\d:\d\d:\d\d UTC", cause)
    assert since is not None, cause
    assert int(since[1]) == pytest.approx(SLOW_FROM, abs=1), cause


def half_speed_from_the_start(world: World) -> Any:
    """What the ranks find when rank 1 takes four times as long as rank 0 from the first step."""
    from torch import nn

    from dragoman.distributed.strategy import NoSync
    from dragoman.telemetry.events import Alert
    from dragoman.train.guard import StepGuard
    from dragoman.train.slowness import Examination

    class Waiting(NoSync):
        exposed_s = 0.0

    sync = Waiting(nn.Linear(1, 1))
    guard = StepGuard(
        sync, max_steps=5000, judges_steps=world.is_main, rank=world.rank, alone=False
    )
    began = time.time() - 2.0
    for step in range(1, 16):
        sync.exposed_s += 1.5 if world.is_main else 0.0
        assert guard.see(step=step, steps=1, seconds_s=2.0, data_wait_s=0.0) is None
        time.sleep(0.2)
    assert not world.is_main or guard.found is not None
    if guard.found is not None:
        assert abs(guard.found.since - began) < 1.5, "the moment of the first step"
    found = Examination(world, None).run(guard)
    return [one.cause for one in found if isinstance(one, Alert)]


def test_a_rank_that_is_slow_from_the_start_is_named() -> None:
    (cause,), others = run_ranks(half_speed_from_the_start, world_size=2)
    assert others == []
    assert f"rank 1 on {os.uname().nodename} takes 2 s/step by itself" in cause
    assert "since step 1, " in cause
