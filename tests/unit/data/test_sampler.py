from __future__ import annotations

import hashlib
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dragoman.base.errors import CorpusError
from dragoman.data.config import DataConfig
from dragoman.data.sampler import EpochPlan, GlobalPosition, Mixture, Sampler, rank_rows
from memory_pairs import MemoryPairs, random_pairs

CONFIGS = {
    "tokens": DataConfig(batch_tokens=512),
    "sentences": DataConfig(batch_tokens=None, batch_sentences=32),
    "random": DataConfig(batch_tokens=None, batch_sentences=32, bucket=False),
    "random tokens": DataConfig(batch_tokens=512, bucket=False),
    "pools": DataConfig(batch_tokens=512, pool_pairs=300),
    "accumulate": DataConfig(batch_tokens=256, accumulate=3, length_groups=1),
    "multiple": DataConfig(batch_tokens=1024, length_multiple=8),
    "groups": DataConfig(batch_tokens=2048, accumulate=2, length_groups=4),
}


def sampler(pairs: MemoryPairs, config: DataConfig, *, seed: int = 7) -> Sampler:
    return Sampler(pairs.source_lengths, pairs.target_lengths, config, seed=seed)


def micro_batches(plan: EpochPlan) -> list[NDArray[np.integer]]:
    return [batch for update in range(plan.num_updates) for batch in plan.update(update)]


def widths(pairs: MemoryPairs, batch: NDArray[np.integer], multiple: int = 1) -> tuple[int, int]:
    source = int(pairs.source_lengths[batch].max()) + 1
    target = int(pairs.target_lengths[batch].max()) + 1
    return -(-source // multiple) * multiple, -(-target // multiple) * multiple


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 64])
def test_every_pair_exactly_once_per_epoch_on_any_number_of_ranks(
    name: str, world_size: int
) -> None:
    pairs = random_pairs(2003)
    planned = sampler(pairs, CONFIGS[name])
    for epoch in (0, 1, 5):
        rows = [
            rank_rows([batch], rank, world_size)[0]
            for batch in micro_batches(planned.epoch(epoch))
            for rank in range(world_size)
        ]
        assert sorted(np.concatenate(rows).tolist()) == list(range(2003))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_plan_depends_on_seed_and_epoch_and_on_nothing_else(name: str) -> None:
    pairs, config = random_pairs(1000), CONFIGS[name]

    def order(seed: int, epoch: int) -> list[int]:
        plan = sampler(pairs, config, seed=seed).epoch(epoch)
        return np.concatenate(micro_batches(plan)).tolist()  # type: ignore[no-any-return]

    fresh = order(3, 4)
    assert fresh == order(3, 4)
    after_other_epochs = sampler(pairs, config, seed=3)
    after_other_epochs.epoch(9)
    assert np.concatenate(micro_batches(after_other_epochs.epoch(4))).tolist() == fresh
    assert order(3, 5) != fresh
    assert order(2, 4) != fresh


@pytest.mark.parametrize(("groups", "digest"), [(1, "205e961b8d2297de"), (4, "972a0e7b80bf89a2")])
def test_the_plan_of_a_seed_never_changes(groups: int, digest: str) -> None:
    # A run that resumes on another version of NumPy or on another processor must go on as it was.
    pairs = MemoryPairs(
        np.arange(5000, dtype=np.int32) * 7919 % 60 + 1,
        np.arange(5000, dtype=np.int32) * 104729 % 50 + 1,
    )
    config = DataConfig(batch_tokens=1000, pool_pairs=2000, length_groups=groups)
    plan = sampler(pairs, config, seed=1).epoch(3)
    consumed = np.concatenate(micro_batches(plan)).astype("<i8")
    assert hashlib.sha256(consumed.tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize("name", CONFIGS)
def test_every_epoch_has_the_same_number_of_updates(name: str) -> None:
    planned = sampler(random_pairs(3000), CONFIGS[name])
    assert {planned.epoch(epoch).num_updates for epoch in range(4)} == {planned.updates_per_epoch}


def test_position_is_one_integer() -> None:
    planned = sampler(random_pairs(1000), CONFIGS["tokens"])
    per_epoch = planned.updates_per_epoch
    assert planned.position(0) == GlobalPosition(epoch=0, update=0)
    assert planned.position(per_epoch - 1) == GlobalPosition(epoch=0, update=per_epoch - 1)
    assert planned.position(3 * per_epoch + 2) == GlobalPosition(epoch=3, update=2)


@pytest.mark.parametrize(
    "name", ["tokens", "random tokens", "pools", "accumulate", "multiple", "groups"]
)
def test_no_batch_is_over_the_budget_and_none_could_take_another_row(name: str) -> None:
    pairs, config = random_pairs(3000), CONFIGS[name]
    assert config.batch_tokens is not None
    planned = sampler(pairs, config)
    most_cells = config.batch_tokens // planned.groups_per_batch
    assert planned.num_oversized == 0
    for epoch in (0, 1, 2, 7):  # later ones put other pairs of like length in the same places
        sizes = [
            len(batch) * max(widths(pairs, batch, config.length_multiple))
            for batch in micro_batches(planned.epoch(epoch))
        ]
        assert max(sizes) <= most_cells
        assert np.median(sizes) > most_cells - 2 * 64


def test_a_count_of_sentences_is_kept_but_for_the_last_batch() -> None:
    sizes = [len(b) for b in micro_batches(sampler(random_pairs(1000), CONFIGS["random"]).epoch(0))]
    assert sorted(sizes, reverse=True) == [32] * 31 + [8]


def test_accumulation_takes_several_micro_batches_and_the_rest_at_the_end() -> None:
    plan = sampler(random_pairs(1000), CONFIGS["accumulate"]).epoch(0)
    counts = [len(plan.update(update)) for update in range(plan.num_updates)]
    assert counts[:-1] == [3] * (len(counts) - 1)
    assert 1 <= counts[-1] <= 3
    with pytest.raises(IndexError):
        plan.update(plan.num_updates)


@pytest.mark.parametrize(
    ("config", "groups", "cells"),
    [
        (DataConfig(batch_tokens=4096), 4, 1024),
        (DataConfig(batch_tokens=4096, length_groups=9), 9, 455),
        # Each group has room for the longest pair, of 61 cells.
        (DataConfig(batch_tokens=200), 3, 66),
        (DataConfig(batch_tokens=121), 1, 121),
        (DataConfig(batch_tokens=30), 1, 30),
        (DataConfig(batch_sentences=32), 4, 8),
        (DataConfig(batch_sentences=33), 3, 11),
        (DataConfig(batch_sentences=7), 1, 7),
        (DataConfig(batch_sentences=2), 2, 1),
        (DataConfig(batch_tokens=4096, bucket=False), 1, 4096),
    ],
)
def test_a_micro_batch_has_groups_as_far_as_they_have_room(
    config: DataConfig, groups: int, cells: int
) -> None:
    pairs = random_pairs(3000)
    planned = sampler(pairs, config)
    assert planned.groups_per_batch == groups
    update = planned.epoch(0).update(1)
    assert len(update) == groups
    if config.batch_sentences is not None:
        assert [len(group) for group in update] == [cells] * groups
    elif cells > 61:
        assert max(len(group) * max(widths(pairs, group)) for group in update) <= cells


def test_a_pair_above_the_budget_is_a_batch_of_its_own_and_is_counted() -> None:
    usual = random_pairs(300)
    pairs = MemoryPairs(
        np.append(usual.source_lengths, np.array([700, 3], np.int32)),
        np.append(usual.target_lengths, np.array([2, 70_000], np.int32)),
    )
    planned = sampler(pairs, DataConfig(batch_tokens=512))
    assert planned.num_oversized == 2
    fits = DataConfig(batch_tokens=701)  # cells of the longer pair, whose end takes one
    assert sampler(pairs, fits).num_oversized == 1
    assert sampler(pairs, CONFIGS["sentences"]).num_oversized == 0, "there is not a budget"
    batches = micro_batches(planned.epoch(0))
    assert [300] in [b.tolist() for b in batches]
    assert [301] in [b.tolist() for b in batches]
    assert sorted(np.concatenate(batches).tolist()) == list(range(302))


def _padding(pairs: MemoryPairs, config: DataConfig) -> tuple[float, float]:
    """Share of padding in the cells of the source and of the target side."""
    batches = micro_batches(sampler(pairs, config).epoch(0))
    rows = np.array([len(batch) for batch in batches])
    source, target = np.array([widths(pairs, batch) for batch in batches]).T
    num_pairs = len(pairs.source_lengths)
    return (
        1 - float((pairs.source_lengths.sum() + num_pairs) / (rows * source).sum()),
        1 - float((pairs.target_lengths.sum() + num_pairs) / (rows * target).sum()),
    )


def test_bucketing_pads_little_on_both_sides() -> None:
    pairs = random_pairs(100_000, longest=100)
    source, target = _padding(pairs, DataConfig(batch_tokens=4096))
    assert source < 0.06
    assert target < 0.03
    # In 60 large batches each length can have few of its own, the lengths of both sides in none.
    source, target = _padding(pairs, DataConfig(batch_tokens=50_000))
    assert source < 0.25
    assert target < 0.12


def test_the_pairs_of_a_batch_are_drawn_anew_in_every_epoch() -> None:
    planned = sampler(random_pairs(20_000), CONFIGS["tokens"])
    first, second = (
        {i: set(batch.tolist()) for batch in micro_batches(planned.epoch(e)) for i in batch}
        for e in (0, 1)
    )
    kept = np.mean([len(first[i] & second[i]) / len(first[i]) for i in range(0, 20_000, 50)])
    assert kept < 0.6


def test_batches_of_all_lengths_follow_each_other_at_random() -> None:
    pairs = random_pairs(50_000)
    batches = micro_batches(sampler(pairs, CONFIGS["tokens"]).epoch(0))
    means = np.array([pairs.target_lengths[batch].mean() for batch in batches])
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.1


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90)), min_size=1, max_size=120),
    budget=st.integers(1, 400),
    pool=st.integers(1, 150),
    multiple=st.sampled_from([1, 3, 8]),
    bucket=st.booleans(),
)
def test_no_pair_of_any_length_is_lost(
    lengths: list[tuple[int, int]], budget: int, pool: int, multiple: int, bucket: bool
) -> None:
    pairs = MemoryPairs(*np.array(lengths, dtype=np.int32).T)
    config = DataConfig(
        batch_tokens=budget, pool_pairs=pool, length_multiple=multiple, bucket=bucket
    )
    batches = micro_batches(sampler(pairs, config).epoch(2))
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(widths(pairs, batch, multiple)) <= budget


SIZES = (400, 1900, 3)
WEIGHTS = {
    "more of the small": (3.0, 1.0, 0.0),
    "a tenth of the large": (400.0, 190.0, 3.0),
    "all of the rare": (0.0, 1.0, 1.0),
    "one": (0.0, 1.0, 0.0),
    "as they are": (400.0, 1900.0, 3.0),
}


def mixed(config: DataConfig, weights: tuple[float, ...]) -> tuple[MemoryPairs, Mixture, Sampler]:
    """Pairs of three entries that are mixed up; those of the second are longer."""
    entries = np.random.default_rng(5).permutation(np.repeat(np.arange(3), SIZES))
    usual = random_pairs(len(entries))
    longer = 1 + (entries == 1)
    pairs = MemoryPairs(
        (usual.source_lengths * longer).astype(np.int32),
        (usual.target_lengths * longer).astype(np.int32),
    )
    mixture = Mixture(entries, weights)
    planned = Sampler(
        pairs.source_lengths, pairs.target_lengths, config, seed=7, mixture=mixture, stage=1
    )
    return pairs, mixture, planned


def drawn_pairs(planned: Sampler, epoch: int) -> NDArray[np.integer]:
    return np.concatenate(micro_batches(planned.epoch(epoch)))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
def test_every_epoch_of_a_mixture_has_the_shares_of_the_weights(
    name: str, weights: tuple[float, ...]
) -> None:
    _, mixture, planned = mixed(CONFIGS[name], weights)
    total = sum(size for size, weight in zip(SIZES, weights, strict=True) if weight)
    for epoch in (0, 1, 7):
        counts = np.bincount(mixture.entries[drawn_pairs(planned, epoch)], minlength=3)
        assert counts.sum() == total
        assert np.abs(counts - np.array(weights) / sum(weights) * total).max() < 1
        assert planned.epoch(epoch).num_updates == planned.updates_per_epoch


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
def test_each_pair_of_an_entry_is_drawn_once_before_any_is_drawn_again(
    weights: tuple[float, ...],
) -> None:
    _, mixture, planned = mixed(CONFIGS["tokens"], weights)
    counts = np.zeros(sum(SIZES), dtype=np.int64)
    for epoch in range(25):
        counts += np.bincount(drawn_pairs(planned, epoch), minlength=len(counts))
        for entry, weight in enumerate(weights):
            of_entry = counts[mixture.entries == entry]
            assert (of_entry.max() > 0) == (weight > 0)
            assert of_entry.max() - of_entry.min() <= 2  # places of an epoch are two turns at most
    turns = 25 * int((mixture.entries[drawn_pairs(planned, 0)] == 1).sum()) / SIZES[1]
    assert counts[mixture.entries == 1].mean() == pytest.approx(turns)


@pytest.mark.parametrize(
    "name", ["tokens", "random tokens", "pools", "accumulate", "multiple", "groups"]
)
def test_no_batch_of_a_mixture_is_over_the_budget(name: str) -> None:
    config = CONFIGS[name]
    assert config.batch_tokens is not None
    for weights in WEIGHTS.values():
        pairs, _, planned = mixed(config, weights)
        assert planned.num_oversized == 0
        sizes = [
            len(batch) * max(widths(pairs, batch, config.length_multiple))
            for epoch in (0, 1, 2, 11)
            for batch in micro_batches(planned.epoch(epoch))
        ]
        assert max(sizes) <= config.batch_tokens // planned.groups_per_batch


def test_the_shares_hold_at_any_time_though_one_entry_is_of_longer_pairs() -> None:
    _, mixture, planned = mixed(DataConfig(batch_tokens=128), (1.0, 1.0, 0.0))

    def deviation(batches: list[NDArray[np.integer]]) -> float:
        """The error of the share of an entry, over 64 batches in a row."""
        parts = [np.concatenate(batches[i : i + 64]) for i in range(0, len(batches) - 64, 64)]
        return float(np.std([(mixture.entries[part] == 0).mean() for part in parts]))

    ours, at_random = [], []
    for epoch in range(6):
        batches = micro_batches(planned.epoch(epoch))
        shuffled = np.random.default_rng(epoch).permutation(len(batches))
        ours.append(deviation(batches))
        at_random.append(deviation([batches[i] for i in shuffled]))
    assert np.mean(ours) < 0.75 * np.mean(at_random)


def test_entries_without_pairs_are_refused() -> None:
    with pytest.raises(CorpusError, match="no pair is left of the entries"):
        Mixture(np.zeros(5, dtype=np.int64), (0.0, 1.0)).parts()


@pytest.mark.parametrize("size", [1, 10])
def test_few_pairs_of_a_large_weight_are_drawn_at_once(size: int) -> None:
    pairs = random_pairs(60_000 + size)
    mixture = Mixture(np.repeat(np.arange(2), [size, 60_000]), (9.0, 1.0))
    planned = Sampler(
        pairs.source_lengths, pairs.target_lengths, CONFIGS["tokens"], seed=7, mixture=mixture
    )
    began = time.process_time()
    counts = np.bincount(drawn_pairs(planned, 3), minlength=len(mixture.entries))
    assert time.process_time() - began < 5  # 0.3 s; a turn at a time 54,000 times as much
    assert counts[:size].sum() == pytest.approx(0.9 * (60_000 + size), abs=1)
    assert counts[:size].max() - counts[:size].min() <= 2


def test_a_mixture_of_all_pairs_draws_the_same_pairs_as_no_mixture() -> None:
    pairs, mixture, planned = mixed(CONFIGS["tokens"], (0.0, 1.0, 0.0))
    assert mixture.parts()[1][1] == SIZES[1]
    for epoch in (0, 4):
        chosen = np.sort(drawn_pairs(planned, epoch))
        assert chosen.tolist() == np.flatnonzero(mixture.entries == 1).tolist()
    one = Sampler(pairs.source_lengths, pairs.target_lengths, CONFIGS["tokens"], seed=7)
    everything = Mixture(np.zeros(sum(SIZES), dtype=np.int64), (2.0,))
    same = Sampler(
        pairs.source_lengths, pairs.target_lengths, CONFIGS["tokens"], seed=7, mixture=everything
    )
    assert drawn_pairs(one, 2).tolist() == drawn_pairs(same, 2).tolist()
