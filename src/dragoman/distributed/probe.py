"""The rate of collectives on the network; `dragoman.training.measuring` runs it.

Every rank prints {} before each round of pairs, as a sign that it goes on; at the end rank 0 prints
the result as a line of JSON. Disjoint pairs are measured at the same time, so that N hosts take
N - 1 rounds of a few seconds, or N if N is odd. Each direction is measured by itself: a link may
carry a thousand times as much in one as in the other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist

from dragoman.distributed.diloco_work import measure_weight_s
from dragoman.distributed.link_rate import LEAST_BYTES, sustained_rate
from dragoman.distributed.wire import ring_bytes
from dragoman.distributed.world import World, join_world

_TRIES: Final = 3
"""How often a pair is measured, if the rates of its directions and of both at once disagree."""
_LATENCY_ROUNDS: Final = 20
_FULL_DUPLEX: Final = 0.9
"""In full duplex, each direction keeps at least this share of its rate while both are busy; less is
measured again."""
_DISTURBED: Final = 1.1
"""A direction whose rate is this many times higher while both are busy is measured again."""


def measure(world: World) -> dict[str, Any]:
    """Bytes per second of every pair, one way each and both at once, and of an all-reduce over
    all; and the time of `diloco` per weight.

    The result has all pairs of ranks, on every rank: `cluster.lines.ProbePair`. The first
    rank of a pair measures it; then the results are gathered.
    """
    pairs = []
    for games in tournament(world.world_size):
        print("{}", flush=True)
        groups = [dist.new_group(list(pair)) for pair in games]  # every rank makes every group
        world.barrier()
        for pair, group in zip(games, groups, strict=True):
            if world.rank in pair:
                found = _pair(world, pair, group)
                if world.rank == pair[0]:
                    pairs.append(found)
        world.barrier()  # no rank uses its group any more
        for group in groups:
            dist.destroy_process_group(group)
    pairs = [pair for found in world.gather_json(pairs) for pair in found]
    return {
        "pairs": pairs,
        "all_reduce_bytes_per_s": (
            _all_reduce(world)
            if len(pairs) > 1
            else next((pair["both_bytes_per_s"] for pair in pairs), None)
        ),
        "diloco_weight_s": measure_weight_s(world) if world.world_size > 1 else None,
    }


def tournament(num_players: int) -> list[list[tuple[int, int]]]:
    """Rounds in which each rank meets every other once, one at a time (the circle method)."""
    ring = list(range(num_players + num_players % 2))  # with an odd number, one rests each round
    rounds = []
    for _ in range(len(ring) - 1):
        facing = zip(ring[: len(ring) // 2], reversed(ring[len(ring) // 2 :]), strict=True)
        games = [(min(one, two), max(one, two)) for one, two in facing]
        rounds.append([game for game in games if game[1] < num_players])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return rounds


def _pair(world: World, pair: tuple[int, int], group: dist.ProcessGroup) -> dict[str, Any]:
    first = world.rank == pair[0]
    other = pair[1] if first else pair[0]
    note = torch.zeros(1, device=world.device)

    def one_way(forth: bool, payload: torch.Tensor) -> None:
        if first == forth:
            dist.send(payload, other)
            dist.recv(note, other)
        else:
            dist.recv(payload, other)
            dist.send(note, other)

    def both_ways(payload: torch.Tensor) -> None:
        # Each of the two ranks sends as many bytes as it receives. Two plain sends would take
        # turns: Gloo queues its request to receive behind the data that it sends.
        dist.all_reduce(payload, group=group)

    def pings() -> None:
        for _ in range(_LATENCY_ROUNDS):
            one_way(True, note)

    def rate(
        transfer: Callable[[torch.Tensor], None], num_bytes: int = LEAST_BYTES
    ) -> tuple[float, int]:
        def seconds(num_bytes: int) -> float:
            payload = torch.zeros(num_bytes, dtype=torch.uint8, device=world.device)
            taken_s = torch.tensor([_timed(world, partial(transfer, payload))], device=world.device)
            # Both must decide alike. A sum ends early for the rank that sends slowly: the rest of
            # its data waits in the buffer of its socket.
            dist.all_reduce(taken_s, op=dist.ReduceOp.MAX, group=group)
            return taken_s.item()

        return sustained_rate(seconds, num_bytes)

    pings()
    latency_s = _timed(world, pings) / _LATENCY_ROUNDS
    forth, forth_bytes = rate(partial(one_way, True))
    back, back_bytes = rate(partial(one_way, False))
    both = 0.0
    for _ in range(_TRIES):
        # Half duplex is slow each time; a busy processor or lost packets only for a while.
        both = max(both, rate(both_ways, min(forth_bytes, back_bytes))[0])
        # A direction alone cannot be slower than in both at once.
        if _DISTURBED * forth < both:
            forth = max(forth, rate(partial(one_way, True), forth_bytes)[0])
        if _DISTURBED * back < both:
            back = max(back, rate(partial(one_way, False), back_bytes)[0])
        if _FULL_DUPLEX * min(forth, back) <= both <= _DISTURBED * min(forth, back):
            break
    return {
        "ranks": pair,
        "forth_bytes_per_s": forth,
        "back_bytes_per_s": back,
        "both_bytes_per_s": both,
        "latency_s": latency_s / 2,
    }


def _all_reduce(world: World) -> float:
    """Bytes per second through each interface in an all-reduce over all."""

    def seconds(num_bytes: int) -> float:
        payload = torch.zeros(num_bytes, dtype=torch.uint8, device=world.device)
        world.barrier()
        taken_s = _timed(world, partial(world.sum, payload))
        return float(max(world.gather_json(taken_s)))  # all must decide alike

    summed_per_s, _ = sustained_rate(seconds)
    return ring_bytes(summed_per_s, num_ranks=world.world_size)


def _timed(world: World, act: Callable[[], Any]) -> float:
    """Seconds until `act` is done, on the device as well."""
    started = time.perf_counter()
    act()
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
    return time.perf_counter() - started


def main() -> int:
    """Measure as one rank. Call `keep_freed_memory` first: the time of diloco depends on it."""
    with join_world() as world:
        found = measure(world)
        if world.is_main:
            print(json.dumps(found), flush=True)
    return 0
