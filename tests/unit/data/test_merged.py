"""Several batches as one update."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from dragoman.data.config import DataConfig
from dragoman.data.loader import BatchStream, Update, merged
from toy_task import ToyPairs


def stream(start: int) -> BatchStream:
    config = DataConfig(batch_tokens=None, batch_sentences=7, accumulate=2)
    device = torch.device("cpu")
    return BatchStream(
        ToyPairs(60), config, seed=1, rank=0, world_size=1, start_update=start, device=device
    )


def updates(start: int, every: int, count: int, *, max_steps: int = 100) -> list[Update]:
    with stream(start) as made:
        return list(islice(merged(made, every, max_steps=max_steps), count))


def test_groups_hold_every_batch_once_and_in_order() -> None:
    singles, groups = updates(0, 1, 9), updates(0, 3, 3)
    assert [(group.update_index, group.steps) for group in groups] == [(0, 3), (3, 3), (6, 3)]
    for number, group in enumerate(groups):
        parts = singles[3 * number : 3 * number + 3]
        batches = [batch for part in parts for batch in part.micro_batches]
        assert len(group.micro_batches) == len(batches)
        for ours, theirs in zip(group.micro_batches, batches, strict=True):
            assert torch.equal(ours.target_BT, theirs.target_BT)
        for name in ("target_tokens", "source_tokens", "pairs", "cells"):
            assert getattr(group, f"global_{name}") == sum(
                getattr(part, f"global_{name}") for part in parts
            )


@pytest.mark.parametrize(("start", "ends"), [(0, [4, 8, 10, 12]), (5, [8, 10, 12, 16])])
def test_groups_end_at_multiples_and_at_the_last_step(start: int, ends: list[int]) -> None:
    found = updates(start, 4, 4, max_steps=10)
    assert [group.update_index + group.steps for group in found] == ends
