"""From the distributed section of a recipe to its strategy.

A new strategy is one class beside this file, its entry in STRATEGIES and its name in config.py;
tests/distributed runs one suite over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch
import torch.distributed as dist
from torch import nn

from dragoman.distributed.all_reduce import AllReduceSync
from dragoman.distributed.config import DistributedConfig
from dragoman.distributed.diloco import DilocoSync
from dragoman.distributed.gradient_sync import GradientSync, NoSync
from dragoman.distributed.host_sum import HostSum
from dragoman.distributed.packing import FP4, INT8, Packing
from dragoman.distributed.powersgd import PowersgdSync
from dragoman.distributed.topology import find_topology
from dragoman.distributed.world import World

_WIRES: Final[dict[str, torch.dtype | Packing]] = {
    "fp4": FP4,
    "int8": INT8,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
}


@contextmanager
def gradient_sync(
    config: DistributedConfig, model: nn.Module, world: World
) -> Iterator[GradientSync]:
    """The strategy for a model. On entry, every rank gets the weights of rank 0.

    config: its strategy must not be "auto"; measurements must have resolved that before.
    """
    if world.world_size > 1:
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), 0)
        sync = STRATEGIES[config.strategy](config, model, world)
    else:
        sync = NoSync(model)
    try:
        yield sync
    finally:
        sync.close()


def _all_reduce(config: DistributedConfig, model: nn.Module, world: World) -> GradientSync:
    return AllReduceSync(model, HostSum(find_topology(world), _WIRES[config.wire]))


def _diloco(config: DistributedConfig, model: nn.Module, world: World) -> GradientSync:
    """Each host is a replica; with one host, each rank is one."""
    topology = find_topology(world)
    if topology.num_hosts == 1:
        topology = find_topology(world, every_rank_apart=True)
    # Groups of their own: sums between hosts must not mix with those inside.
    inside = HostSum(find_topology(world).this_host(), torch.float32)
    alone = len(topology.neighbours) == 1
    return DilocoSync(
        model,
        config.diloco,
        inner=NoSync(model) if alone else AllReduceSync(model, inside),
        host_sum=HostSum(topology, _WIRES[config.diloco.wire]),
        ranks=[len(ranks) for ranks in topology.hosts],
        own=topology.own,
    )


def _powersgd(config: DistributedConfig, model: nn.Module, world: World) -> GradientSync:
    return PowersgdSync(model, world, rank=config.powersgd.rank)


STRATEGIES: Final[dict[str, Callable[[DistributedConfig, nn.Module, World], GradientSync]]] = {
    "sync": _all_reduce,
    "accum": _all_reduce,
    "diloco": _diloco,
    "powersgd": _powersgd,
}
