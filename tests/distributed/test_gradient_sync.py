"""One suite over every strategy that sums gradients over several ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dragoman.distributed.gradient_sync import gradient_sync
from dragoman.distributed.traffic import interface_bytes, ring_all_reduce_bytes
from dragoman.distributed.world import World
from ranks import run_ranks

STRATEGIES = ["sync"]
MICRO_BATCHES = 3
WIDTH = 256


def _model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def _rows(micro: int) -> torch.Tensor:
    """The global micro-batches: 5, 1 and 3 rows, so that two ranks never have equal shares."""
    generator = torch.Generator().manual_seed(micro)
    return torch.randn([5, 1, 3][micro], WIDTH, generator=generator)


def _gradients(world: World, strategy: str) -> Any:
    model = _model()
    sent_before = interface_bytes("lo").sent
    with gradient_sync(strategy, model, world) as sync:
        for micro in range(MICRO_BATCHES):
            rows = _rows(micro)[world.rank :: world.world_size]
            with sync.micro_step(last=micro == MICRO_BATCHES - 1):
                sync.module(rows).sum().backward()
        world.barrier()
        return {
            "gradients": [
                weight.grad.flatten().tolist()
                for weight in model.parameters()
                if weight.grad is not None
            ],
            "bytes_sent": sync.bytes_sent,
            "exposed_s": sync.exposed_s,
            "loopback_bytes": interface_bytes("lo").sent - sent_before,
        }


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("world_size", [2, 3])
def test_every_rank_has_the_sum_of_all_ranks_and_micro_batches(
    strategy: str, world_size: int
) -> None:
    model = _model()
    for micro in range(MICRO_BATCHES):
        model(_rows(micro)).sum().backward()
    results = run_ranks(_gradients, strategy, world_size=world_size)
    gradient_bytes = sum(weight.numel() * 4 for weight in model.parameters())
    for result in results:
        for weight, gradient in zip(model.parameters(), result["gradients"], strict=True):
            assert weight.grad is not None
            torch.testing.assert_close(torch.tensor(gradient), weight.grad.flatten())
        # Three micro-batches, but the gradient travels once.
        assert result["bytes_sent"] == ring_all_reduce_bytes(gradient_bytes, world_size)
        assert result["exposed_s"] >= 0
    # The kernel counted no less than all ranks claim to have sent, and not the threefold.
    claimed = sum(result["bytes_sent"] for result in results)
    assert claimed <= results[0]["loopback_bytes"] + gradient_bytes
    assert results[0]["loopback_bytes"] < 3 * claimed


def _without_world(world: World) -> Any:
    model = _model()
    with gradient_sync("none", model, world) as sync, sync.micro_step(last=True):
        sync.module(_rows(0)).sum().backward()
    return [sync.bytes_sent, sync.exposed_s, sync.module is model]


def test_one_rank_sends_nothing() -> None:
    assert run_ranks(_without_world, world_size=1) == [[0, 0.0, True]]
