"""A port that becomes slow in the middle of a run is noticed while it trains, and named."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dragoman.distributed.world import World
from dragoman.reporting.checks import judge
from dragoman.reporting.reading import read_facts
from dragoman.telemetry.events import read_events
from example_events import changed
from lab.conftest import OpenLab
from lab.laboratory import INTERFACE
from lab.ranks_on_hosts import run_on_hosts
from processes import wait_until

SLOW_FROM = 30
SLOW, SLOW_BYTES_PER_S = "25mbit", 25e6 / 8
NOTICED_AFTER = 20
MAX_STEPS = SLOW_FROM + NOTICED_AFTER + 5


def training(world: World, directory: str) -> Any:
    """A run whose rank 0 leaves a note when the port is to become slow."""
    from dragoman.distributed.link_rate import measure_link
    from dragoman.distributed.topology import find_topology
    from dragoman.telemetry.events import LinkMeasured
    from dragoman.telemetry.sampler import host_sampler
    from dragoman.training.config import CheckpointConfig, TrainConfig
    from example_events import RUN_STARTED
    from toy_fit import ToyRun, recorder
    from toy_task import TOY_MODEL

    def before_update(update_index: int, _model: object) -> None:
        if update_index == SLOW_FROM and world.is_main:
            (Path(directory) / "slow-now").touch()
            time.sleep(1)

    # 1.8 million weights: 1.2 s a step behind 25 Mbit/s, where 100 tokens take a hundredth of that.
    model = TOY_MODEL.model_copy(update={"d_model": 256, "d_ffn": 1024})
    with recorder(Path(directory) / "events", rank=world.rank) as events:
        hosts = tuple(world.gather_json(events.host))
        started = changed(
            RUN_STARTED, world_size=world.world_size, hosts=hosts, max_steps=MAX_STEPS
        )
        if world.is_main:
            events.write(started, step=0)
        rate = measure_link(world, find_topology(world))
        link = LinkMeasured(
            interface=INTERFACE,
            peer="the other host",
            bytes_per_s=rate.bytes_per_s,
            latency_s=rate.latency_s,
            method="sums of zeros",
        )
        events.write(link, step=0)
        run = ToyRun(
            Path(directory),
            TrainConfig(
                max_steps=MAX_STEPS,
                log_every_steps=5,
                validate_every_steps=1000,
                validate_at_start=False,
            ),
            checkpoint=CheckpointConfig(every_steps=1000),
            model=model,
            before_update=before_update,
            link_bytes_per_s=rate.bytes_per_s,
        )
        with host_sampler(
            events, disk=run.directory, queued=lambda: 8, interface=INTERFACE, num_gpus=0
        ):
            return run.fit(world, events=events).state.step


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("slow", "where"),
    [("both", "alpha to beta, beta to alpha"), ("beta sends", "beta to alpha")],
)
def test_a_port_that_becomes_slow_is_noticed(
    make_lab: OpenLab, tmp_path: Path, slow: str, where: str
) -> None:
    lab = make_lab(["alpha", "beta"], rate="1gbit")

    turned_at: list[float] = []

    def slow_down() -> None:
        wait_until((tmp_path / "slow-now").exists)
        turned_at.append(time.time())
        if slow == "both":
            for host in lab.hosts:
                host.limit(SLOW)
        else:
            lab.host("beta").limit_sending(SLOW)

    turning = threading.Thread(target=slow_down)
    turning.start()
    assert run_on_hosts(training, str(tmp_path), hosts=lab.hosts, timeout_s=350) == [MAX_STEPS] * 2
    turning.join()
    events = list(read_events(tmp_path / "events" / "log.jsonl"))
    told = [one for one in events if one.kind == "alert" and "the link" in one.payload["cause"]]
    assert told, [event.payload for event in events if event.kind == "alert"]
    print(f"noticed {told[0].time - turned_at[0]:.0f} s after the port became slow", told[0])
    assert told[0].step is not None
    assert SLOW_FROM < told[0].step <= SLOW_FROM + NOTICED_AFTER
    cause = told[0].payload["cause"]
    assert f"the link {INTERFACE}, {where}, fell from" in cause
    assert re.search(r"at step (3\d), \d\d:\d\d:\d\d UTC", cause), cause
    assert "On every machine, the rest will take" in cause

    (changed,) = (event.payload for event in events if event.kind == "link_changed")
    assert changed["now_bytes_per_s"] == pytest.approx(SLOW_BYTES_PER_S, rel=0.2)
    assert changed["before_bytes_per_s"] > 5 * SLOW_BYTES_PER_S
    assert SLOW_FROM < changed["since_step"] <= SLOW_FROM + 5
    assert abs(changed["since"] - turned_at[0]) < 3

    verdicts = {one.key: one for one in judge(read_facts(tmp_path))}
    for key in ("network", "network_fit"):
        assert f"Since step {changed['since_step']}" in verdicts[key].says, verdicts[key]
        assert f"{INTERFACE}, {where} carried" in verdicts[key].says
    assert verdicts["network"].answer == "yes"
