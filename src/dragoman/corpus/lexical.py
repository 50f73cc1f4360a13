"""Whether the sides of a pair translate each other, piece by piece.

IBM Model 1 (Brown et al. 1993, section 4.1) of the corpus itself, in both directions: p(t | s) that
the piece s of one side is translated by the piece t of the other, learnt by expectation
maximisation without any alignment. The gain of a pair is the mean over the pieces t of a side of

    ln (p(t | other side) / p(t)),    p(t | other side) = mean of p(t | s) over its pieces and none

in nats per piece, in the worse direction. It is 0 or less if the sides have nothing to do with each
other, because then the other side predicts a piece no better than its frequency does. A wrong pair
must not support itself: two pieces count only if they co-occur in two pairs, and in the end one
co-occurrence is subtracted from their count (absolute discounting, Ney et al. 1994).

Pieces are those of the subword model, the distinct ones among the first 80 of each side; so no
language is special, and the tables are bounded by the vocabulary. Each translation direction has a
table of its own: otherwise a source would seem to predict a target merely by its language.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from dragoman.base.files import whole_file
from dragoman.corpus.filters import Scores
from dragoman.corpus.shards import BOS, TokenRows, save_array

SAMPLE_PAIRS: Final = 100_000
SAMPLE_RANGE_BYTES: Final = 1 << 19
LEAST_PAIRS: Final = 5_000
"""With fewer, many good pairs seem to gain nothing."""
ITERATIONS: Final = 4
_NONE: Final = BOS
"""Represents "no piece of the other side"; no row contains it."""
_MOST_PIECES: Final = 80
_DISCOUNT: Final = 1.0
_FLOOR: Final = 1e-3
"""Share of a piece's own frequency in its probability, so that none is 0."""
_LOWEST, _HIGHEST = -3.0, 6.0
"""Bounds on the gain of one piece."""
PieceKeys = NDArray[np.int64]
Weights = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Counts:
    """Expected counts over some pairs: how often pieces translate each other.

    forward, reverse: one value for each key of the table.
    source, target: the number of pairs with each piece.
    """

    forward: Weights
    reverse: Weights
    source: NDArray[np.int64]
    target: NDArray[np.int64]

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.forward + other.forward,
            self.reverse + other.reverse,
            self.source + other.source,
            self.target + other.target,
        )


@dataclass(frozen=True, slots=True)
class LexicalTable:
    """p(target piece | source piece) and the reverse, for pieces that co-occur often enough.

    keys: source piece times the size of the target vocabulary plus target piece, ascending.
    forward, reverse: a probability for each key.
    source, target: p(piece) of each piece.
    """

    keys: PieceKeys
    forward: Weights
    reverse: Weights
    source: Weights
    target: Weights

    @classmethod
    def uniform(cls, keys: PieceKeys, *, vocab_sizes: tuple[int, int]) -> Self:
        """The table before training."""
        ones = np.ones(len(keys))
        source, target = (np.full(size, 1 / size) for size in vocab_sizes)
        return cls(keys, ones, ones, source, target)

    @classmethod
    def of(cls, keys: PieceKeys, counts: Counts, *, last: bool) -> Self:
        """The table that makes these counts likeliest. last: discount them."""
        discount = _DISCOUNT if last else 0.0
        of_source, of_target = np.divmod(keys, len(counts.target))
        return cls(
            keys,
            _shares(counts.forward, of_source, len(counts.source), discount),
            _shares(counts.reverse, of_target, len(counts.target), discount),
            counts.source / max(1, counts.source.sum()),
            counts.target / max(1, counts.target.sum()),
        )

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The table that `save` wrote."""
        return cls(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in cls.__slots__))

    def save(self, folder: Path) -> None:
        """Write each array into a file."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in self.__slots__:
            with whole_file(folder / f"{name}.npy") as file:
                save_array(file, getattr(self, name))

    def counts(self, sources: TokenRows, targets: TokenRows) -> Counts:
        """How often pieces translate each other in these pairs: the expectation step."""
        found = _CoOccurrences.of(sources, targets)
        expected: list[Weights] = []
        for side, probabilities in (
            (found.targets, self.forward),
            (found.sources, self.reverse),
        ):
            places, known = self._find(side.keys(len(self.target)))
            weights = np.where(known, probabilities[places], 0.0)
            sums = np.maximum(np.add.reduceat(weights, side.starts), 1e-12)
            weights /= np.repeat(sums, side.sizes)
            counts = np.bincount(places[known], weights[known], minlength=len(self.keys))
            expected.append(counts.astype(np.float64))
        return Counts(
            expected[0],
            expected[1],
            np.bincount(found.sources.pieces, minlength=len(self.source)),
            np.bincount(found.targets.pieces, minlength=len(self.target)),
        )

    def gains(self, sources: TokenRows, targets: TokenRows) -> Scores:
        """The gain of each pair in its worse direction, in nats per piece."""
        found = _CoOccurrences.of(sources, targets)
        gains = []
        for side, probabilities, frequencies in (
            (found.targets, self.forward, self.target),
            (found.sources, self.reverse, self.source),
        ):
            places, known = self._find(side.keys(len(self.target)))
            weights = np.where(known, probabilities[places], 0.0)
            likelihoods = np.add.reduceat(weights, side.starts) / side.sizes
            alone = np.maximum(frequencies[side.pieces], 1e-12)
            gain = np.log((likelihoods + _FLOOR * alone) / (alone * (1 + _FLOOR)))
            sums = np.bincount(
                side.rows, np.clip(gain, _LOWEST, _HIGHEST), minlength=len(sources.lengths)
            )
            gains.append(sums / np.maximum(np.bincount(side.rows, minlength=len(sums)), 1))
        return np.minimum(*gains)

    def probabilities(
        self, sources: NDArray[np.int64], targets: NDArray[np.int64]
    ) -> tuple[Weights, Weights]:
        """p(target | source) and p(source | target) of each of these pieces with each; 0 if they
        are not in the table. Shape (sources, targets)."""
        places, known = self._find(sources[:, None] * len(self.target) + targets[None, :])
        forward, reverse = self.forward[places], self.reverse[places]
        return np.where(known, forward, 0.0), np.where(known, reverse, 0.0)

    def _find(self, keys: PieceKeys) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The positions of keys in the table, and whether they are in it."""
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return places, self.keys[places] == keys


def met_keys(
    sources: TokenRows, targets: TokenRows, *, target_vocab_size: int
) -> tuple[PieceKeys, NDArray[np.int64]]:
    """The keys of pieces that co-occur, ascending, and the number of pairs in which each occurs."""
    found = _CoOccurrences.of(sources, targets)
    with_none = np.concatenate(
        [
            found.targets.keys(target_vocab_size),
            found.sources.pieces * target_vocab_size + _NONE,
        ]
    )
    return np.unique(with_none, return_counts=True)


class OftenMet:
    """Finds the keys that occur in two pairs or more, from the results of `met_keys` for parts of a
    corpus."""

    def __init__(self) -> None:
        self._merged = (np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._waiting: list[tuple[PieceKeys, NDArray[np.int64]]] = []

    def add(self, keys: PieceKeys, counts: NDArray[np.int64]) -> None:
        """Add the result for one part."""
        self._waiting.append((keys, counts))
        if sum(len(other) for other, _ in self._waiting) > len(self._merged[0]):
            self._merge()  # sorting all is worth it

    def keys(self) -> PieceKeys:
        """The keys, ascending."""
        self._merge()
        keys, counts = self._merged
        return keys[counts >= 2]

    def _merge(self) -> None:
        self._merged = _merged([self._merged, *self._waiting])
        self._waiting = []


def _merged(
    parts: list[tuple[PieceKeys, NDArray[np.int64]]],
) -> tuple[PieceKeys, NDArray[np.int64]]:
    keys = np.concatenate([part[0] for part in parts])
    counts = np.concatenate([part[1] for part in parts])
    if not len(keys):
        return keys, counts
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    return keys[starts], np.add.reduceat(counts[order], starts)


@dataclass(frozen=True, slots=True)
class _Side:
    """The distinct pieces of one side of some pairs, each with all pieces of the other, and none.

    rows, pieces: the row and the id of each piece of this side, in the order of rows.
    others: pieces of the other side; those for pieces[i] are the sizes[i] from starts[i] on.
    """

    rows: NDArray[np.int64]
    pieces: NDArray[np.int64]
    others: NDArray[np.int64]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    is_source: bool

    @classmethod
    def of(cls, ours: NDArray[np.int64], theirs: NDArray[np.int64], *, is_source: bool) -> Self:
        """The pieces of one side. ours, theirs: row * 2^32 + piece, ascending."""
        rows, pieces = np.divmod(ours, 1 << 32)
        with_none = np.unique(np.concatenate([theirs, (rows << 32) + _NONE]))
        first = np.searchsorted(with_none, rows << 32)
        sizes = np.searchsorted(with_none, (rows + 1) << 32) - first
        starts = np.cumsum(sizes) - sizes
        places = np.arange(sizes.sum()) + np.repeat(first - starts, sizes)
        return cls(rows, pieces, with_none[places] & 0xFFFFFFFF, starts, sizes, is_source)

    def keys(self, target_vocab_size: int) -> PieceKeys:
        ours = np.repeat(self.pieces, self.sizes)
        source, target = (ours, self.others) if self.is_source else (self.others, ours)
        return source * target_vocab_size + target


@dataclass(frozen=True, slots=True)
class _CoOccurrences:
    """The co-occurrences of source and target pieces in some pairs, listed from each side."""

    sources: _Side
    targets: _Side

    @classmethod
    def of(cls, sources: TokenRows, targets: TokenRows) -> Self:
        source, target = _distinct(sources), _distinct(targets)
        return cls(
            _Side.of(source, target, is_source=True), _Side.of(target, source, is_source=False)
        )


def _distinct(rows: TokenRows) -> NDArray[np.int64]:
    """row * 2^32 + piece for the distinct pieces of each row, ascending."""
    rows = rows.truncate(_MOST_PIECES)
    numbers = np.repeat(np.arange(len(rows.lengths), dtype=np.int64), rows.lengths)
    return np.unique((numbers << 32) + rows.ids)


def _shares(counts: Weights, of: NDArray[np.int64], size: int, discount: float) -> Weights:
    """Each count, less the discount, as a share of all counts with the same number in `of`."""
    sums = np.bincount(of, counts, minlength=size)
    return np.maximum(counts - discount, 0.0) / np.maximum(sums[of], 1e-12)
