"""The rate of training's sums over the network, measured with such sums.

The program `python -m dragoman.distributed.link_rate` measures between the ranks of one host, each
a process that torchrun has started. Rank 0 prints {"inside_bytes_per_s"}: bytes that a rank sends,
and receives, per second of an all-reduce. GPUs use NCCL over the link between them, processors use
Gloo.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Final, NamedTuple

import torch
import torch.distributed as dist

from dragoman.base.memory import keep_freed_memory
from dragoman.distributed.host_sum import HostSum
from dragoman.distributed.launch import end_with_parent
from dragoman.distributed.topology import Topology, find_topology
from dragoman.distributed.world import World, join_world

LEAST_BYTES: Final = 1 << 14
MOST_BYTES: Final = 1 << 28
_LONG_ENOUGH_S: Final = 0.5
"""A transfer that takes this long is not an effect of buffers."""
_WANTED: Final = 1.5
"""A transfer is made for this many times `_LONG_ENOUGH_S`: it may be faster than the one before."""
_TRIES: Final = 5
"""A busy moment slows one transfer; a full token bucket on the way speeds one up, and TCP, which
has filled the queue behind it, then loses packets and slows some."""
_ALIKE: Final = 1.05
_LATENCY_ROUNDS: Final = 10


class LinkRate(NamedTuple):
    """bytes_per_s: through the interface of each host, each way, both at once; with one host,
    between its ranks. latency_s: the time that one message of a ring takes."""

    bytes_per_s: float
    latency_s: float


def sustained_rate(
    seconds: Callable[[int], float], num_bytes: int = LEAST_BYTES
) -> tuple[float, int]:
    """Bytes per second of transfers that take long enough, and the size of the last one.

    Two in a row that agree are enough; of five that do not, it is the second fastest: a full bucket
    speeds up one of them, and all else slows them.

    Time bounds a transfer, not size: each has the size that takes 0.75 s at the rate of the one
    before. None is more than twice as large as that one, which may have passed through a full token
    bucket: then the next takes as long as the link needs for the bucket, and those after it are
    short again.

    seconds: times a transfer of the given number of bytes; all ranks that take part must get the
        same answer.
    num_bytes: the size of the first transfer, which a slow link must carry in a moment.
    """
    rates: list[float] = []
    while True:
        taken_s = seconds(num_bytes)
        if taken_s >= _LONG_ENOUGH_S or num_bytes >= MOST_BYTES:
            rates.append(num_bytes / taken_s)
            if agree(rates[-2:]):
                return statistics.mean(rates[-2:]), num_bytes
            if len(rates) == _TRIES:
                return sorted(rates)[-2], num_bytes
        wanted = max(int(num_bytes * _WANTED * _LONG_ENOUGH_S / taken_s), LEAST_BYTES)
        num_bytes = min(wanted, 2 * num_bytes, MOST_BYTES)


def agree(rates: Sequence[float]) -> bool:
    """Whether two or more rates are alike, so that no burst or busy moment is among them."""
    return len(rates) > 1 and max(rates) <= _ALIKE * min(rates)


def measure_directions(
    world: World, topology: Topology, *, bytes_per_s: float
) -> dict[tuple[int, int], float]:
    """Bytes per second from each host to the next, by (from, to); one pair after the other.

    bytes_per_s: roughly the rate to expect. Every rank calls it, and all get the same answer.
    """
    num_bytes = min(max(int(bytes_per_s * _LONG_ENOUGH_S), LEAST_BYTES), MOST_BYTES)
    found = {}
    for sender in range(topology.num_hosts):
        receiver = (sender + 1) % topology.num_hosts
        ends = (topology.hosts[sender][0], topology.hosts[receiver][0])
        found[sender, receiver], _ = sustained_rate(
            partial(_sent_in_s, world, topology, ends), num_bytes
        )
    return found


def _sent_in_s(world: World, topology: Topology, ends: tuple[int, int], num_bytes: int) -> float:
    """Seconds from the receiver's request until it has all bytes, known to every rank."""
    payload = torch.zeros(num_bytes, dtype=torch.uint8, device=world.device)
    token = torch.zeros(1, device=world.device)
    sender, receiver = ends
    taken_s = 0.0
    if world.rank == receiver:
        started = time.perf_counter()
        dist.send(token, sender, group=topology.between)
        dist.recv(payload, sender, group=topology.between)
        if world.device.type == "cuda":
            torch.cuda.synchronize(world.device)
        taken_s = time.perf_counter() - started
    elif world.rank == sender:
        dist.recv(token, receiver, group=topology.between)
        dist.send(payload, receiver, group=topology.between)
    return float(max(world.gather_json(taken_s)))


def measure_link(world: World, topology: Topology) -> LinkRate:
    """The rate and the latency of the link, measured with sums of zeros for a second or two.

    Every rank must call it; all get the same answer.
    """
    host_sum = HostSum(topology, torch.float32)
    num_in_ring = topology.num_hosts if topology.num_hosts > 1 else world.world_size

    def seconds(num_bytes: int) -> float:
        zeros = torch.zeros(num_bytes // 4, device=world.device)
        world.barrier()
        started = time.perf_counter()
        host_sum.start(zeros)()
        if world.device.type == "cuda":
            torch.cuda.synchronize(world.device)
        # Ranks must decide alike, and the slowest rank's time is the time of a sum.
        return float(max(world.gather_json(time.perf_counter() - started)))

    latency_s = statistics.median(seconds(4) for _ in range(_LATENCY_ROUNDS))
    summed_per_s, num_bytes = sustained_rate(seconds)
    sent_bytes = max(world.gather_json(host_sum.sent_bytes(num_bytes // 4)))
    host_sum.close()
    return LinkRate(summed_per_s * sent_bytes / num_bytes, latency_s / (2 * (num_in_ring - 1)))


def main() -> int:
    """Measure as one rank."""
    end_with_parent()
    keep_freed_memory()  # as in training
    with join_world() as world, closing(find_topology(world)) as topology:
        rate = measure_link(world, topology)
        if world.is_main:
            print(json.dumps({"inside_bytes_per_s": rate.bytes_per_s}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
