"""One suite over every strategy that sums gradients over several ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dragoman.distributed import gradient_sync as strategies
from dragoman.distributed.gradient_sync import gradient_sync
from dragoman.distributed.traffic import ring_all_reduce_bytes
from dragoman.distributed.world import World
from ranks import run_ranks

# Strategy, bytes of one number on the wire, relative error of a sum.
STRATEGIES = [("sync", 4, 1e-5), ("sync_bf16", 2, 2e-2)]
ROWS = [5, 1, 3]
"""Of the global micro-batches: ranks have uneven shares, and some have none."""
WIDTH = 64


class TwoLayers(nn.Module):
    """A model with a weight that no output depends on, as a frozen or spare part has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
        self.spare = nn.Parameter(torch.ones(3))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.layers(rows)  # type: ignore[no-any-return]


def _rows(micro: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(micro)
    return torch.randn(ROWS[micro], WIDTH, generator=generator)


def _gradients(world: World, strategy: str, updates: int) -> Any:
    strategies.BUCKET_BYTES = 1000  # many buckets, of which the first is full early
    model = TwoLayers()
    model.spare.data += world.rank
    with gradient_sync(strategy, model, world) as sync:
        for _ in range(updates):
            model.zero_grad()
            for micro in range(len(ROWS)):
                rows = _rows(micro)[world.rank :: world.world_size]
                with sync.micro_step(last=micro == len(ROWS) - 1):
                    sync.module(rows).sum().backward()
    return {
        "gradients": {
            name: None if weight.grad is None else weight.grad.flatten().tolist()
            for name, weight in model.named_parameters()
        },
        "spare": model.spare.tolist(),
        "bytes_sent": sync.bytes_sent,
        "exposed_s": sync.exposed_s,
        "hooks_left": [bool(weight._post_accumulate_grad_hooks) for weight in model.parameters()],
    }


@pytest.mark.parametrize(("strategy", "bytes_a_number", "error"), STRATEGIES)
@pytest.mark.parametrize("world_size", [2, 3])
def test_every_rank_has_the_sum_of_all_ranks_and_micro_batches(
    strategy: str, bytes_a_number: int, error: float, world_size: int
) -> None:
    expected = TwoLayers()
    for micro in range(len(ROWS)):
        expected(_rows(micro)).sum().backward()
    expected.spare.grad = torch.zeros(3)
    results = run_ranks(_gradients, strategy, 2, world_size=world_size)
    sizes = [weight.numel() * bytes_a_number for weight in expected.parameters()]
    for result in results:
        for name, weight in expected.named_parameters():
            assert weight.grad is not None
            torch.testing.assert_close(
                torch.tensor(result["gradients"][name]),
                weight.grad.flatten(),
                rtol=error,
                atol=error * float(weight.grad.abs().max()),
            )
        # Two updates of three micro-batches: the gradient travels once for each update.
        assert result["bytes_sent"] == pytest.approx(
            2 * ring_all_reduce_bytes(sum(sizes), world_size), abs=2 * len(sizes)
        )
        assert result["exposed_s"] > 0
        assert result["gradients"] == results[0]["gradients"]
        assert result["spare"] == [1.0, 1.0, 1.0], "weights are those of rank 0"
        assert not any(result["hooks_left"])


def test_one_rank_sends_nothing() -> None:
    (alone,) = run_ranks(_gradients, "none", 1, world_size=1)
    expected = TwoLayers()
    for micro in range(len(ROWS)):
        expected(_rows(micro)).sum().backward()
    weight = expected.layers[0].weight
    assert isinstance(weight.grad, torch.Tensor)
    assert alone["gradients"]["layers.0.weight"] == weight.grad.flatten().tolist()
    assert (alone["bytes_sent"], alone["exposed_s"]) == (0, 0.0)
