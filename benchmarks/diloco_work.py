"""The time of `diloco` itself for a weight, on parts of a fragment of several sizes, in turn.

    benchmarks/diloco_work.py [--ranks 2] [--rounds 5] [--parts 32768 131072 262144]

It starts this many ranks of one thread each, which work at the same time, and prints the
nanoseconds for a weight that `auto` and doctor would measure: the median of the rounds, and the
smallest and the largest. The first line has fragments in one part, so that every operation goes
through memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import torch.distributed as dist

from dragoman.base.memory import keep_freed_memory
from dragoman.distributed import diloco
from dragoman.distributed.diloco_work import measure_weight_s
from dragoman.distributed.launch import NO_GPUS
from dragoman.distributed.rendezvous import RENDEZVOUS_VARIABLE
from dragoman.distributed.world import join_world

WHOLE = sys.maxsize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", type=int, nargs="+", default=[2**15, 2**17, diloco.CPU_PART])
    options = parser.parse_args()
    if "RANK" in os.environ:
        measure([WHOLE, *options.parts], options.rounds)
        return
    with tempfile.TemporaryDirectory() as directory:
        shared = NO_GPUS | {
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(options.ranks),
            RENDEZVOUS_VARIABLE: str(Path(directory) / "meeting"),
        }
        ranks = [
            subprocess.Popen(
                [sys.executable, *sys.argv],
                env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(options.ranks)
        ]
        sys.exit(max(abs(rank.wait()) for rank in ranks))


def measure(sizes: list[int], rounds: int) -> None:
    """The work of a rank."""
    keep_freed_memory()  # as a training does
    taken_ns: dict[int, list[float]] = {size: [] for size in sizes}
    with join_world() as world:
        if world.world_size == 1:  # what is measured sends to a group, though that be its own
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        for _ in range(rounds):
            for size in sizes:
                with mock.patch.object(diloco, "CPU_PART", size):
                    taken_ns[size].append(1e9 * measure_weight_s(world))
        if world.is_main:
            whole = statistics.median(taken_ns[WHOLE])
            for size, ns in taken_ns.items():
                name = "whole fragments" if size == WHOLE else f"parts of {size:,}"
                median = statistics.median(ns)
                spread = f"{min(ns):.1f} to {max(ns):.1f}"
                print(f"{name:17} {median:5.1f} ns ({spread}), {median / whole:.2f} of the first")


if __name__ == "__main__":
    main()
