"""Bytes by the strategy and by the planner, against the counters of real interfaces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dragoman.distributed import wire
from dragoman.distributed.config import DistributedConfig
from dragoman.distributed.strategies import gradient_sync
from dragoman.distributed.world import World
from lab.conftest import OpenLab
from lab.counters import payload_sent
from lab.ranks_on_hosts import run_on_hosts

WIDTH = 1000
NUM_WEIGHTS = WIDTH * WIDTH + WIDTH
STEPS = 8
SIZES = (wire.FP4_BYTES, wire.BF16_BYTES, wire.FP32_BYTES)
FP4, BF16, FP32 = (NUM_WEIGHTS * size for size in SIZES)
# The bytes that are reduced in STEPS steps, from the beginning of a period to its end.
REDUCED: dict[str, tuple[dict[str, Any], float]] = {
    "sync": ({}, STEPS * BF16),
    "sync fp32": ({"wire": "fp32"}, STEPS * FP32),
    "diloco": ({"diloco": {"every": 4, "fragments": 2, "delay": 1}}, STEPS / 4 * FP4),
}


def sent(world: World, settings: dict[str, Any]) -> Any:
    """Bytes that this host's interface sent in STEPS steps, and bytes that the strategy counted."""
    torch.manual_seed(1)
    model = nn.Linear(WIDTH, WIDTH)
    config = DistributedConfig.model_validate(settings)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    with gradient_sync(config, model, world) as sync:
        sync.attach(optimizer)
        world.barrier()
        before = payload_sent()
        # One step more than a period lets what was sent last arrive.
        for step in range(1, STEPS + config.diloco.delay * (config.strategy == "diloco") + 1):
            with sync.micro_step(last=True):
                sync.module(torch.ones(2, WIDTH)).sum().backward()
            optimizer.step()
            sync.after_update(step, learning_rate=0.0)
        world.barrier()
        return [payload_sent() - before, sync.bytes_sent]


@pytest.mark.parametrize(
    "name",
    [name if name == "diloco" else pytest.param(name, marks=pytest.mark.slow) for name in REDUCED],
)
@pytest.mark.parametrize("num_hosts", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_recorded_bytes_equal_the_counters_and_the_plan(
    make_lab: OpenLab, name: str, num_hosts: int
) -> None:
    lab = make_lab(["alpha", "beta", "gamma"][:num_hosts])
    settings, reduced = REDUCED[name]
    strategy = {"strategy": name.split()[0]}
    expected = wire.ring_bytes(reduced, num_ranks=num_hosts)
    for on_the_wire, counted in run_on_hosts(sent, strategy | settings, hosts=lab.hosts):
        assert counted == pytest.approx(expected, rel=1e-3)
        assert on_the_wire == pytest.approx(expected, rel=0.02)
