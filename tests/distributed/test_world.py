"""Real ranks: sums, JSON, and no port that is open to the network."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dragoman.distributed.topology import find_topology
from dragoman.distributed.world import World, join_world
from processes import LOOPBACK, listening_addresses
from ranks import run_ranks


def _exchange(world: World) -> Any:
    total = world.sum(torch.full((3,), float(world.rank + 1)))
    gathered = world.gather_json({"rank": world.rank, "text": "ü" * (world.rank * 5)})
    world.barrier()
    return [total.tolist(), gathered, sorted(listening_addresses(os.getpid()))]


def test_ranks_sum_exchange_json_and_listen_on_loopback_only() -> None:
    results = run_ranks(_exchange, world_size=3)
    for total, gathered, addresses in results:
        assert total == [6.0, 6.0, 6.0]
        assert gathered == [{"rank": r, "text": "ü" * (r * 5)} for r in range(3)]
        assert addresses == [LOOPBACK]


def test_one_process_is_a_world_of_its_own() -> None:
    with join_world() as world:
        assert (world.rank, world.world_size, world.is_main) == (0, 1, True)
        assert world.sum(torch.ones(2)).tolist() == [1.0, 1.0]
        assert world.gather_json({"a": 1}) == [{"a": 1}]


def _wait_for_a_late_rank(world: World, apart: bool) -> Any:
    topology = find_topology(replace(world, timeout=timedelta(seconds=1)), every_rank_apart=apart)
    group = topology.between if apart else topology.inside
    time.sleep(4 * world.rank)
    try:
        dist.all_reduce(torch.ones(1), group=group)
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("apart", [False, True], ids=["inside a host", "between hosts"])
def test_every_group_waits_as_long_as_the_world_is_told_to(apart: bool) -> None:
    said = run_ranks(_wait_for_a_late_rank, apart, world_size=2)[0]
    assert "imed out" in said
