"""From the distributed section of a recipe to its strategy.

A strategy is one class beside this file, its entry in STRATEGIES and its name in config.py;
tests/distributed runs one suite over all of them. Another package adds one as an entry point of the
group `dragoman.strategies` (base/extensions.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch
import torch.distributed as dist
from torch import nn

from dragoman.base.extensions import Parts
from dragoman.distributed.all_reduce import AllReduceSync
from dragoman.distributed.config import DistributedConfig
from dragoman.distributed.diloco import DilocoSync
from dragoman.distributed.gradient_sync import GradientSync, NoSync
from dragoman.distributed.host_sum import HostSum
from dragoman.distributed.packing import FP4, Fp4
from dragoman.distributed.topology import find_topology
from dragoman.distributed.world import World

_WIRES: Final[dict[str, torch.dtype | Fp4]] = {
    "fp4": FP4,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
}
_PIECE: Final = 1 << 20
"""Elements of one broadcast. The timeout of a collective counts for each piece alone, so no matrix
is too large for a slow link."""


@contextmanager
def gradient_sync(
    config: DistributedConfig, model: nn.Module, world: World
) -> Iterator[GradientSync]:
    """The strategy for a model. On entry, every rank gets the weights of rank 0.

    config: its strategy must not be "auto"; measurements must have resolved that before.
    """
    if world.world_size > 1:
        for tensor in (*model.parameters(), *model.buffers()):
            for piece in torch.split(tensor.detach().view(-1), _PIECE):
                dist.broadcast(piece, 0)
                if world.device.type == "cuda":  # NCCL counts from the call, also while it queues
                    torch.cuda.synchronize(world.device)
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
    hosts = find_topology(world)
    # Groups of their own: sums between hosts must not mix with those inside.
    topology = find_topology(world, every_rank_apart=hosts.num_hosts == 1)
    inner: GradientSync
    if len(topology.neighbours) == 1:
        hosts.close()
        inner = NoSync(model)
    else:
        inner = AllReduceSync(model, HostSum(hosts.this_host(), torch.float32))
    return DilocoSync(
        model,
        config.diloco,
        inner=inner,
        host_sum=HostSum(topology, _WIRES[config.diloco.wire]),
        ranks=[len(ranks) for ranks in topology.hosts],
        own=topology.own,
    )


_OURS: Final[dict[str, Callable[[DistributedConfig, nn.Module, World], GradientSync]]] = {
    "sync": _all_reduce,
    "diloco": _diloco,
}
STRATEGIES: Final = Parts("strategies", _OURS)
