"""The measured time of `diloco` for a weight, compared with its time in a run."""

from __future__ import annotations

import time

import torch

from dragoman.distributed.config import DistributedConfig
from dragoman.distributed.diloco_work import measure_weight_s
from dragoman.distributed.strategies import gradient_sync
from dragoman.distributed.world import World
from ranks import run_ranks


def _measured_beside_a_run(world: World, every: int) -> tuple[float, float]:
    """By the measurement, and by a run over this machine's loopback."""
    weight_s = measure_weight_s(world)
    model = torch.nn.Linear(2048, 1024, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    model(torch.randn(8, 2048)).sum().backward()
    optimizer.step()
    config = DistributedConfig.model_validate(
        {"strategy": "diloco", "diloco": {"every": every, "fragments": 1, "delay": 0}}
    )
    with gradient_sync(config, model, world) as sync:
        sync.attach(optimizer)
        started = time.perf_counter()
        for step in range(1, 3 * every + 1):
            sync.after_update(step, learning_rate=0.0)
    return weight_s, (time.perf_counter() - started) / 3 / model.weight.numel()


def test_every_rank_learns_the_time_of_the_slowest() -> None:
    (one, run_s), (other, _) = run_ranks(_measured_beside_a_run, 4, world_size=2)
    assert one == other
    # The same order: the run has the loopback in it, and a machine may be busy for a while.
    assert run_s / 20 < one < 20 * run_s
