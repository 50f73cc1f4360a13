"""Sums that travel in few bits, against the sums themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from dragoman.distributed.packing import (
    BLOCK,
    FP4,
    PIECE,
    packed_all_reduce,
    packed_bytes,
)
from dragoman.distributed.world import World
from ranks import run_ranks


def _addend(kind: str, size: int, rank: int) -> Tensor:
    drawn = torch.randn(size, generator=torch.Generator().manual_seed(rank))
    codes = torch.tensor([1.0, -0.5, 0.0, 1 / 64]).repeat(size)[:size]
    return {
        "normal": drawn,
        "heavy": drawn**5 * 1e-6,
        "zeros": torch.zeros(size),
        "one rank": drawn * (rank == 1),
        "codes": codes * (rank == 0),
    }[kind]


def _summed(world: World, kind: str, size: int) -> Any:
    """The sum, and what this rank has lost."""
    group = dist.new_group(list(range(world.world_size)))
    tensor = _addend(kind, size, world.rank)
    assert group is not None
    lost = torch.full_like(tensor, 7.0)  # whatever there was
    packed_all_reduce(tensor, group, FP4, lost=lost)
    return [tensor.tolist(), lost.tolist()]


def _most_off(tensor: Tensor) -> Tensor:
    """For each number, the most that the nearest code of its block may be off: a third of the
    number (3/4 lies between 1/2 and 1), or 3/4 of 1/64 of the block's largest."""
    blocks = torch.nn.functional.pad(tensor, (0, -len(tensor) % BLOCK)).view(-1, BLOCK)
    smallest = blocks.abs().amax(1, keepdim=True) * 0.75 / 64
    halves = torch.maximum(blocks.abs() / 3, smallest.expand_as(blocks))
    return halves.flatten()[: len(tensor)]


@pytest.mark.parametrize("kind", ["normal", "heavy", "zeros", "one rank"])
@pytest.mark.parametrize(
    ("num_ranks", "size"),
    [(2, 5 * BLOCK), (3, 1000), (3, 1), pytest.param(3, PIECE + 700, marks=pytest.mark.slow)],
)
def test_no_number_is_off_by_more_than_its_scales_allow(
    kind: str, num_ranks: int, size: int
) -> None:
    results = run_ranks(_summed, kind, size, world_size=num_ranks)
    addends = [_addend(kind, size, rank) for rank in range(num_ranks)]
    exact = torch.stack(addends).sum(0)
    allowed = sum((_most_off(one) for one in addends), start=torch.zeros(size))
    # The sum's own scale is that of what has been rounded already.
    allowed += _most_off(exact.abs() + allowed)
    found = torch.tensor(results[0][0])
    assert bool(((found - exact).abs() <= allowed * (1 + 1e-4)).all())
    assert all(total == results[0][0] for total, _ in results), "the same bits on every rank"


@pytest.mark.parametrize("kind", ["normal", "heavy", "zeros"])
@pytest.mark.parametrize(
    ("num_ranks", "size"), [(2, 1000), pytest.param(3, PIECE + 700, marks=pytest.mark.slow)]
)
def test_the_sum_and_the_rounding_errors_add_up_to_the_exact_sum(
    kind: str, num_ranks: int, size: int
) -> None:
    results = run_ranks(_summed, kind, size, world_size=num_ranks)
    exact = torch.stack([_addend(kind, size, rank) for rank in range(num_ranks)]).sum(0)
    lost = torch.tensor([result[1] for result in results]).sum(0)
    largest = exact.abs().amax().item()
    torch.testing.assert_close(
        torch.tensor(results[0][0]) + lost, exact, rtol=0, atol=1e-6 * largest
    )
    assert kind == "zeros" or lost.norm() > 0


def test_four_bits_are_the_nearest_power_of_two_of_the_largest() -> None:
    powers = torch.tensor([0.0] + [2.0**-k for k in range(6, -1, -1)])
    drawn = torch.rand(4, BLOCK, generator=torch.Generator().manual_seed(1)) ** 4
    drawn[:, 0] = 1.0
    signs = torch.tensor([1.0, -1.0]).repeat(BLOCK // 2)
    nearest = powers[(drawn.unsqueeze(2) - powers).abs().argmin(2)]
    # From nothing to the smallest power the border is where it is for all others, at 3/4.
    nearest[drawn < 0.75 * powers[1]] = 0.0
    found = FP4.unpacked(FP4.packed(drawn * signs * 3.0))
    torch.testing.assert_close(found, nearest * signs * 3.0)


def test_numbers_that_are_codes_lose_nothing() -> None:
    total, lost = run_ranks(_summed, "codes", 700, world_size=2)[1]
    torch.testing.assert_close(torch.tensor(total), _addend("codes", 700, 0), rtol=1e-6, atol=0)
    assert max(map(abs, lost)) < 1e-5


def test_a_number_takes_its_bits_and_its_part_of_a_scale() -> None:
    assert packed_bytes(2 * 10 * BLOCK, 2, FP4) == 20 * (BLOCK // 2 + 4)
    assert packed_bytes(1, 3, FP4) == 3 * (BLOCK // 2 + 4)
    assert packed_bytes(PIECE + 1, 2, FP4) == PIECE // 2 + PIECE // 64 + 2 * (BLOCK // 2 + 4)
