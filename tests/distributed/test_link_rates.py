"""Measured rates of a link, beside transfers of a known size over the same link.

Other work on the machine may slow either side for a moment, so they only have to be of one order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dragoman.distributed import diloco_work, link_rate, probe
from dragoman.distributed.topology import find_topology, ring_all_reduce_bytes
from dragoman.distributed.world import World
from ranks import run_program, run_ranks

LONG_ENOUGH_S = 0.02
"""Shorter transfers than in use: loopback has no token bucket."""
FLOATS = 4_000_000
APART = 20.0
"""One rate may be so many times the other."""
LATENCY_S = 1e-6, 0.02
"""Lowest and highest latency of a message over loopback; its receiver may wait for its turn."""


def _seconds(world: World, transfer: Callable[[], object]) -> float:
    """The least of three, so that a busy moment does not count."""
    taken = []
    for _ in range(3):
        world.barrier()
        started = time.perf_counter()
        transfer()
        taken.append(time.perf_counter() - started)
    return min(taken)


def _one_way_rate(world: World) -> float:
    """Bytes/s from rank 0 to rank 1."""
    payload, note = torch.zeros(FLOATS), torch.zeros(1)

    def transfer() -> None:
        if world.rank == 0:
            dist.send(payload, 1)
            dist.recv(note, 1)
        elif world.rank == 1:
            dist.recv(payload, 0)
            dist.send(note, 0)

    return float(min(4 * FLOATS / s for s in world.gather_json(_seconds(world, transfer))))


def _ring_rate(world: World) -> float:
    """Bytes/s that a rank sends in a sum over all ranks."""
    payload = torch.zeros(FLOATS)
    taken_s = float(max(world.gather_json(_seconds(world, lambda: world.sum(payload)))))
    return ring_all_reduce_bytes(4 * FLOATS, world.world_size) / taken_s


def _alike(one: float, other: float) -> bool:
    return other / APART < one < other * APART


def _probed(world: World) -> Any:
    probe._LONG_ENOUGH_S = LONG_ENOUGH_S  # type: ignore[misc]
    probe._MOST_BYTES = 1 << 24  # type: ignore[misc]
    diloco_work._SHAPE = 256, 128  # type: ignore[misc]
    return [probe.measure(world), _one_way_rate(world), _ring_rate(world)]


def test_every_rank_knows_the_rates_of_all_pairs() -> None:
    (found, one_way, ring), *others = run_ranks(_probed, world_size=3)
    assert [one[0]["pairs"] for one in others] == [found["pairs"]] * 2
    pairs = {tuple(pair["ranks"]): pair for pair in found["pairs"]}
    assert sorted(pairs) == [*combinations(range(3), 2)]
    assert len(found["pairs"]) == 3
    for pair in pairs.values():
        assert _alike(pair["forth_bytes_per_s"], one_way)
        assert _alike(pair["back_bytes_per_s"], one_way)
        assert _alike(pair["both_bytes_per_s"], one_way)
        assert LATENCY_S[0] < pair["latency_s"] < LATENCY_S[1]
    assert _alike(found["all_reduce_bytes_per_s"], ring)
    assert 1e-10 < found["diloco_weight_s"] < 1e-6


def test_one_rank_has_nobody_to_measure() -> None:
    (found,) = run_ranks(_probe_alone, world_size=1)
    assert found == {"pairs": [], "all_reduce_bytes_per_s": None, "diloco_weight_s": None}


def _probe_alone(world: World) -> Any:
    return probe.measure(world)


def _link(world: World) -> Any:
    link_rate._LONG_ENOUGH_S = LONG_ENOUGH_S  # type: ignore[misc]
    topology = find_topology(world)
    rate = link_rate.measure_link(world, topology)
    directions = link_rate.measure_directions(world, topology, bytes_per_s=rate.bytes_per_s)
    return [
        [rate.bytes_per_s, rate.latency_s],
        sorted([*ends, bytes_per_s] for ends, bytes_per_s in directions.items()),
        [_one_way_rate(world), _ring_rate(world)],
    ]


@pytest.mark.parametrize("hosts", [[1, 1, 1], [2, 1]])
def test_every_rank_knows_the_rates_between_hosts(hosts: list[int]) -> None:
    (link, directions, (one_way, ring)), *others = run_ranks(_link, world_size=3, hosts=hosts)
    assert [one[:2] for one in others] == [[link, directions]] * 2
    assert _alike(link[0], ring)
    assert LATENCY_S[0] < link[1] < LATENCY_S[1]
    number = len(hosts)
    assert [ends[:2] for ends in directions] == [[one, (one + 1) % number] for one in range(number)]
    assert all(_alike(rate, one_way) for *_, rate in directions)


def test_rank_0_prints_the_rate_inside_a_host() -> None:
    first, second = run_program("dragoman.distributed.link_rate", world_size=2)
    assert second == ""
    (rate,) = json.loads(first).items()
    assert rate[0] == "inside_bytes_per_s"
    assert 1e7 < rate[1] < 1e12
