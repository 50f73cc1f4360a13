"""Real trainings over two hosts, judged: a starved link is the bottleneck, a free one is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.data.config import DataConfig
from dragoman.distributed.link_rate import measure_link
from dragoman.distributed.topology import find_topology
from dragoman.distributed.world import World
from dragoman.model.config import ModelConfig
from dragoman.reporting import measures
from dragoman.reporting.checks import judge
from dragoman.reporting.facts import Facts
from dragoman.reporting.reading import read_facts
from dragoman.reporting.verdict import Verdict
from dragoman.telemetry.events import LinkMeasured
from dragoman.telemetry.host import collective_interface
from dragoman.telemetry.sampler import host_sampler
from dragoman.training.config import CheckpointConfig, TrainConfig
from dragoman.watch.live import open_run
from dragoman.watch.screen import screen
from example_events import RUN_STARTED, changed
from lab.conftest import OpenLab
from lab.laboratory import INTERFACE, Lab
from lab.ranks_on_hosts import run_on_hosts
from toy_fit import ToyRun, recorder
from toy_task import ToyPairs

STARVED, STARVED_BYTES_PER_S = "2mbit", 250e3
SMALL_BUCKET_BYTES = 64 * 1024
"""A port's usual one is filled again in a second of compute, and would take half of a step's sums
for nothing: more the slower the processor is."""
MODEL = ModelConfig(
    d_model=64, num_heads=2, d_ffn=256, encoder_layers=1, decoder_layers=1, dropout=0.0
)
STEPS = 14
PAIRS = ToyPairs(2000)
EPOCH = DataConfig(batch_tokens=1000, accumulate=100)
"""All pairs in a step: sending its gradients over a free wire is little beside its compute."""


def train(world: World, directory: str) -> Any:
    """A short training as a worker would do it; returns nothing that matters."""
    run = ToyRun(
        Path(directory),
        TrainConfig(
            max_steps=STEPS,
            log_every_steps=1,
            validate_every_steps=10 * STEPS,
            validate_at_start=False,
        ),
        checkpoint=CheckpointConfig(every_steps=10 * STEPS),
        data=EPOCH,
        model=MODEL,
        pairs=PAIRS,
    )
    with recorder(run.directory / "events", rank=world.rank) as events:
        hosts = tuple(world.gather_json(events.host))
        started = changed(RUN_STARTED, world_size=world.world_size, hosts=hosts, max_steps=STEPS)
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
        sampling = host_sampler(
            events,
            disk=run.directory,
            queued=lambda: 8,
            interface=collective_interface(),
            num_gpus=0,
        )
        with sampling:
            run.fit(world, events=events)
    return []


def _trained(lab: Lab, directory: Path) -> Facts:
    directory.mkdir()
    run_on_hosts(train, str(directory), hosts=lab.hosts, timeout_s=250)
    return read_facts(directory)


def _starved_lab(make_lab: OpenLab) -> Lab:
    lab = make_lab(["alpha", "beta"], rate=STARVED)
    for host in lab.hosts:
        host.limit(STARVED, bucket_bytes=SMALL_BUCKET_BYTES)
    return lab


def _verdict(facts: Facts, key: str) -> Verdict:
    return next(one for one in judge(facts) if one.key == key)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_starved_link_is_the_bottleneck_and_a_free_one_is_not(
    make_lab: OpenLab, tmp_path: Path
) -> None:
    lab = _starved_lab(make_lab)
    starved = _trained(lab, tmp_path / "starved")
    for host in lab.hosts:
        host.limit(None)
    free = _trained(lab, tmp_path / "free")
    assert starved.hosts == free.hosts == ("alpha", "beta")
    assert _verdict(starved, "network").answer == "yes", _verdict(starved, "network")
    assert _verdict(starved, "processors").answer == "no"
    assert _verdict(free, "network").answer == "no", _verdict(free, "network")

    # The kernel's counters of the interface and the link's measurement agree with its limit.
    assert measures.capacity_bytes_per_s(starved) == pytest.approx(STARVED_BYTES_PER_S, rel=0.15)
    assert [one.interface for one in starved.traffic] == [INTERFACE, INTERFACE]
    for traffic in starved.traffic:
        assert traffic.sent_bytes_per_s is not None
        assert 0.4 < traffic.sent_bytes_per_s / STARVED_BYTES_PER_S < 1.1

    # The rest of a step is a rank's own work, as on a free wire; that of two runs differs
    # on a machine that is not ours alone.
    slow_s, free_s = measures.step_s(starved), measures.step_s(free)
    share, free_share = (measures.share(one.intervals, "wire_s") for one in (starved, free))
    assert slow_s is not None
    assert free_s is not None
    assert share is not None
    assert free_share is not None
    assert slow_s * (1 - share) == pytest.approx(free_s * (1 - free_share), rel=0.15)

    fit = _verdict(starved, "network_fit")
    rows = {row.name: row.value for row in fit.evidence}
    exposed_s, transfers_s = rows["exposed communication"], rows["transfers at that capacity"]
    backward_s = measures.per_step(starved.intervals, "backward_s")
    assert isinstance(exposed_s, float)
    assert isinstance(transfers_s, float)
    assert backward_s is not None
    # Nobody waits for what is sent during the backward pass, and that is longer on a slow core.
    assert 0.75 * transfers_s - backward_s < exposed_s < 1.25 * transfers_s


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_watch_shows_both_hosts_and_their_network(make_lab: OpenLab, tmp_path: Path) -> None:
    _trained(_starved_lab(make_lab), tmp_path / "run")
    run = open_run(tmp_path / "run")
    run.look()
    text = "\n".join(line.plain for line in screen(run.now(), width=100, height=30))
    run.close()
    assert "alpha" in text
    assert "beta" in text
    assert "of link" in text
    assert "! Was the network the bottleneck?" in text
