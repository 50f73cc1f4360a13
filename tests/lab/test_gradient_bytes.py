"""What a strategy says it sends, against the counters of real interfaces."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch import nn

from dragoman.distributed.config import DistributedConfig
from dragoman.distributed.gradient_sync import gradient_sync
from dragoman.distributed.traffic import interface_bytes, ring_all_reduce_bytes
from dragoman.distributed.world import World
from lab.conftest import OpenLab
from lab.laboratory import INTERFACE
from lab.ranks_on_hosts import run_on_hosts

WIDTH = 1000
NUM_WEIGHTS = WIDTH * WIDTH + WIDTH


def one_update(world: World, wire: Literal["bf16", "fp32"], micro_batches: int) -> Any:
    """Bytes that this host's interface sent in one update, and bytes that the strategy counted."""
    model = nn.Linear(WIDTH, WIDTH)
    with gradient_sync(DistributedConfig(wire=wire), model, world) as sync:
        world.barrier()
        before = interface_bytes(INTERFACE).sent
        for micro in range(micro_batches):
            with sync.micro_step(last=micro == micro_batches - 1):
                sync.module(torch.ones(2, WIDTH)).sum().backward()
        world.barrier()
        return [interface_bytes(INTERFACE).sent - before, sync.bytes_sent]


@pytest.mark.parametrize(("wire", "bytes_a_weight"), [("fp32", 4), ("bf16", 2)])
@pytest.mark.parametrize("num_hosts", [2, 3])
def test_accumulated_gradients_cross_the_wire_once(
    make_lab: OpenLab, wire: str, bytes_a_weight: int, num_hosts: int
) -> None:
    lab = make_lab(["alpha", "beta", "gamma"][:num_hosts])
    expected = ring_all_reduce_bytes(NUM_WEIGHTS * bytes_a_weight, num_hosts)
    for on_the_wire, counted in run_on_hosts(one_update, wire, 3, hosts=lab.hosts):
        assert counted == expected
        assert on_the_wire == pytest.approx(expected, rel=0.05)
