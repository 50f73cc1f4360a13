"""Measured rates of a link whose rate is known.

Data goes over loopback, and takes at least the time that the known rate gives it: a measurement
cannot be higher, and is lower only if the machine is busy.
"""

from __future__ import annotations

import json
import time
from contextlib import closing
from itertools import combinations
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dragoman.distributed import diloco_work, link_rate, probe
from dragoman.distributed.config import DistributedConfig
from dragoman.distributed.strategies import gradient_sync
from dragoman.distributed.topology import find_topology
from dragoman.distributed.world import World
from ranks import run_program, run_ranks

RATE = 5e6
"""Bytes/s, a hundredth of loopback's."""
LONG_ENOUGH_S = 0.1
"""Shorter transfers than in use: this link has no token bucket."""
LATENCY_S = 1e-6, 0.2
"""Lowest and highest latency of a message over loopback; its receiver may wait for its turn."""


class SlowSum:
    """A sum under way that ends no earlier than it would over the known link."""

    def __init__(self, work: Any, num_bytes: float) -> None:
        self._work = work
        self._ends = time.perf_counter() + num_bytes / RATE

    def wait(self) -> None:
        """Wait for the data and for the link."""
        self._work.wait()
        time.sleep(max(0.0, self._ends - time.perf_counter()))


def _slow_down() -> None:
    """From now on this process sends data over the known link."""
    send, all_reduce = dist.send, dist.all_reduce

    def send_slowly(tensor: torch.Tensor, dst: int, group: Any = None) -> None:
        time.sleep(tensor.nbytes / RATE)
        send(tensor, dst, group=group)

    def sum_slowly(
        tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        each_way = 2 * (1 - 1 / dist.get_world_size(group))
        sent = all_reduce(tensor, op=op, group=group, async_op=True)
        work = SlowSum(sent, tensor.nbytes * each_way)
        return work if async_op else work.wait()

    dist.send = send_slowly  # type: ignore[assignment]
    dist.all_reduce = sum_slowly


def _is_known(rate: float) -> bool:
    return RATE / 3 < rate < RATE * 1.05


def _probed(world: World) -> Any:
    _slow_down()
    link_rate._LONG_ENOUGH_S = LONG_ENOUGH_S  # type: ignore[misc]
    diloco_work._SHAPE = 256, 128  # type: ignore[misc]
    return probe.measure(world)


@pytest.mark.system
@pytest.mark.parametrize("world_size", [2, 3])
def test_every_rank_knows_the_rates_of_all_pairs(world_size: int) -> None:
    found, *others = run_ranks(_probed, world_size=world_size)
    assert all(one["pairs"] == found["pairs"] for one in others)
    assert sorted(tuple(pair["ranks"]) for pair in found["pairs"]) == [
        *combinations(range(world_size), 2)
    ]
    for pair in found["pairs"]:
        assert _is_known(pair["forth_bytes_per_s"])
        assert _is_known(pair["back_bytes_per_s"])
        assert _is_known(pair["both_bytes_per_s"])
        assert LATENCY_S[0] < pair["latency_s"] < LATENCY_S[1]
    assert _is_known(found["all_reduce_bytes_per_s"])
    assert 1e-10 < found["diloco_weight_s"] < 1e-6


def _groups_left(world: World) -> list[int]:
    """The number of groups before and after measurements, and after `diloco` is set up."""
    groups = dist.distributed_c10d._world.pg_map
    link_rate._LONG_ENOUGH_S = 0.01  # type: ignore[misc]
    diloco_work._SHAPE = 256, 128  # type: ignore[misc]
    numbers = [len(groups)]
    probe.measure(world)
    numbers.append(len(groups))
    with closing(find_topology(world)) as topology:
        link_rate.measure_link(world, topology)
    numbers.append(len(groups))
    config = DistributedConfig.model_validate({"strategy": "diloco"})
    with gradient_sync(config, torch.nn.Linear(4, 4), world):
        numbers.append(len(groups))
    return numbers


@pytest.mark.parametrize("hosts", [[1, 1], [2]], ids=["two hosts", "one host"])
def test_a_measurement_leaves_no_group(hosts: list[int]) -> None:
    """Each group of ranks holds a connection to every one of them."""
    for numbers in run_ranks(_groups_left, world_size=2, hosts=hosts):
        assert numbers == [1, 1, 1, 2]  # diloco's is between its two replicas


def _probed_from_a_slow_rank(world: World) -> Any:
    """The rates between rank 0, which sends over the known link, and rank 1; and the most bytes
    that this rank sends at once."""
    if world.is_main:
        _slow_down()
    link_rate._LONG_ENOUGH_S = LONG_ENOUGH_S  # type: ignore[misc]
    send, all_reduce, sizes = dist.send, dist.all_reduce, []

    def send_counted(tensor: torch.Tensor, dst: int, group: Any = None) -> None:
        sizes.append(tensor.nbytes)
        send(tensor, dst, group=group)

    def sum_counted(tensor: torch.Tensor, **options: Any) -> Any:
        sizes.append(tensor.nbytes)
        return all_reduce(tensor, **options)

    dist.send = send_counted  # type: ignore[assignment]
    dist.all_reduce = sum_counted  # type: ignore[assignment]
    found = probe._pair(world, (0, 1), dist.new_group([0, 1]))
    ways = ("forth_bytes_per_s", "back_bytes_per_s", "both_bytes_per_s")
    return [*(found[way] for way in ways), max(sizes)]


@pytest.mark.system
def test_a_slow_direction_is_not_measured_with_the_size_of_the_fast_one() -> None:
    """The fast one ends with hundreds of times as much, which the slow one carries in minutes."""
    (forth, back, both, most_slow), (*_, most_fast) = run_ranks(
        _probed_from_a_slow_rank, world_size=2
    )
    assert _is_known(forth)
    assert _is_known(both)
    assert back > 5 * RATE
    assert most_slow < 2 * LONG_ENOUGH_S * RATE < most_fast


def test_one_rank_has_nobody_to_measure() -> None:
    (found,) = run_ranks(_probed, world_size=1)
    assert found == {"pairs": [], "all_reduce_bytes_per_s": None, "diloco_weight_s": None}


def _link(world: World) -> Any:
    topology = find_topology(world)
    _slow_down()
    link_rate._LONG_ENOUGH_S = LONG_ENOUGH_S  # type: ignore[misc]
    rate = link_rate.measure_link(world, topology)
    directions = link_rate.measure_directions(world, topology, bytes_per_s=rate.bytes_per_s)
    return [[*rate], sorted([*ends, bytes_per_s] for ends, bytes_per_s in directions.items())]


@pytest.mark.system
@pytest.mark.parametrize("hosts", [[1, 1, 1], [2, 1]])
def test_every_rank_knows_the_rates_between_hosts(hosts: list[int]) -> None:
    (link, directions), *others = run_ranks(_link, world_size=sum(hosts), hosts=hosts)
    assert others == [[link, directions]] * 2
    assert _is_known(link[0])
    assert LATENCY_S[0] < link[1] < LATENCY_S[1]
    number = len(hosts)
    assert [ends[:2] for ends in directions] == [[one, (one + 1) % number] for one in range(number)]
    assert all(_is_known(rate) for *_, rate in directions)


def _link_inside(world: World) -> float:
    _slow_down()
    link_rate._LONG_ENOUGH_S = LONG_ENOUGH_S  # type: ignore[misc]
    return link_rate.measure_link(world, find_topology(world)).bytes_per_s


def test_the_rate_inside_a_host_is_that_between_its_ranks() -> None:
    one, other = run_ranks(_link_inside, world_size=2)
    assert one == other
    assert _is_known(one)


@pytest.mark.system
def test_rank_0_prints_the_rate_inside_a_host() -> None:
    first, second = run_program("dragoman.distributed.link_rate", world_size=2)
    assert second == ""
    (rate,) = json.loads(first).items()
    assert rate[0] == "inside_bytes_per_s"
    assert 1e7 < rate[1] < 1e12
