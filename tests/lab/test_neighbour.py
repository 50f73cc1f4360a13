"""A rank that becomes slow is named, with the moment: because a program shares its core, or because
its machine is as slow."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dragoman.distributed.world import World
from dragoman.reporting.checks import examine, judge
from dragoman.reporting.reading import read_facts
from dragoman.telemetry.events import read_events
from example_events import changed
from lab.conftest import OpenLab
from lab.laboratory import INTERFACE
from lab.ranks_on_hosts import run_on_hosts
from processes import wait_until

SLOW_FROM = 150
MAX_STEPS = 400
LOOP = """
import os, pathlib, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
pathlib.Path(sys.argv[2]).touch()
while True:
    pass
"""


def training(world: World, directory: str, half_speed: int | None) -> Any:
    """A run with a core for each rank, of which one becomes slow after `SLOW_FROM` updates.

    half_speed: the rank whose work then takes twice as long; None: rank 0 waits for the loop.
    """
    from dragoman.telemetry.sampler import host_sampler
    from dragoman.training.config import CheckpointConfig, TrainConfig
    from example_events import RUN_STARTED
    from toy_fit import ToyRun, recorder
    from toy_task import TOY_MODEL

    began: list[float] = []

    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), {world.rank})

    def before_update(update_index: int, model: Any) -> None:
        began.append(time.monotonic())
        if update_index != SLOW_FROM:
            return
        if half_speed is None and world.is_main:
            (Path(directory) / "slow-now").touch()
            wait_until((Path(directory) / "loops").exists)
        if world.rank == half_speed:
            usual_s = statistics.median(later - earlier for earlier, later in pairwise(began))
            model.register_forward_pre_hook(lambda *_: time.sleep(usual_s))

    model = TOY_MODEL.model_copy(update={"d_model": 256, "d_ffn": 1024})
    with recorder(Path(directory) / "events", rank=world.rank) as events:
        hosts = tuple(world.gather_json(events.host))
        if world.is_main:
            events.write(
                changed(RUN_STARTED, world_size=world.world_size, hosts=hosts, max_steps=MAX_STEPS),
                step=0,
            )
        run = ToyRun(
            Path(directory),
            TrainConfig(
                max_steps=MAX_STEPS,
                log_every_steps=10,
                validate_every_steps=1000,
                validate_at_start=False,
            ),
            checkpoint=CheckpointConfig(every_steps=1000),
            model=model,
            before_update=before_update,
        )
        with host_sampler(
            events, disk=run.directory, queued=lambda: 8, interface=INTERFACE, num_gpus=0
        ):
            return run.fit(world, events=events).state.step


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="each host needs a core of its own")
@pytest.mark.parametrize(
    ("culprit", "fault"), [(0, "a loop"), (1, "a loop"), (1, "half speed")], ids=str
)
def test_a_rank_that_becomes_slow_is_named(
    make_lab: OpenLab, tmp_path: Path, culprit: int, fault: str
) -> None:
    lab = make_lab(["alpha", "beta"])
    loops: list[subprocess.Popen[str]] = []

    def begin() -> None:
        wait_until((tmp_path / "slow-now").exists, limit_s=300)
        loop = [sys.executable, "-c", LOOP, str(culprit), str(tmp_path / "loops")]
        loops.append(lab.hosts[culprit].start(loop))

    beginning = threading.Thread(target=begin)
    if fault == "a loop":
        beginning.start()
    try:
        half_speed = culprit if fault == "half speed" else None
        steps = run_on_hosts(training, str(tmp_path), half_speed, hosts=lab.hosts, timeout_s=500)
        assert steps == [MAX_STEPS] * 2
    finally:
        if fault == "a loop":
            beginning.join()
        for loop in loops:
            loop.kill()
            loop.wait()
    name, other = (host.name for host in (lab.hosts[culprit], lab.hosts[1 - culprit]))
    facts = read_facts(tmp_path)
    straggler = next(finding for finding in examine(facts) if finding.key == "straggler")
    assert straggler.answer == "yes", straggler
    assert f"rank {culprit} on {name}" in straggler.says
    assert f"rank {1 - culprit} on {other}" not in straggler.says
    (since,) = re.findall(r"since step (\d+)", straggler.says)
    assert SLOW_FROM - 10 <= int(since) <= SLOW_FROM + 30
    if fault == "a loop":
        assert f"of the processors of {name}" in straggler.says
    processors = next(verdict for verdict in judge(facts) if verdict.key == "processors")
    assert f"rank {culprit} on {name}" in processors.remedy, processors
    alerts = [
        event.payload
        for event in read_events(tmp_path / "events" / "log.jsonl")
        if event.kind == "alert"
    ]
    assert any(name in alert["cause"] for alert in alerts), alerts
