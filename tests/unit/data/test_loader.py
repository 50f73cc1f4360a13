from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dragoman.corpus.shards import EOS
from dragoman.data.config import DataConfig
from dragoman.data.loader import BatchStream, PairStore, Stage, Update
from dragoman.data.sampler import Mixture
from memory_pairs import MemoryPairs, random_pairs

CPU = torch.device("cpu")
CONFIG = DataConfig(batch_tokens=512, accumulate=2, prefetch_batches=3)


GROUPED = DataConfig(batch_tokens=512, accumulate=2, length_groups=3, prefetch_batches=3)


def stream(
    pairs: PairStore,
    *,
    config: DataConfig = CONFIG,
    rank: int = 0,
    world_size: int = 1,
    start_update: int = 0,
    stages: Sequence[Stage] = (Stage(0, None),),
) -> BatchStream:
    return BatchStream(
        pairs,
        config,
        seed=5,
        rank=rank,
        world_size=world_size,
        start_update=start_update,
        device=CPU,
        stages=stages,
    )


def rows(update: Update) -> list[list[int]]:
    """The numbers of the pairs in each micro-batch of this rank, as MemoryPairs wrote them."""
    return [[int(row[0]) - EOS - 1 for row in b.source_BS] for b in update.micro_batches]


def test_an_epoch_holds_every_pair_once_and_is_followed_by_another() -> None:
    pairs = random_pairs(1000)
    with stream(pairs) as updates:
        for epoch in range(3):
            seen = []
            for position in range(updates.samplers[0].updates_per_epoch):
                update = next(updates)
                assert update.epoch == epoch
                assert (
                    update.update_index == epoch * updates.samplers[0].updates_per_epoch + position
                )
                seen += [index for batch in rows(update) for index in batch]
            assert sorted(seen) == list(range(1000))


@pytest.mark.parametrize("config", [CONFIG, GROUPED])
def test_resume_from_any_update_gives_the_rest_of_the_same_run(config: DataConfig) -> None:
    pairs = random_pairs(600)
    with stream(pairs, config=config) as updates:
        whole = [rows(update) for update in islice(updates, 40)]
        per_epoch = updates.samplers[0].updates_per_epoch
    assert per_epoch < 35
    for start in (1, per_epoch - 1, per_epoch, 35):
        with stream(pairs, config=config, start_update=start) as updates:
            assert [rows(update) for update in islice(updates, 40 - start)] == whole[start:]


def test_resume_in_a_stage_keeps_its_groups() -> None:
    pairs, stages = random_pairs(600), three_stages()
    with stream(pairs, config=GROUPED, stages=stages) as updates:
        whole = list(islice(updates, 70))
    assert {len(batch.groups) for one in whole[:-1] for batch in one.micro_batches} >= {3}
    with stream(pairs, config=GROUPED, stages=stages, start_update=30) as updates:
        for mine, known in zip(islice(updates, 40), whole[30:], strict=True):
            assert rows(mine) == rows(known)
            assert [one.groups for one in mine.micro_batches] == [
                one.groups for one in known.micro_batches
            ]


def three_stages() -> list[Stage]:
    """Stages of entries of 100 and 500 pairs: both as they are, half and half, the second alone."""
    entries = np.repeat(np.arange(2), [100, 500])
    return [
        Stage(0, None),
        Stage(23, Mixture(entries, (1.0, 1.0))),
        Stage(60, Mixture(entries, (0.0, 1.0))),
    ]


def test_each_stage_draws_from_its_own_mixture() -> None:
    with stream(random_pairs(600), stages=three_stages()) as updates:
        made = list(islice(updates, 100))
        per_epoch = [sampler.updates_per_epoch for sampler in updates.samplers]
    assert [update.update_index for update in made] == list(range(100))
    epochs = [update.epoch for update in made]
    first_epochs = [0, -(-23 // per_epoch[0]), -(-23 // per_epoch[0]) + -(-37 // per_epoch[1])]
    assert [epochs[0], epochs[23], epochs[60]] == first_epochs
    assert epochs == sorted(epochs)

    def drawn(first: int, last: int) -> NDArray[np.int64]:
        return np.array([pair for update in made[first:last] for b in rows(update) for pair in b])

    assert sorted(drawn(0, per_epoch[0])) == list(range(600))
    assert (drawn(23, 23 + per_epoch[1]) < 100).sum() == 300
    assert drawn(60, 100).min() == 100


@pytest.mark.parametrize("start", [1, 22, 23, 24, 59, 60, 61, 99])
def test_resume_in_any_stage_gives_the_rest_of_the_same_run(start: int) -> None:
    pairs, stages = random_pairs(600), three_stages()
    with stream(pairs, stages=stages) as updates:
        whole = [(update.epoch, rows(update)) for update in islice(updates, 110)]
    with stream(pairs, stages=stages, start_update=start) as updates:
        rest = [(update.epoch, rows(update)) for update in islice(updates, 110 - start)]
    assert rest == whole[start:]


def test_the_groups_of_a_micro_batch_are_each_of_like_length_and_differ() -> None:
    pairs = random_pairs(4000)
    with stream(pairs, config=GROUPED) as updates:
        per_epoch = updates.samplers[0].updates_per_epoch
        made = list(islice(updates, per_epoch))
    assert sorted(index for update in made for batch in rows(update) for index in batch) == [
        *range(4000)
    ]
    spreads, distances = [], []
    for update in made[:-1]:
        assert len(update.micro_batches) == 2
        for batch in update.micro_batches:
            parts = batch.split()
            assert len(parts) == 3
            assert all(part.target_BT.numel() <= 512 // 3 for part in parts)
            assert batch.num_cells == sum(part.num_cells for part in parts)
            means = [float(part.target_lengths_B.float().mean()) for part in parts]
            distances.append(max(means) - min(means))
            spreads += [
                int(part.target_lengths_B.max() - part.target_lengths_B.min()) for part in parts
            ]
    assert np.median(spreads) <= 4
    assert np.median(distances) > 10


@pytest.mark.parametrize("config", [CONFIG, GROUPED])
@pytest.mark.parametrize("world_size", [2, 3, 30])
def test_ranks_share_the_rows_of_the_same_global_batches(
    world_size: int, config: DataConfig
) -> None:
    pairs = random_pairs(400)
    with stream(pairs, config=config) as updates:
        whole = list(islice(updates, 12))
    by_rank = []
    for rank in range(world_size):
        with stream(pairs, config=config, rank=rank, world_size=world_size) as updates:
            by_rank.append(list(islice(updates, 12)))
    for position, update in enumerate(whole):
        parts = [ranks[position] for ranks in by_rank]
        for micro, indices in enumerate(rows(update)):
            dealt = [index for part in parts for index in rows(part)[micro]]
            assert sorted(dealt) == sorted(indices)
        batches = [batch for part in parts for batch in part.micro_batches]
        for part in parts:
            assert part.global_pairs == update.global_pairs == sum(len(b) for b in rows(update))
            assert part.global_target_tokens == sum(b.num_target_tokens for b in batches)
            assert part.global_source_tokens == sum(b.num_source_tokens for b in batches)
            assert part.global_cells == sum(b.num_cells for b in batches)


def test_no_rank_has_much_more_than_the_others_because_of_groups() -> None:
    """The rest of each group would always fall to the first ranks."""
    world_size = 16
    pairs = random_pairs(20_000)
    slowest = []
    for groups in (1, 4):
        config = DataConfig(batch_tokens=4096, length_groups=groups)
        tokens = []
        for rank in range(world_size):
            with stream(pairs, config=config, rank=rank, world_size=world_size) as updates:
                tokens.append(
                    [one.micro_batches[0].num_target_tokens for one in islice(updates, 20)]
                )
        by_update = np.array(tokens)
        slowest.append(float(np.mean(by_update.max(0) / by_update.mean(0))))
    assert slowest[1] < slowest[0] + 0.08


@dataclass(frozen=True)
class _TornPairs(MemoryPairs):
    """Pairs of which one cannot be read."""

    def gather(
        self, indices: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
        if 17 in indices:
            raise OSError("torn shard")
        return super().gather(indices)


def test_an_error_reaches_the_one_who_waits_for_the_batch() -> None:
    usual = random_pairs(500)
    with stream(_TornPairs(usual.source_lengths, usual.target_lengths)) as updates:
        with pytest.raises(OSError, match="torn shard"):
            list(islice(updates, updates.samplers[0].updates_per_epoch))
        with pytest.raises(OSError, match="torn shard"):
            next(updates)


@pytest.mark.parametrize("taken", [0, 1, 20])
def test_close_ends_both_threads_at_any_moment(taken: int) -> None:
    before = threading.active_count()
    updates = stream(random_pairs(300))
    for _ in range(taken):
        next(updates)
    updates.close()
    assert threading.active_count() == before


def test_no_more_updates_are_made_than_were_asked_for_ahead() -> None:
    pairs = random_pairs(5000)
    asked: list[int] = []

    @dataclass(frozen=True)
    class Counted(MemoryPairs):
        def gather(
            self, indices: NDArray[np.int64]
        ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
            asked.append(len(indices))
            return super().gather(indices)

    with stream(Counted(pairs.source_lengths, pairs.target_lengths)) as updates:
        next(updates)
        deadline = time.monotonic() + 20
        while len(asked) < 8 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
    # One taken and three ahead, of two micro-batches each.
    assert len(asked) == 8


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_for_a_gpu_arrive_there() -> None:
    pairs = random_pairs(200)
    device = torch.device("cuda", 0)
    with (
        stream(pairs) as on_cpu,
        BatchStream(
            pairs, CONFIG, seed=5, rank=0, world_size=1, start_update=0, device=device
        ) as on_gpu,
    ):
        for expected, update in islice(zip(on_cpu, on_gpu, strict=True), 5):
            for left, right in zip(expected.micro_batches, update.micro_batches, strict=True):
                assert right.source_BS.device == device
                assert torch.equal(left.target_BT, right.target_BT.cpu())
