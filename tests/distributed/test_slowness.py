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
USUAL_S, SLOW_S = 0.03, 0.7
PAUSE_S = 8.0


def training(world: World, directory: str, strategy: str, paused_at: int) -> Any:
    """A run of two ranks; from one step on, the work of rank 1 takes ten times as long.

    paused_at: the step in which rank 0 does nothing for a while; 0: in none.
    """
    from dragoman.distributed.config import DistributedConfig
    from dragoman.training.config import CheckpointConfig, TrainConfig
    from toy_fit import ToyRun

    updates: list[int] = []
    slow = [ODD_STEP, *range(SLOW_FROM, MAX_STEPS)] if not world.is_main else []

    def add_work(update_index: int, model: Any) -> None:
        if update_index == 0:
            work = model.register_forward_pre_hook
            work(lambda *_: time.sleep(SLOW_S if updates[-1] in slow else USUAL_S))
        updates.append(update_index + 1)
        if world.is_main and updates[-1] == paused_at:
            time.sleep(PAUSE_S)

    run = ToyRun(
        Path(directory),
        TrainConfig(
            max_steps=MAX_STEPS,
            log_every_steps=10,
            validate_every_steps=1000,
            validate_at_start=False,
        ),
        checkpoint=CheckpointConfig(every_steps=1000),
        distributed=DistributedConfig.model_validate({"strategy": strategy}),
        before_update=add_work,
    )
    return run.fit(world).state.step


def _slow_alerts(directory: Path) -> list[Event]:
    events = read_events(directory / "events" / "log.jsonl")
    return [one for one in events if one.kind == "alert" and "was usual" in one.payload["cause"]]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("strategy", "hosts", "paused_at"),
    [
        pytest.param("sync", [2], 0, marks=pytest.mark.system),
        pytest.param("sync", [2], SLOW_FROM + 2, marks=pytest.mark.slow),
        pytest.param("diloco", [1, 1], 0, marks=pytest.mark.system),
    ],
)
def test_a_rank_that_becomes_slow_is_named(
    strategy: str, hosts: list[int], paused_at: int, tmp_path: Path
) -> None:
    """Another rank that stands still meanwhile is not blamed for it."""
    steps = run_ranks(
        training, str(tmp_path), strategy, paused_at, world_size=2, hosts=hosts, timeout_s=100
    )
    assert steps == [MAX_STEPS] * 2
    alerts = _slow_alerts(tmp_path)
    assert alerts
    assert not any("rank 0" in one.payload["cause"] for one in alerts)
    last = alerts[-1]
    cause = last.payload["cause"]
    assert last.step is not None
    assert SLOW_FROM < last.step <= SLOW_FROM + 20
    assert f"rank 1 on {os.uname().nodename} takes" in cause
    assert "by itself, the median rank" in cause
    since = re.search(r"since step (\d+), \d\d:\d\d:\d\d UTC", cause)
    assert since is not None, cause
    # Diloco's ranks meet every second step; other work on this machine may slow a step before.
    assert int(since[1]) == pytest.approx(SLOW_FROM, abs=4), cause


def half_speed_from_the_start(world: World, slow: int) -> Any:
    """The alerts if one rank takes four times as long as the other from the first step."""
    from torch import nn

    from dragoman.distributed.gradient_sync import NoSync
    from dragoman.telemetry.events import Alert
    from dragoman.training.guard import Examination, StepGuard

    sync = NoSync(nn.Linear(1, 1))
    guard = StepGuard(
        sync, max_steps=5000, judges_steps=world.is_main, rank=world.rank, alone=False
    )
    began = time.time() - 2.0
    for step in range(1, 16):
        sync.waits.add(1.5 if world.rank != slow else 0.0)
        assert guard.see(step=step, seconds_s=2.0, data_wait_s=0.0) is None
        time.sleep(0.2)
    assert (guard.slowness is not None) is (world.rank != slow)
    if guard.slowness is not None:
        assert abs(guard.slowness.since - began) < 1.5, "the moment of the first step"
    found = Examination(world, None).run(guard)
    return [one.cause for one in found if isinstance(one, Alert)]


@pytest.mark.system
@pytest.mark.parametrize("slow", [0, 1])
def test_a_rank_that_is_slow_from_the_start_is_named(slow: int) -> None:
    (cause,), others = run_ranks(half_speed_from_the_start, slow, world_size=2)
    assert others == []
    assert f"rank {slow} on {os.uname().nodename} takes 2 s/step by itself" in cause
    assert "since step 1, " in cause


def slow_main_rank(world: World, directory: str) -> Any:
    """A run of two ranks of which the first takes long from its first step on."""
    from dragoman.training.config import CheckpointConfig, TrainConfig
    from toy_fit import ToyRun

    def add_work(update_index: int, model: Any) -> None:
        if update_index == 0:
            work = model.register_forward_pre_hook
            work(lambda *_: time.sleep(0.5 if world.is_main else 0.01))

    run = ToyRun(
        Path(directory),
        TrainConfig(
            max_steps=24,
            log_every_steps=10,
            validate_every_steps=1000,
            validate_at_start=False,
        ),
        checkpoint=CheckpointConfig(every_steps=1000),
        before_update=add_work,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dragoman.training.guard._WORTH_A_WORD_S", 1.0)  # what is left is short here
        return run.fit(world).state.step


@pytest.mark.system
@pytest.mark.timeout(150)
def test_a_run_whose_first_rank_is_slow_from_the_start_is_reported(tmp_path: Path) -> None:
    assert run_ranks(slow_main_rank, str(tmp_path), world_size=2, timeout_s=140) == [24, 24]
    events = read_events(tmp_path / "events" / "log.jsonl")
    causes = [one.payload["cause"] for one in events if one.kind == "alert"]
    assert any(
        f"rank 0 on {os.uname().nodename} takes" in cause and "since step 1, " in cause
        for cause in causes
    ), causes


def changed_link(
    world: World, before_bytes_per_s: float, slow: bool, slow_sender: int | None
) -> Any:
    """The findings of two hosts, over real sockets, if the network carried so much before."""
    import torch.distributed as dist
    from torch import nn

    from dragoman.distributed.gradient_sync import NoSync
    from dragoman.training.guard import Examination, Slowness, StepGuard, Window

    host = ("alpha", "beta")[world.rank]
    guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=100, rank=world.rank, alone=False)
    guard.last = Window(world.rank, host, 0.2, 0.8, 0.0)
    if world.is_main:
        took = "the last 10 steps took 1 s/step, 200 ms/step was usual"
        guard.slowness = Slowness(slow, took, "long", 31, time.time())
    send = dist.send
    if world.rank == slow_sender:

        def send_late(payload: Any, *place: Any, **more: Any) -> None:
            if payload.numel() > 1:
                time.sleep(2.5)
            send(payload, *place, **more)

        dist.send = send_late  # type: ignore[assignment]
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dragoman.distributed.link_rate._LONG_ENOUGH_S", 0.1)
            found = Examination(world, before_bytes_per_s).run(guard)
    finally:
        dist.send = send
    return [{"kind": one.kind, **one.model_dump()} for one in found]


@pytest.mark.system
@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("slow_sender", "where"),
    [(None, "alpha to beta, beta to alpha"), (0, "alpha to beta"), (1, "beta to alpha")],
)
def test_a_link_that_carries_less_is_named_with_its_direction(
    slow_sender: int | None, where: str
) -> None:
    found, others = run_ranks(
        changed_link, 1e14, True, slow_sender, world_size=2, hosts=[1, 1], timeout_s=140
    )
    assert others == []
    changed, alert = found
    assert changed["kind"] == "link_changed"
    if slow_sender is None:  # a busy machine may make one direction look slow
        assert set(changed["where"].split(", ")) <= set(where.split(", "))
    else:
        assert changed["where"] == where
    assert changed["before_bytes_per_s"] == 1e14
    assert 1e5 < changed["now_bytes_per_s"] < 1e12, "measured over loopback"
    assert changed["since_step"] == 31
    assert f"{changed['where']}, fell from 100 TB/s to " in alert["cause"]
    assert " at step 31, " in alert["cause"]
    assert "1 s/step, 200 ms/step was usual. " in alert["cause"]
    assert "rest will take long" in alert["cause"]
    assert "doctor" in alert["remedy"]


@pytest.mark.timeout(150)
def test_a_link_that_carries_more_again_is_reported_with_the_steps() -> None:
    found, others = run_ranks(changed_link, 10.0, False, None, world_size=2, hosts=[1, 1])
    assert others == []
    changed, alert = found
    assert (changed["kind"], changed["where"]) == ("link_changed", "")
    assert changed["now_bytes_per_s"] > 1e5
    assert alert["severity"] == "info"


def unchanged_link(world: World) -> Any:
    """The same if the network is about as fast as before: any two measurements are alike."""
    from dragoman.training import guard

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guard, "_CHANGED", 1e9)
        return changed_link(world, 1e8, True, None)


@pytest.mark.timeout(150)
def test_a_link_that_carries_as_much_as_before_is_not_blamed() -> None:
    (alert,), others = run_ranks(unchanged_link, world_size=2, hosts=[1, 1])
    assert others == []
    assert alert["kind"] == "alert"
    assert "which carries" in alert["cause"]
    assert "each way, as much as before" in alert["cause"]
    assert "80.0% of it waits for other ranks and the network" in alert["cause"]


def asked_twice(world: World) -> Any:
    """Ranks whose second vote is counted when the first has been answered for all of them."""
    from torch import nn

    from dragoman.distributed.gradient_sync import NoSync
    from dragoman.training.guard import Examination, Slowness, StepGuard

    guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=100, rank=world.rank, alone=False)
    guard.slowness = Slowness(True, "the last 10 steps took 1 s/step", "It takes long", 1, 0.0)
    examination = Examination(world, None)
    return [len(examination.run(guard)) for _ in range(2)]


def test_ranks_that_ask_one_after_the_other_are_answered_once() -> None:
    assert run_ranks(asked_twice, world_size=2) == [[1, 0], [0, 0]]
