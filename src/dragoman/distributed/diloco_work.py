"""Measures the time of `diloco`'s own work per weight that it sends, on a model made for this.

The time depends on the number of weights, not on the batch, and more on a processor's memory than
on its arithmetic: 13 ns on one core of an AMD EPYC (Zen 3), 18 and 26 if two or three ranks share
two cores. Work in parts of 2^18 weights is fastest: whole fragments at once take 1.4 times as long.
Packing is not included: it goes on during the transfer.
"""

from __future__ import annotations

import statistics
import time
from typing import Final

import torch
import torch.distributed as dist
from torch import nn

from dragoman.distributed.config import DilocoConfig
from dragoman.distributed.diloco import DilocoSync
from dragoman.distributed.gradient_sync import NoSync
from dragoman.distributed.host_sum import HostSum
from dragoman.distributed.packing import FP4
from dragoman.distributed.topology import Topology
from dragoman.distributed.world import World

_SHAPE: Final = (2048, 512)
_NUM_LAYERS: Final = 4
"""Four million weights with all their state: more than a cache holds."""
_PERIOD: Final = 4
"""Local steps between two sendings; each of them does little of this work."""
_TRIES: Final = 5


def measure_weight_s(world: World) -> float:
    """Seconds per weight between two sendings, without waiting, on the slowest rank.

    All ranks must call it. They work at the same time, as ranks that share a host will; it takes
    about a second.
    """
    # Every rank must take part in making every group; each then sends to itself alone.
    groups = [dist.new_group([rank]) for rank in range(world.world_size)]
    model = nn.Sequential(*(nn.Linear(*_SHAPE, bias=False) for _ in range(_NUM_LAYERS)))
    model.to(world.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    optimizer.step()  # creates the moments
    # This rank behaves as if there were another host, which never has to answer.
    topology = Topology(world.rank, ((world.rank,), (-1,)), 0, None, groups[world.rank])
    sync = DilocoSync(
        model,
        DilocoConfig(every=_PERIOD, fragments=1, delay=0),
        inner=NoSync(model),
        host_sum=HostSum(topology, FP4),
        ranks=[1, 1],
        own=0,
    )
    sync.attach(optimizer)
    taken_s = []
    for number in range(1 + _TRIES):
        world.barrier()
        taken_s.append(_period_s(sync, world, number * _PERIOD))
    sync.close()
    dist.destroy_process_group(groups[world.rank])
    num_weights = sum(weight.numel() for weight in model.parameters())
    # In each try all ranks wait for the slowest.
    slowest_s = [max(one) for one in zip(*world.gather_json(taken_s[1:]), strict=True)]
    return float(statistics.median(slowest_s)) / num_weights


def _period_s(sync: DilocoSync, world: World, first: int) -> float:
    started, waited_s = time.perf_counter(), sync.waits.total_s()
    for step in range(first + 1, first + 1 + _PERIOD):
        sync.after_update(step, learning_rate=0.0)
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
    return time.perf_counter() - started - (sync.waits.total_s() - waited_s)
