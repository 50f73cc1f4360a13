"""Sums that travel as int8, against the sums themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from dragoman.distributed.int8_sum import BLOCK, PIECE, int8_all_reduce, packed_bytes
from dragoman.distributed.world import World
from ranks import run_ranks


def _addend(kind: str, size: int, rank: int) -> Tensor:
    drawn = torch.randn(size, generator=torch.Generator().manual_seed(rank))
    codes = drawn.mul(30).round().clamp(-127, 127)
    codes[::4] = 127
    return {
        "normal": drawn,
        "heavy": drawn**5 * 1e-6,
        "zeros": torch.zeros(size),
        "one rank": drawn * (rank == 1),
        "codes": codes * (rank == 0),
    }[kind]


def _summed(world: World, kind: str, size: int) -> Any:
    group = dist.new_group(list(range(world.world_size)))
    tensor = _addend(kind, size, world.rank)
    assert group is not None
    int8_all_reduce(tensor, group)
    return tensor.tolist()


def _half_scales(tensor: Tensor) -> Tensor:
    """Of each number, half the distance between two neighbouring codes of its block."""
    blocks = torch.nn.functional.pad(tensor, (0, -len(tensor) % BLOCK)).view(-1, BLOCK)
    halves = (blocks.abs().amax(1, keepdim=True) / 254).expand_as(blocks)
    return halves.flatten()[: len(tensor)]


@pytest.mark.parametrize("kind", ["normal", "heavy", "zeros", "one rank"])
@pytest.mark.parametrize(
    ("num_ranks", "size"), [(2, 5 * BLOCK), (3, 1000), (3, 1), (3, PIECE + 700)]
)
def test_no_number_is_off_by_more_than_its_scales_allow(
    kind: str, num_ranks: int, size: int
) -> None:
    results = run_ranks(_summed, kind, size, world_size=num_ranks)
    addends = [_addend(kind, size, rank) for rank in range(num_ranks)]
    exact = torch.stack(addends).sum(0)
    allowed = sum((_half_scales(one) for one in addends), start=torch.zeros(size))
    # The sum's own scale is that of what has been rounded already.
    allowed += _half_scales(exact.abs() + allowed)
    found = torch.tensor(results[0])
    assert bool(((found - exact).abs() <= allowed * (1 + 1e-4)).all())
    assert all(result == results[0] for result in results), "the same bits on every rank"


def test_numbers_that_are_codes_lose_nothing() -> None:
    assert run_ranks(_summed, "codes", 700, world_size=2)[1] == _addend("codes", 700, 0).tolist()


def test_a_number_takes_a_byte_and_its_part_of_a_scale() -> None:
    assert packed_bytes(2 * 10 * BLOCK, 2) == 20 * (BLOCK + 4)
    assert packed_bytes(1, 3) == 3 * (BLOCK + 4)
    assert packed_bytes(PIECE + 1, 2) == PIECE + PIECE // 64 + 2 * (BLOCK + 4)
