"""The planner's bytes on the wire, against the counters of real interfaces."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import count, islice
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dragoman.cluster.rates import Link
from dragoman.distributed import wire
from dragoman.distributed.step_time import Exchange, HostRanks, Step
from dragoman.distributed.world import World
from lab.conftest import OpenLab
from lab.counters import payload_sent
from lab.laboratory import INTERFACE
from lab.ranks_on_hosts import run_on_hosts

NAMES = ["alpha", "beta", "gamma"]


def all_reduce(world: World, num_floats: int, repeats: int) -> float:
    """Bytes that this host sent, without headers, of one all-reduce."""
    gradients = torch.ones(num_floats)
    dist.all_reduce(gradients)
    world.barrier()
    before = payload_sent()
    for _ in range(repeats):
        dist.all_reduce(gradients)
    world.barrier()  # the last part may be in a buffer
    return (payload_sent() - before) / repeats


@pytest.mark.parametrize("num_hosts", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_bytes_on_the_wire_equal_the_formula(make_lab: OpenLab, num_hosts: int) -> None:
    lab = make_lab(NAMES[:num_hosts])
    size = 4 * 2_000_000
    expected = wire.ring_bytes(size, num_ranks=num_hosts)
    for sent_bytes in run_on_hosts(all_reduce, size // 4, 3, hosts=lab.hosts):
        assert sent_bytes == pytest.approx(expected, rel=0.02)


PERIOD = 12
"""Steps after which every strategy below has sent all that it sends."""
TRIES = 3
"""The median of so many periods counts. A period has one sum or none, and the work of the processor
in that time varies."""
Predict = Callable[[Exchange], Step]
PLANNED: dict[str, tuple[dict[str, Any], Predict]] = {
    "plain": ({"wire": "fp32"}, Exchange.plain),
    "sync": ({}, Exchange.sync),
    "diloco": (
        {"strategy": "diloco", "diloco": {"every": PERIOD, "fragments": 1, "delay": 0}},
        partial(Exchange.diloco, every=PERIOD, fragments=1, delay=0),
    ),
}


def steps(world: World, width: int, num_layers: int, settings: dict[str, Any]) -> dict[str, float]:
    """Seconds of a step without and with synchronisation, and the bytes this host sent in it."""
    from dragoman.base.memory import keep_freed_memory
    from dragoman.distributed.config import DistributedConfig
    from dragoman.distributed.diloco_work import measure_weight_s
    from dragoman.distributed.gradient_sync import GradientSync, NoSync
    from dragoman.distributed.strategies import gradient_sync
    from dragoman.telemetry.host import interface_number

    keep_freed_memory()  # as a training does
    layers = [torch.nn.Linear(width, width, bias=False) for _ in range(num_layers)]
    model = torch.nn.Sequential(*layers)
    config = DistributedConfig.model_validate(settings)
    batch = torch.randn(64, width)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0, fused=True)
    steps = count(1)

    def step_s(sync: GradientSync) -> float:
        sync.attach(optimizer)
        world.barrier()
        started = time.monotonic()
        for step in islice(steps, PERIOD):
            with sync.micro_step(last=True):
                sync.module(batch).sum().backward()
            optimizer.step()
            sync.after_update(step, learning_rate=0.0)
        world.barrier()
        return (time.monotonic() - started) / PERIOD

    def median_s(sync: GradientSync, tries: int) -> float:
        return statistics.median(step_s(sync) for _ in range(tries))

    weight_s = measure_weight_s(world)  # as `auto` and doctor do
    step_s(NoSync(model))  # memory and threads are new
    compute_s = median_s(NoSync(model), TRIES)
    tries = TRIES if config.strategy == "diloco" else 1
    with gradient_sync(config, model, world) as sync:
        step_s(sync)
        before = interface_number(INTERFACE, "statistics/tx_bytes")
        measured_s = median_s(sync, tries)
    sent = (interface_number(INTERFACE, "statistics/tx_bytes") - before) / (tries * PERIOD)
    return {
        "compute_s": compute_s,
        "step_s": measured_s,
        "sent_bytes": sent,
        "weight_s": weight_s,
    }


@pytest.mark.slow
@pytest.mark.parametrize("num_hosts", [2, 3])
@pytest.mark.parametrize("megabits", [10, 30, 100])
@pytest.mark.parametrize("strategy", PLANNED)
def test_a_step_takes_the_planned_time(
    make_lab: OpenLab, num_hosts: int, megabits: int, strategy: str
) -> None:
    lab = make_lab(NAMES[:num_hosts], rate=f"{megabits}mbit")
    settings, predict = PLANNED[strategy]
    # After a pause a port sends its burst (256 kB) at once: it must be little of what travels.
    # `diloco` sends an eighth of it, once in a period.
    num_layers = 30 if strategy == "diloco" else 2 * megabits // 10
    width = 512
    measured = run_on_hosts(steps, width, num_layers, settings, hosts=lab.hosts)
    compute_s = max(one["compute_s"] for one in measured)
    link = Link.nominal(megabits * 1e6)
    exchange = Exchange(
        hosts=(HostRanks(1),) * num_hosts,
        compute_s=compute_s,
        shapes=((width, width),) * num_layers,
        bytes_per_s=link.bytes_per_s,
        latency_s=link.latency_s,
        weight_s=measured[0]["weight_s"],
    )
    planned = predict(exchange)
    for one in measured:
        assert one["step_s"] == pytest.approx(planned.step_s, rel=0.15)
        assert one["sent_bytes"] == pytest.approx(planned.wire_bytes, rel=0.05)
