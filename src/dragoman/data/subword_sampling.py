"""Pieces split at random, anew in each epoch, so that a model learns a word in several spellings.

A piece is replaced by two pieces of the vocabulary that together spell it, as in StochasTok
(arXiv:2506.01687). It works on ids, so it suits BPE and Unigram alike and costs no second encoding.
It serves what BPE-dropout (Provilkov et al. 2020) and subword regularization (Kudo 2018) serve:
rare words and misspelt ones share pieces with words that the model knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np
from numpy.typing import NDArray

from dragoman.corpus.shards import EOS, gather_rows, id_dtype
from dragoman.corpus.subword import is_whole

if TYPE_CHECKING:
    from dragoman.corpus.vocabulary import Vocabulary

_SPACE: Final = "▁"


class Splits:
    """For each piece of a vocabulary, every pair of pieces that spells it.

    Only pieces of two letters and more are split: not what stands for other text, nor numbers.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        pieces = vocabulary.all_pieces()
        letters = vocabulary.num_letters
        parts = {
            piece: number
            for number, piece in enumerate(pieces)
            if number > EOS and not is_whole(piece) and (letters[number] or piece == _SPACE)
        }
        pairs: list[tuple[int, int]] = []
        counts = np.zeros(len(pieces), dtype=np.int64)
        for piece, number in parts.items():
            if letters[number] < 2:
                continue
            found = [
                (parts[piece[:cut]], parts[piece[cut:]])
                for cut in range(1, len(piece))
                if piece[:cut] in parts and piece[cut:] in parts
            ]
            pairs += found
            counts[number] = len(found)
        self.num_splits_V = counts
        self._first_V = np.cumsum(counts) - counts
        self._pairs = np.array(pairs, dtype=id_dtype(len(pieces))).reshape(-1, 2)

    def apply(
        self,
        ids: NDArray[np.integer],
        lengths: NDArray[np.integer],
        share: float,
        longest: int,
        random: np.random.Generator,
    ) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
        """Rows end to end with a share of their pieces split, and the lengths of these rows.

        A row that would get more than `longest` pieces stays as it is.
        """
        choices = self.num_splits_V[ids]
        drawn = random.random(len(ids))
        is_split = (drawn < share) & (choices > 0)
        rows = np.repeat(np.arange(len(lengths)), lengths)
        more = np.bincount(rows[is_split], minlength=len(lengths))
        more[lengths + more > longest] = 0
        is_split &= more[rows] > 0
        # A draw below the share, divided by the share, is uniform between 0 and 1.
        which = self._first_V[ids] + (drawn / share * choices).astype(np.int64)
        places = np.flatnonzero(is_split)
        changed = ids.copy()
        halves = self._pairs[which[places]]
        changed[places] = halves[:, 0]
        return np.insert(changed, places + 1, halves[:, 1]), lengths + more.astype(lengths.dtype)


@dataclass(frozen=True, slots=True)
class SampledPairs:
    """Some pairs with pieces split, in their order; a `loader.PairStore`."""

    source_ids: NDArray[np.integer]
    source_lengths: NDArray[np.integer]
    target_ids: NDArray[np.integer]
    target_lengths: NDArray[np.integer]

    def gather(
        self, indices: NDArray[np.int64]
    ) -> tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.integer], NDArray[np.integer]]:
        """The pairs at `indices`, as of any store."""
        source, target = self.source_lengths[indices], self.target_lengths[indices]
        source_starts = (np.cumsum(self.source_lengths) - self.source_lengths)[indices]
        target_starts = (np.cumsum(self.target_lengths) - self.target_lengths)[indices]
        return (
            gather_rows(self.source_ids, source_starts, source),
            source,
            gather_rows(self.target_ids, target_starts, target),
            target,
        )


@dataclass(frozen=True, slots=True)
class SubwordSampling:
    """Splits a share of the pieces of both sides.

    longest: pieces of the longest source and target of the training text; no row gets longer.
    """

    splits: tuple[Splits, Splits]
    share: float
    longest: tuple[int, int]
    seed: int

    @classmethod
    def of(
        cls,
        vocabularies: tuple[Vocabulary, Vocabulary],
        lengths: Sequence[NDArray[np.integer]],
        *,
        share: float,
        seed: int,
    ) -> Self:
        """For training text whose sources and targets have these lengths."""
        source, target = (Splits(vocabulary) for vocabulary in vocabularies)
        longest = tuple(int(of_side.max(initial=0)) for of_side in lengths)
        return cls((source, target), share, (longest[0], longest[1]), seed)

    def sampled(
        self,
        pairs: tuple[
            NDArray[np.integer], NDArray[np.integer], NDArray[np.integer], NDArray[np.integer]
        ],
        update_index: int,
    ) -> SampledPairs:
        """All pairs of an update, which every rank must give in the same order."""
        source_ids, source_lengths, target_ids, target_lengths = pairs
        random = np.random.default_rng([self.seed, update_index])
        source, target = (
            splits.apply(ids, lengths, self.share, longest, random)
            for splits, ids, lengths, longest in (
                (self.splits[0], source_ids, source_lengths, self.longest[0]),
                (self.splits[1], target_ids, target_lengths, self.longest[1]),
            )
        )
        return SampledPairs(*source, *target)
