"""A rank that stands still is named while the others wait for it, and tells of it afterwards."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dragoman.distributed.heartbeat import FolderHeartbeats, Heartbeat
from dragoman.distributed.world import World
from dragoman.reporting.checks import examine
from dragoman.reporting.reading import read_facts
from dragoman.telemetry.events import Event, EventWriter, read_events
from dragoman.telemetry.timers import PhaseTimer
from dragoman.training.pause_watch import LATE_S, PauseWatch
from dragoman.training.pause_watch import PAUSE_S as PAUSE_LEAST_S
from example_events import RUN_STARTED, changed
from processes import wait_until
from ranks import run_ranks
from toy_task import ONE_RANK

PAUSE_S = 9.0


def training(world: World, directory: str, stopped: int, stop_in: int, work_s: float) -> Any:
    """A run in which one rank leaves its process id when it is to be stopped, in its own work.

    stop_in: the update in which that is. work_s: of each update.
    """
    from dragoman.training.config import CheckpointConfig, TrainConfig
    from toy_fit import ToyRun

    def before_update(update_index: int, _model: object) -> None:
        if update_index == stop_in and world.rank == stopped:
            ask_to_stop(Path(directory))
        time.sleep(work_s)

    run = ToyRun(
        Path(directory),
        TrainConfig(
            max_steps=stop_in + 3,
            log_every_steps=1 if stop_in < 10 else 5,
            validate_every_steps=1000,
            validate_at_start=False,
        ),
        checkpoint=CheckpointConfig(every_steps=1000),
        before_update=before_update,
    )
    record_start(world, run.directory)
    return run.fit(world).state.step


def record_start(world: World, directory: Path) -> None:
    """Without its start, a report knows of no training."""
    if world.is_main:
        with EventWriter(directory / "events") as events:
            hosts = (events.host,) * world.world_size
            events.write(changed(RUN_STARTED, world_size=world.world_size, hosts=hosts), step=0)


def ask_to_stop(directory: Path) -> None:
    """Leave this process's id, and give the test the time to stop it."""
    draft = directory / "draft"
    draft.write_text(str(os.getpid()))
    time.sleep(2)  # it says once a second what it does
    draft.rename(directory / "stop-me")
    time.sleep(1)


def _warning_meanwhile(directory: Path, rank: int, stopped_at: float, pause_s: float) -> Event:
    """The one warning while a process is stopped; there may be one of a starved machine before."""
    warnings = _alerts(directory, rank, "no sign of life")
    (warning,) = (
        one
        for one in warnings
        if one.payload["severity"] == "warning" and stopped_at < one.time < stopped_at + pause_s
    )
    return warning


@contextmanager
def pausing(directory: Path, pause_s: float) -> Iterator[list[float]]:
    """Stop the process that asks for it once, for a while; gives the moment."""
    stopped_at: list[float] = []

    def pause() -> None:
        wait_until((directory / "stop-me").exists, limit_s=100)
        pid = int((directory / "stop-me").read_text())
        os.kill(pid, signal.SIGSTOP)
        stopped_at.append(time.time())
        time.sleep(pause_s)
        os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=pause)
    thread.start()
    yield stopped_at
    thread.join()


def _alerts(directory: Path, rank: int, words: str) -> list[Event]:
    """Those with these words; a machine that is busy otherwise may give cause for others."""
    events = read_events(directory / "events" / "log.jsonl")
    alerts = [one for one in events if one.kind == "alert" and one.rank == rank]
    return [one for one in alerts if words in one.payload["cause"]]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("stopped", "stop_in", "work_s"),
    [
        pytest.param(1, 30, 0.05, id="in the middle of the run"),
        pytest.param(0, 0, 0.05, id="in the first update", marks=pytest.mark.system),
        pytest.param(1, 1, 5.0, id="while steps are slow", marks=pytest.mark.slow),
    ],
)
def test_a_paused_rank_is_named_while_it_stands_and_afterwards(
    stopped: int, stop_in: int, work_s: float, tmp_path: Path
) -> None:
    with pausing(tmp_path, PAUSE_S) as stopped_at:
        run_ranks(training, str(tmp_path), stopped, stop_in, work_s, world_size=2, timeout_s=100)
    name = f"rank {stopped} on {os.uname().nodename}"

    warning = _warning_meanwhile(tmp_path, 1 - stopped, stopped_at[0], PAUSE_S)
    back = _alerts(tmp_path, 1 - stopped, "goes on")[-1]
    assert f"{name} has given no sign of life" in warning.payload["cause"]
    assert f"it was in the wait for data of step {stop_in + 1}" in warning.payload["cause"]
    assert f"{name} goes on" in back.payload["cause"]
    (own,) = _alerts(tmp_path, stopped, "stood still")
    assert f"{name} stood still for" in own.payload["cause"]
    assert "others" not in own.payload["cause"], "it cannot know what they did meanwhile"

    facts = read_facts(tmp_path)
    (pause_seen,) = facts.pauses
    assert pause_seen.own
    assert pause_seen.seconds_s == pytest.approx(PAUSE_S, abs=1.5)
    assert abs(pause_seen.began - stopped_at[0]) < 1.5
    verdicts = {one.key: one for one in examine(facts)}
    assert verdicts["pauses"].answer == "yes"
    # No part of a step holds the pause.
    assert (facts.intervals["interval_s"] < PAUSE_S + work_s).all(), facts.intervals["interval_s"]


def stopped_in_a_sum(world: World, directory: str) -> Any:
    """Rank 1 is stopped while it waits for rank 0, which comes soon and then waits for rank 1."""
    from dragoman.training.config import CheckpointConfig, TrainConfig
    from toy_fit import ToyRun

    def before_update(update_index: int, _model: object) -> None:
        if update_index == 7 and world.is_main:
            time.sleep(4)

    def ask(work: Any, *_: object) -> None:
        if world.rank == 1 and len(calls) == 7:
            threading.Timer(1.0, ask_to_stop, [Path(directory)]).start()
        calls.append(work)

    calls: list[Any] = []

    def change(update: Any) -> Any:
        ask(update)
        return update

    run = ToyRun(
        Path(directory),
        TrainConfig(
            max_steps=12, log_every_steps=1, validate_every_steps=1000, validate_at_start=False
        ),
        checkpoint=CheckpointConfig(every_steps=1000),
        before_update=before_update,
        change_update=change,
    )
    return run.fit(world).state.step


@pytest.mark.system
@pytest.mark.timeout(120)
def test_a_rank_that_stands_still_in_a_sum_is_named(tmp_path: Path) -> None:
    with pausing(tmp_path, PAUSE_S) as stopped_at:
        assert run_ranks(stopped_in_a_sum, str(tmp_path), world_size=2) == [12, 12]
    warning = _warning_meanwhile(tmp_path, 0, stopped_at[0], PAUSE_S)
    assert "it was in the all-reduce of gradients of step 8" in warning.payload["cause"]


def stopped_with_a_slow_board(world: World, directory: str) -> None:
    """The process is stopped while its heartbeat is being written, which takes long."""

    class SlowHeartbeats(FolderHeartbeats):
        def write(self, rank: int, heartbeat: Heartbeat) -> None:
            super().write(rank, heartbeat)
            time.sleep(8)

    folder = Path(directory)
    with (
        EventWriter(folder / "events") as events,
        PauseWatch(
            replace(world, world_size=2),
            PhaseTimer(world.device),
            events,
            SlowHeartbeats(folder, "heartbeat-"),
        ),
    ):
        ask_to_stop(folder)


@pytest.mark.system
@pytest.mark.timeout(120)
def test_a_pause_is_noticed_while_a_slow_disk_is_written_to(tmp_path: Path) -> None:
    with pausing(tmp_path, 5.0):
        run_ranks(stopped_with_a_slow_board, str(tmp_path), world_size=1)
    (own,) = _alerts(tmp_path, 0, "stood still")
    assert f"rank 0 on {os.uname().nodename} stood still for" in own.payload["cause"]


@pytest.mark.system
def test_a_rank_that_comes_while_a_slow_disk_is_read_is_not_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While rank 1 reads the heartbeats in a first update, rank 0 comes, and updates are fast."""
    monkeypatch.setattr("dragoman.training.pause_watch.LATE_S", 2.5)
    began = time.monotonic()

    class SlowHeartbeats(FolderHeartbeats):
        beat = 0
        step = 0

        def read(self) -> Mapping[int, Heartbeat]:
            self.beat += 1
            seen = {0: Heartbeat("host", self.beat, self.step, "data_wait")}
            if self.step == 0 and time.monotonic() - began > 2.6:
                self.step = 6
                for step in range(1, 7):
                    watch.updated(step=step, seconds_s=0.01)
            return seen

    heartbeats = SlowHeartbeats(tmp_path, "heartbeat-")
    with EventWriter(tmp_path / "events") as events:
        world = replace(ONE_RANK, rank=1, world_size=2)
        watch = PauseWatch(world, PhaseTimer(ONE_RANK.device), events, heartbeats)
        with watch:
            wait_until(lambda: heartbeats.step == 6, limit_s=30)
            time.sleep(0.3)
    assert [one for one in read_events(events.path) if one.kind == "alert"] == []


@pytest.mark.system
@pytest.mark.parametrize(
    ("living", "own_link_may_be_out"),
    [
        pytest.param((), True, id="every other host is silent"),
        pytest.param((3,), False, id="another host lives"),
    ],
)
def test_the_own_link_is_suspected_if_no_other_host_is_heard(
    living: tuple[int, ...],
    own_link_may_be_out: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ranks 0 and 1 are on this host, the others each on a host of its own."""
    monkeypatch.setattr("dragoman.training.pause_watch.LATE_S", 3.0)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    heartbeats, this_host = FolderHeartbeats(tmp_path, "heartbeat-"), os.uname().nodename
    hosts = {1: this_host, 2: "beta", 3: "gamma", 4: "delta"}
    with EventWriter(tmp_path / "events") as events:
        world = replace(ONE_RANK, world_size=5)
        with PauseWatch(world, PhaseTimer(ONE_RANK.device), events, heartbeats):
            for beat in range(24):
                for rank, host in hosts.items():
                    if beat < 4 or rank in (1, *living):
                        heartbeats.write(rank, Heartbeat(host, beat, 7, "forward"))
                time.sleep(0.25)
    silent = {rank: host for rank, host in hosts.items() if rank not in (1, *living)}
    alerts = _alerts(tmp_path, 0, "no sign of life")
    assert len(alerts) == len(silent)
    for rank, host in silent.items():
        (alert,) = (one for one in alerts if f"rank {rank} on {host} " in one.payload["cause"])
        named = f"lo of {this_host} itself" in alert.payload["remedy"]
        assert named is own_link_may_be_out, alert.payload["remedy"]
        assert "look at that machine" in alert.payload["remedy"]


def slow_start(world: World, directory: str) -> Any:
    """The first updates of one rank take long, as if they compiled."""
    from dragoman.training.config import CheckpointConfig, TrainConfig
    from toy_fit import ToyRun

    def before_update(update_index: int, _model: object) -> None:
        if update_index < 2 and world.is_main:
            time.sleep(2 * LATE_S)

    run = ToyRun(
        Path(directory),
        TrainConfig(
            max_steps=10, log_every_steps=10, validate_every_steps=1000, validate_at_start=False
        ),
        checkpoint=CheckpointConfig(every_steps=1000),
        before_update=before_update,
    )
    return run.fit(world).state.step


@pytest.mark.system
def test_a_held_interpreter_is_no_pause(tmp_path: Path) -> None:
    """As while PyTorch compiles: no other thread of Python runs, but the process does."""
    hold_interpreter_us = ctypes.PyDLL(None).usleep  # PyDLL keeps the lock during a call of C
    with (
        EventWriter(tmp_path / "events") as events,
        PauseWatch(ONE_RANK, PhaseTimer(ONE_RANK.device), events, None),
    ):
        time.sleep(0.2)
        hold_interpreter_us(int((PAUSE_LEAST_S + 1.5) * 1e6))
        time.sleep(1.0)
    assert [one for one in read_events(events.path) if one.kind == "alert"] == []


@pytest.mark.system
@pytest.mark.timeout(120)
def test_slow_first_updates_are_no_pause(tmp_path: Path) -> None:
    assert run_ranks(slow_start, str(tmp_path), world_size=2) == [10, 10]
    assert [*_alerts(tmp_path, 0, ""), *_alerts(tmp_path, 1, "")] == []


def hanging(world: World, directory: str) -> Any:
    """Rank 0 lives, but hangs in the wait for data, once in a usual and once in a first update."""
    from dragoman.training.config import CheckpointConfig, TrainConfig
    from toy_fit import ToyRun

    def before_update(update_index: int, _model: object) -> None:
        if update_index in (0, 20) and world.is_main:
            time.sleep(2 * LATE_S)

    run = ToyRun(
        Path(directory),
        TrainConfig(
            max_steps=25, log_every_steps=5, validate_every_steps=1000, validate_at_start=False
        ),
        checkpoint=CheckpointConfig(every_steps=1000),
        before_update=before_update,
    )
    record_start(world, run.directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dragoman.training.pause_watch._MOST_LATE_S", 7.0)
        return run.fit(world).state.step


@pytest.mark.system
@pytest.mark.timeout(120)
def test_a_rank_that_lives_and_does_not_come_is_named(tmp_path: Path) -> None:
    assert run_ranks(hanging, str(tmp_path), world_size=2) == [25, 25]
    first, usual = (one.payload["cause"] for one in _alerts(tmp_path, 1, "it lives"))
    name = f"rank 0 on {os.uname().nodename}"
    for cause, step, late_s in ((first, 1, 7.0), (usual, 21, LATE_S)):
        waited = cause.removeprefix(f"{name} has not come to the all-reduce of step {step} for ")
        assert late_s <= float(waited.split(" s, ")[0]) < late_s + 2.5, cause
    assert first.endswith("and the others wait: it lives, in the wait for data")
    back = [one.payload["cause"] for one in _alerts(tmp_path, 1, "goes on")]
    assert [text.rsplit(" for ", 1)[0] for text in back] == [
        f"{name} goes on; the others waited"
    ] * 2
    facts = read_facts(tmp_path)
    assert facts.pauses == (), "it did not stand still: its step holds the time"
    starved = {one.key: one for one in examine(facts)}["starved"]
    assert starved.answer == "yes"
    assert "rank 0" in starved.says


def validating(world: World, directory: str) -> Any:
    """Its first validation is long on rank 0; in the second, rank 1 leaves its process id; the
    third gives rank 0 the time to see that rank 1 goes on."""
    from dragoman.training.config import CheckpointConfig, TrainConfig
    from toy_fit import ToyRun, ToyValidation

    def validate(step: int, _model: object) -> ToyValidation:
        if step == 20 and world.is_main:
            time.sleep(LATE_S + 4)
        if step == 40 and world.rank == 1:
            ask_to_stop(Path(directory))
        if step == 60:
            time.sleep(3)
        world.barrier()
        return ToyValidation(1.0)

    run = ToyRun(
        Path(directory),
        TrainConfig(
            max_steps=60, log_every_steps=10, validate_every_steps=20, validate_at_start=False
        ),
        checkpoint=CheckpointConfig(every_steps=1000),
        validate=validate,
    )
    return run.fit(world).state.step


@pytest.mark.system
@pytest.mark.timeout(120)
def test_a_rank_that_stands_still_in_a_validation_is_named(tmp_path: Path) -> None:
    pause_s = LATE_S + 6
    with pausing(tmp_path, pause_s) as stopped_at:
        assert run_ranks(validating, str(tmp_path), world_size=2, timeout_s=100) == [60, 60]
    host = os.uname().nodename
    warning = _warning_meanwhile(tmp_path, 0, stopped_at[0], pause_s)
    back = _alerts(tmp_path, 0, "goes on")[-1]
    assert f"rank 1 on {host} has given no sign of life" in warning.payload["cause"]
    assert "it was validating after step 40" in warning.payload["cause"]
    assert f"rank 1 on {host} goes on" in back.payload["cause"]
    events = read_events(tmp_path / "events" / "log.jsonl")
    seen = [one.payload for one in events if one.kind == "rank_paused" and not one.payload["own"]][
        -1
    ]
    assert seen["during"] == "validating"
    assert seen["seconds_s"] == pytest.approx(pause_s, abs=3)


@pytest.mark.system
def test_a_rank_that_has_ended_is_not_missed(tmp_path: Path) -> None:
    """Rank 0 may save for long after the others have left."""
    worlds = [replace(ONE_RANK, rank=rank, world_size=2) for rank in (0, 1)]
    heartbeats = FolderHeartbeats(tmp_path, "heartbeat-")
    with EventWriter(tmp_path / "events") as events:
        watches = [
            PauseWatch(world, PhaseTimer(ONE_RANK.device), events, heartbeats) for world in worlds
        ]
        with watches[0], watches[0].outside("saving"):
            with watches[1], watches[1].outside("saving"):
                time.sleep(2.5)
            time.sleep(LATE_S + 4)
    assert [one for one in read_events(events.path) if one.kind == "alert"] == []
