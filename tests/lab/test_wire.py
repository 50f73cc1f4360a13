"""What the planner says of the wire, against the counters of real interfaces."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dragoman.cluster import step_time, strategies
from dragoman.cluster.links import Layout, Link
from dragoman.cluster.strategies import Cluster
from dragoman.cluster.workload import Workload
from dragoman.distributed.world import World
from lab.conftest import OpenLab
from lab.laboratory import INTERFACE
from lab.ranks_on_hosts import run_on_hosts

NAMES = ["alpha", "beta", "gamma"]


def all_reduce(world: World, num_floats: int, repeats: int) -> dict[str, Any]:
    """Bytes that this host's interface sent, and seconds, of one all-reduce."""
    from dragoman.distributed.traffic import interface_bytes

    gradients = torch.ones(num_floats)
    dist.all_reduce(gradients)
    world.barrier()
    before, started = interface_bytes(INTERFACE), time.monotonic()
    for _ in range(repeats):
        dist.all_reduce(gradients)
    taken_s = time.monotonic() - started
    sent = interface_bytes(INTERFACE).sent - before.sent
    return {"sent_bytes": sent / repeats, "taken_s": taken_s / repeats}


@pytest.mark.parametrize("num_hosts", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_bytes_on_the_wire_are_those_of_the_formula(make_lab: OpenLab, num_hosts: int) -> None:
    lab = make_lab(NAMES[:num_hosts])
    size = 4 * 2_000_000
    measured = run_on_hosts(all_reduce, size // 4, 3, hosts=lab.hosts)
    expected = step_time.ring_bytes(size, num_ranks=num_hosts)
    for one in measured:
        assert one["sent_bytes"] == pytest.approx(expected, rel=0.05)


def steps(world: World, width: int, num_layers: int) -> dict[str, float]:
    """Seconds of a step without and with synchronisation, and the bytes this host sent in it."""
    from dragoman.distributed.config import DistributedConfig
    from dragoman.distributed.gradient_sync import gradient_sync
    from dragoman.distributed.traffic import interface_bytes

    layers = [torch.nn.Linear(width, width, bias=False) for _ in range(num_layers)]
    model = torch.nn.Sequential(*layers)
    batch = torch.randn(64, width)

    def step_s(*, last: bool, repeats: int) -> float:
        world.barrier()
        started = time.monotonic()
        for _ in range(repeats):
            with sync.micro_step(last=last):
                sync.module(batch).sum().backward()
        world.barrier()
        return (time.monotonic() - started) / repeats

    with gradient_sync(DistributedConfig(wire="fp32"), model, world) as sync:
        step_s(last=True, repeats=1)
        compute_s = step_s(last=False, repeats=4)
        before = interface_bytes(INTERFACE).sent
        measured_s = step_s(last=True, repeats=3)
    sent = (interface_bytes(INTERFACE).sent - before) / 3
    return {"compute_s": compute_s, "step_s": measured_s, "sent_bytes": sent}


@pytest.mark.slow
@pytest.mark.parametrize("num_hosts", [2, 3])
@pytest.mark.parametrize("megabits", [10, 30, 100])
def test_a_synchronised_step_takes_what_was_planned(
    make_lab: OpenLab, num_hosts: int, megabits: int
) -> None:
    lab = make_lab(NAMES[:num_hosts], rate=f"{megabits}mbit")
    width, num_layers = 512, 2 * megabits // 10
    workload = Workload(
        name="lab",
        shapes=((width, width),) * num_layers,
        flop_per_step=0.0,
        target_tokens_per_step=1.0,
        max_steps=1,
    )
    cluster = Cluster(Layout((1,) * num_hosts), Link.nominal(megabits * 1e6))
    measured = run_on_hosts(steps, width, num_layers, hosts=lab.hosts)
    compute_s = max(one["compute_s"] for one in measured)
    planned = strategies.plain(cluster, workload, compute_s)
    for one in measured:
        assert one["step_s"] == pytest.approx(planned.step_s, rel=0.15)
        assert one["sent_bytes"] == pytest.approx(planned.wire_bytes, rel=0.05)
