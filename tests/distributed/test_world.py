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

from dragoman.base.errors import MachineError
from dragoman.distributed.rendezvous import STORE_VARIABLE, StoreAddress
from dragoman.distributed.store import connect, serve
from dragoman.distributed.topology import find_topology
from dragoman.distributed.wire import ring_bytes
from dragoman.distributed.world import World, join_world
from processes import LOOPBACK, listening_addresses
from ranks import run_ranks


def _exchange(world: World) -> Any:
    total = world.sum(torch.full((3,), float(world.rank + 1)))
    gathered = world.gather_json({"rank": world.rank, "text": "ü" * (world.rank * 5)})
    world.barrier()
    interfaces = [os.environ[f"{name}_SOCKET_IFNAME"] for name in ("GLOO", "NCCL")]
    least = world.least(torch.tensor([world.rank, -world.rank])).tolist()
    return [total.tolist(), least, gathered, sorted(listening_addresses(os.getpid())), interfaces]


def test_ranks_sum_exchange_json_and_listen_on_loopback_only() -> None:
    results = run_ranks(_exchange, world_size=3)
    for total, least, gathered, addresses, interfaces in results:
        assert total == [6.0, 6.0, 6.0]
        assert least == [0, -2]
        assert gathered == [{"rank": r, "text": "ü" * (r * 5)} for r in range(3)]
        assert addresses == [LOOPBACK]
        assert interfaces == ["lo", "lo"]


def test_ranks_meet_in_the_store_of_their_run(monkeypatch: pytest.MonkeyPatch) -> None:
    store = serve("127.0.0.1")
    where = StoreAddress("127.0.0.1", store.port, "token")
    monkeypatch.setenv(STORE_VARIABLE, str(where))
    assert [total for total, *_ in run_ranks(_exchange, world_size=2)] == [[3.0, 3.0, 3.0]] * 2
    assert connect(where, prefix="workers-0").num_keys() > 0


def test_one_process_is_a_world_of_its_own() -> None:
    with join_world() as world:
        assert (world.rank, world.world_size, world.is_main) == (0, 1, True)
        assert world.sum(torch.ones(2)).tolist() == [1.0, 1.0]
        assert world.gather_json({"a": 1}) == [{"a": 1}]


def test_a_rank_without_a_gpu_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPUs are made up: the error comes before the first is used."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(MachineError) as refused, join_world():
        pass
    assert "rank 2" in refused.value.problem
    assert "at most 2 ranks" in refused.value.remedy


def _late_rank(world: World) -> Any:
    """When this rank came to a barrier, and when it left it."""
    time.sleep(0.4 * (world.rank == world.world_size - 1))
    came = time.monotonic()
    world.barrier()
    return [came, time.monotonic()]


@pytest.mark.parametrize("world_size", [2, 3])
def test_no_rank_passes_a_barrier_before_the_last_has_come(world_size: int) -> None:
    moments = run_ranks(_late_rank, world_size=world_size)
    assert max(came for came, _ in moments) <= min(left for _, left in moments)


def _seen_topology(world: World, apart: bool) -> Any:
    topology = find_topology(world, every_rank_apart=apart)
    alone = topology.this_host()
    members = [
        group and dist.get_process_group_ranks(group)
        for group in (topology.inside, topology.between, alone.inside, alone.between)
    ]
    return [
        [list(ranks) for ranks in topology.hosts],
        [topology.rank, topology.own, topology.num_hosts, topology.leads],
        [*topology.neighbours],
        [alone.rank, [*alone.neighbours], alone.num_hosts],
        members,
    ]


def test_ranks_know_their_host_and_whom_they_talk_to() -> None:
    hosts = [[0], [1, 2], [3]]
    seen = run_ranks(_seen_topology, False, world_size=4, hosts=[1, 2, 1])
    for rank, (found, place, neighbours, alone, members) in enumerate(seen):
        own = next(number for number, ranks in enumerate(hosts) if rank in ranks)
        leads = hosts[own][0] == rank
        inside = hosts[own] if len(hosts[own]) > 1 else None
        assert found == hosts
        assert place == [rank, own, 3, leads]
        assert neighbours == hosts[own]
        assert alone == [rank, hosts[own], 1]
        assert members == [inside, [0, 1, 3] if leads else None, inside, None]


def test_ranks_of_one_host_talk_inside_it_or_as_if_they_were_apart() -> None:
    for rank, (found, place, *_, members) in enumerate(
        run_ranks(_seen_topology, False, world_size=2)
    ):
        assert (found, place) == ([[0, 1]], [rank, 0, 1, rank == 0])
        assert members == [[0, 1], None, [0, 1], None]
    for rank, (found, place, *_, members) in enumerate(
        run_ranks(_seen_topology, True, world_size=2)
    ):
        assert (found, place) == ([[0], [1]], [rank, rank, 2, True])
        assert members == [None, [0, 1], None, None]


@pytest.mark.parametrize(("ranks", "sent"), [(1, 0), (2, 1000), (3, 1333), (4, 1500)])
def test_a_ring_sends_two_parts_for_each_other_rank(ranks: int, sent: int) -> None:
    assert ring_bytes(1000, num_ranks=ranks) == pytest.approx(sent, abs=0.5)


def _left_at_once(world: World, times: int) -> Any:
    for _ in range(times):
        find_topology(world).close()
    return times


@pytest.mark.system
@pytest.mark.parametrize("world_size", [2, 4])
def test_a_group_may_be_left_at_once(world_size: int) -> None:
    """Other ranks may still be making it: one start of a training in six broke off so."""
    assert run_ranks(_left_at_once, 30, world_size=world_size) == [30] * world_size


def _wait_for_a_late_rank(world: World, apart: bool) -> Any:
    topology = find_topology(replace(world, timeout=timedelta(seconds=1)), every_rank_apart=apart)
    group = topology.between if apart else topology.inside
    time.sleep(4 * world.rank)
    try:
        dist.all_reduce(torch.ones(1), group=group)
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.system
@pytest.mark.parametrize("apart", [False, True], ids=["inside a host", "between hosts"])
def test_every_group_waits_as_long_as_the_world_is_set_to(apart: bool) -> None:
    said = run_ranks(_wait_for_a_late_rank, apart, world_size=2)[0]
    assert "imed out" in said
