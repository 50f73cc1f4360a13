"""Sums of gradients: of all ranks, in both types, on one host and on uneven ones."""

from __future__ import annotations

import time
from typing import Any, Literal

import pytest
import torch
from torch import nn

from dragoman.distributed import all_reduce, step_time, wire
from dragoman.distributed.config import DistributedConfig
from dragoman.distributed.gradient_sync import Stopwatch
from dragoman.distributed.strategies import gradient_sync
from dragoman.distributed.wire import ring_bytes
from dragoman.distributed.world import World
from ranks import run_ranks

ERRORS = {"fp32": 1e-5, "bf16": 2e-2}
ROWS = [5, 1, 3]
"""Rows of the global micro-batches: ranks have uneven shares, and some have none."""
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


def _gradients(world: World, wire: Literal["bf16", "fp32"], updates: int) -> Any:
    vars(all_reduce)["FIRST_BUCKET_BYTES"] = 1000  # many buckets, the first is full early
    model = TwoLayers()
    model.spare.data += world.rank
    with gradient_sync(DistributedConfig(wire=wire), model, world) as sync:
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
        "waited_s": sync.waits.total_s(),
        "hooks_left": [bool(weight._post_accumulate_grad_hooks) for weight in model.parameters()],
    }


@pytest.mark.parametrize(
    ("wire", "hosts"),
    [
        ("fp32", [1, 1]),
        ("bf16", [1, 1, 1]),
        ("bf16", [2]),
        ("bf16", [2, 1]),
        ("bf16", [2, 2]),
        ("fp32", [1, 2, 1]),
    ],
)
def test_every_rank_has_the_sum_of_all_ranks_and_micro_batches(wire: str, hosts: list[int]) -> None:
    one_host = len(hosts) == 1
    error = ERRORS["fp32" if one_host else wire]
    bytes_a_number = 2 if wire == "bf16" and not one_host else 4
    world_size = sum(hosts)
    leaders = {sum(hosts[:number]) for number in range(len(hosts))}
    expected = TwoLayers()
    for micro in range(len(ROWS)):
        expected(_rows(micro)).sum().backward()
    expected.spare.grad = torch.zeros(3)
    results = run_ranks(_gradients, wire, 2, world_size=world_size, hosts=hosts)
    sizes = [weight.numel() * bytes_a_number for weight in expected.parameters()]
    for rank, result in enumerate(results):
        for name, weight in expected.named_parameters():
            assert weight.grad is not None
            torch.testing.assert_close(
                torch.tensor(result["gradients"][name]),
                weight.grad.flatten(),
                rtol=error,
                atol=error * float(weight.grad.abs().max()),
            )
            if bytes_a_number == 2:  # what travels in so few bytes arrives in as many
                found = torch.tensor(result["gradients"][name])
                assert torch.equal(found, found.bfloat16().float())
        # Two updates of three micro-batches: the gradient travels once for each update.
        # Between hosts, or in the one host; of each host one rank speaks to the others.
        ring = round(ring_bytes(sum(sizes), num_ranks=world_size if one_host else len(hosts)))
        expected_bytes = 2 * ring if one_host or rank in leaders else 0
        assert result["bytes_sent"] == pytest.approx(expected_bytes, abs=2 * len(sizes))
        assert result["waited_s"] > 0
        assert result["gradients"] == results[0]["gradients"]
        assert result["spare"] == [1.0, 1.0, 1.0], "weights are those of rank 0"
        assert not any(result["hooks_left"])


def test_one_rank_sends_nothing() -> None:
    (alone,) = run_ranks(_gradients, "bf16", 1, world_size=1)
    expected = TwoLayers()
    for micro in range(len(ROWS)):
        expected(_rows(micro)).sum().backward()
    weight = expected.layers[0].weight
    assert isinstance(weight.grad, torch.Tensor)
    # Another number of threads may sum in another order.
    assert alone["gradients"]["layers.0.weight"] == pytest.approx(
        weight.grad.flatten().tolist(), rel=1e-5, abs=1e-7
    )
    assert (alone["bytes_sent"], alone["waited_s"]) == (0, 0.0)


def test_buckets_are_those_that_the_planner_counts_on() -> None:
    shapes = [(3000, 1500), (700,), (200, 900), (4000, 2000), (300, 1000), (10,)]
    weights = [nn.Parameter(torch.empty(shape)) for shape in shapes]
    sizes = [
        sum(weight.numel() for weight in group) * wire.FP32_BYTES
        for group in all_reduce._groups(weights[::-1])
    ]
    assert sizes == step_time.bucket_bytes(shapes)
    assert len(sizes) == 3


def test_a_stopwatch_adds_up_its_intervals_alone() -> None:
    watch = Stopwatch(torch.device("cpu"))
    assert watch.total_s() == 0.0
    began = time.perf_counter()
    for _ in range(3):
        watch.start()
        time.sleep(0.02)
        watch.stop()
        time.sleep(0.05)
    total_s, all_s = watch.total_s(), time.perf_counter() - began
    assert 0.06 <= total_s <= all_s - 0.15
    assert watch.total_s() == total_s
