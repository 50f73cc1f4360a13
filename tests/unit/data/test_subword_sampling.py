"""Pieces split at random: the text stays, and so does the update on any number of ranks."""

from __future__ import annotations

from functools import cache
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dragoman.corpus.config import SubwordConfig
from dragoman.corpus.normalize import normalize
from dragoman.corpus.shards import EOS
from dragoman.corpus.subword import Subword, count_words, train_on_words
from dragoman.data.config import DataConfig
from dragoman.data.loader import BatchStream, Update
from dragoman.data.subword_sampling import SampledPairs, Splits, SubwordSampling
from real_text import real_lines

Kind = Literal["bpe", "unigram"]
SHARE = 0.2


@cache
def vocabulary(kind: Kind) -> Subword:
    text = normalize("\n".join([*real_lines("valid", "en"), *real_lines("valid", "de")]))
    config = SubwordConfig(vocab_size=1000, kind=kind)
    return Subword.parse(
        train_on_words(count_words(text.split("\n")), config), place=Path("source.model")
    )


def packed(rows: list[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    return np.concatenate([np.array(row) for row in rows]), np.array([*map(len, rows)], np.int32)


@cache
def store(kind: Kind) -> SampledPairs:
    """Real pairs, encoded."""
    sides = [
        packed(vocabulary(kind).encode(real_lines("valid", side)[:300])) for side in ("en", "de")
    ]
    return SampledPairs(*sides[0], *sides[1])


def sampling(kind: Kind, share: float = SHARE, seed: int = 1) -> SubwordSampling:
    pairs = store(kind)
    return SubwordSampling.of(
        (vocabulary(kind), vocabulary(kind)),
        (pairs.source_lengths, pairs.target_lengths),
        share=share,
        seed=seed,
    )


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_text_stays_and_a_share_of_its_pieces_is_split(kind: Kind) -> None:
    subword, pairs = vocabulary(kind), store(kind)
    splits = Splits(subword)
    ids, lengths = pairs.source_ids, pairs.source_lengths
    longest = int(lengths.max())
    random = np.random.default_rng(3)
    new_ids, new_lengths = splits.apply(ids, lengths, SHARE, longest, random)
    rows = np.split(new_ids, np.cumsum(new_lengths)[:-1])
    before = np.split(ids, np.cumsum(lengths)[:-1])
    assert subword.decode([row.tolist() for row in rows]) == subword.decode(
        [row.tolist() for row in before]
    )
    assert new_lengths.max() <= longest
    can_split = int((splits.num_splits_V[ids] > 0).sum())
    assert can_split > 0.3 * len(ids)
    assert len(new_ids) - len(ids) == pytest.approx(SHARE * can_split, rel=0.15)
    unlike = [a.tolist() for a, b in zip(rows, before, strict=True) if len(a) != len(b)]
    assert len(unlike) > 0.5 * len(rows)
    _, more = splits.apply(ids, lengths, SHARE, longest, random)
    assert (more != new_lengths).any(), "each draw is another one"


def test_a_split_is_one_of_all_with_equal_chances() -> None:
    subword = vocabulary("bpe")
    splits = Splits(subword)
    pieces = subword.all_pieces()
    number = int(splits.num_splits_V.argmax())
    num_splits = int(splits.num_splits_V[number])
    ids = np.full(20_000, number)
    lengths = np.ones(20_000, np.int32)
    found, _ = splits.apply(ids, lengths, 0.5, 2, np.random.default_rng(0))
    halves = found[found != number].reshape(-1, 2).tolist()
    counts = {pair: halves.count([*pair]) for pair in {tuple(pair) for pair in halves}}
    assert all(pieces[left] + pieces[right] == pieces[number] for left, right in counts)
    assert len(counts) == num_splits > 1
    assert min(counts.values()) > 0.8 * len(halves) / num_splits


def test_what_stands_for_other_text_is_kept_whole() -> None:
    text = normalize("\n".join(real_lines("valid", "en")))
    config = SubwordConfig(vocab_size=700)
    content = train_on_words(count_words(text.split("\n")), config, tokens=["<2de>"])
    subword = Subword.parse(content, place=Path("source.model"))
    splits = Splits(subword)
    for number, piece in enumerate(subword.all_pieces()):
        if number <= EOS or piece == "<2de>" or not any(map(str.isalpha, piece)):
            assert splits.num_splits_V[number] == 0


def updates(
    rank: int = 0, world_size: int = 1, start_update: int = 0, count: int = 12
) -> list[Update]:
    stream = BatchStream(
        store("bpe"),
        DataConfig(batch_tokens=512, accumulate=2, length_groups=2),
        seed=5,
        rank=rank,
        world_size=world_size,
        start_update=start_update,
        device=torch.device("cpu"),
        sampling=sampling("bpe"),
    )
    with stream:
        return [*islice(stream, count)]


def rows_of(several: list[Update]) -> list[list[tuple[list[int], list[int]]]]:
    """The rows of each update, in an order of their own."""
    return [
        sorted(
            (source[: int(s)].tolist(), target[: int(t)].tolist())
            for batch in update.micro_batches
            for source, target, s, t in zip(
                batch.source_BS,
                batch.target_BT,
                batch.source_lengths_B,
                batch.target_lengths_B,
                strict=True,
            )
        )
        for update in several
    ]


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_the_rows_of_one(world_size: int) -> None:
    alone = updates()
    of_ranks = [updates(rank, world_size) for rank in range(world_size)]
    together = [
        sorted(row for rows in same for row in rows)
        for same in zip(*map(rows_of, of_ranks), strict=True)
    ]
    assert together == rows_of(alone)
    for same in zip(alone, *of_ranks, strict=True):
        assert len({update.global_target_tokens for update in same}) == 1
        assert len({update.global_source_tokens for update in same}) == 1
    for update in alone:
        own = sum(batch.num_target_tokens for batch in update.micro_batches)
        assert update.global_target_tokens == own


def test_an_epoch_splits_anew_and_a_resumed_run_alike() -> None:
    per_epoch = 1 + max(u.update_index for u in updates(count=40) if u.epoch == 0)
    several = updates(count=per_epoch + 4)
    epochs = [
        rows_of([u for u in updates(count=2 * per_epoch) if u.epoch == epoch]) for epoch in (0, 1)
    ]
    first, second = (sorted(row for rows in epoch for row in rows) for epoch in epochs)
    assert len(first) == len(second) == 300
    assert sum(row in second for row in first) < 30
    resumed = updates(start_update=per_epoch + 1, count=3)
    assert rows_of(resumed) == rows_of(several[per_epoch + 1 :])
