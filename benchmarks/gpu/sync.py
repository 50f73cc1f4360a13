"""The cost of gradient synchronisation on one GPU that has no peer.

    benchmarks/gpu/sync.py [--size base] [--cells 65536] [--rounds 3]

Two processes on one GPU are not a cluster: what links cost is not measured here. With a world of
one rank over NCCL this asks what the buckets, hooks and casts of synchronisation add to a compiled
step, ours and those of PyTorch's DistributedDataParallel (with its bf16_compress_hook, too). Prints
milliseconds an update of each side, and the median over the rounds of its ratio to no
synchronisation at all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from train import SIZES, Side, our_step, training_updates

from dragoman.distributed.all_reduce import AllReduceSync
from dragoman.distributed.gradient_sync import GradientSync, NoSync
from dragoman.distributed.host_sum import HostSum
from dragoman.distributed.topology import find_topology
from dragoman.distributed.world import World

SIDES = ["none", "ours, fp32", "ours, bf16", "DDP, fp32", "DDP, bf16_compress_hook"]


class DdpSync(NoSync):
    """PyTorch's own, behind our interface; it averages over ranks, of which there is one."""

    def __init__(self, model: nn.Module, *, hook: bool) -> None:
        super().__init__(model)
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
        if hook:
            wrapped.register_comm_hook(dist.group.WORLD, bf16_compress_hook)
        self.module = wrapped


def main() -> None:
    options = _options()
    device = torch.device("cuda", 0)
    world = World(0, 1, 0, device)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "nccl", init_method=f"file://{Path(folder) / 'meeting'}", rank=0, world_size=1,
            timeout=timedelta(minutes=5), device_id=device,
        )  # fmt: skip
        makers: dict[str, Callable[[nn.Module], GradientSync]] = {
            "none": NoSync,
            "ours, fp32": partial(_ours, world, torch.float32),
            "ours, bf16": partial(_ours, world, torch.bfloat16),
            "DDP, fp32": partial(DdpSync, hook=False),
            "DDP, bf16_compress_hook": partial(DdpSync, hook=True),
        }
        updates = training_updates(options, world, groups=1)
        sides = {
            name: Side.warmed(our_step(SIZES[options.size], world, make_sync=make), updates)
            for name, make in makers.items()
            if name in options.sides
        }
        for _ in range(options.rounds):
            for side in sides.values():
                side.take_turn(updates)
        for name, side in sides.items():
            ratios = [a / b for a, b in zip(side.seconds, sides["none"].seconds, strict=True)]
            result = {
                "synchronisation": name,
                "ms_per_update": round(1000 * statistics.median(side.seconds) / len(updates), 2),
                "times_none": round(statistics.median(ratios), 3),
                "range": [round(min(ratios), 3), round(max(ratios), 3)],
            }
            print(json.dumps(result), flush=True)
        dist.destroy_process_group()


def _ours(world: World, wire: torch.dtype, model: nn.Module) -> GradientSync:
    host_sum = HostSum(find_topology(world), wire)
    host_sum.dtype = wire  # as between hosts: with one host nothing is rounded
    return AllReduceSync(model, host_sum)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--cells", type=int, default=65_536, help="of a batch's longer side")
    parser.add_argument("--length-multiple", type=int, default=8)
    parser.add_argument("--updates", type=int, default=50, help="in a turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    return parser.parse_args()


if __name__ == "__main__":
    main()
