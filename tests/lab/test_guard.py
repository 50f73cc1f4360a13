"""A port that becomes slow in the middle of a run is noticed while it trains."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dragoman.distributed.world import World
from dragoman.telemetry.events import read_events
from lab.conftest import OpenLab
from lab.ranks_on_hosts import run_on_hosts
from processes import wait_until

SLOW_FROM = 60


def training(world: World, directory: str) -> Any:
    """A run whose rank 0 leaves a note when the port is to become slow."""
    from dragoman.train.config import CheckpointConfig, TrainConfig
    from toy_fit import ToyRun
    from toy_task import TOY_MODEL

    def before_update(update_index: int, _model: object) -> None:
        if update_index == SLOW_FROM and world.is_main:
            (Path(directory) / "slow-now").touch()

    # 1.8 million weights: 0.3 s a step behind 100 Mbit/s, where 100 tokens take a tenth of that.
    model = TOY_MODEL.model_copy(update={"d_model": 256, "d_ffn": 1024})
    run = ToyRun(
        Path(directory),
        TrainConfig(max_steps=165, validate_every_steps=1000),
        checkpoint=CheckpointConfig(every_steps=1000),
        model=model,
        before_update=before_update,
    )
    return run.fit(world).state.step


@pytest.mark.slow
def test_a_port_that_becomes_slow_is_noticed(make_lab: OpenLab, tmp_path: Path) -> None:
    lab = make_lab(["alpha", "beta"], rate="1gbit")

    turned_at: list[float] = []

    def slow_down() -> None:
        wait_until((tmp_path / "slow-now").exists)
        turned_at.append(time.time())
        for host in lab.hosts:
            host.limit("100mbit")

    turning = threading.Thread(target=slow_down)
    turning.start()
    assert run_on_hosts(training, str(tmp_path), hosts=lab.hosts, timeout_s=250) == [165, 165]
    turning.join()
    events = read_events(tmp_path / "events" / "rank-0000.jsonl")
    alerts = [event for event in events if event.kind == "alert"]
    assert alerts
    print(f"noticed {alerts[0].time - turned_at[0]:.0f} s after the port became slow")
    assert SLOW_FROM < alerts[0].step <= SLOW_FROM + 60  # type: ignore[operator]
    assert "waits for other ranks and the network" in alerts[0].payload["cause"]
    assert "The rest will take" in alerts[0].payload["cause"]
