"""Which lines to translate first: those that teach the most about a wanted text.

Feature decay (Biçici and Yuret 2011; for neural models Poncelas et al. 2018). The features are
n-grams of one to three words. A line is worth

    scale * sum over its distinct features f of  sqrt(expected(f)) / (1 + known(f))

where known(f) is how many lines of the training text, and of the lines chosen so far, have f, and
expected(f) how many of the wanted text, and of as many lines like it. For a wanted text is a
sample: chosen for its own features alone, 5,000 captions had fewer of the new words of other
captions than random ones. As in relevance feedback (Rocchio 1971), the lines to choose from stand
for what is like it, each by the square of the share of its n-grams that the wanted text has.

As a line never becomes worth more (a submodular function: Kirchhoff and Bilmes 2014), the greedy
choice need look again at the best line alone (Minoux 1978).
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from heapq import heapify, heappop, heapreplace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.corpus.runs import near_key
from dragoman.corpus.shards import TokenRows
from dragoman.corpus.stand_ins import UNSPACED

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
_LONGEST: Final = 3
"""Words of the longest n-gram."""
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_UNSPACED: Final = re.compile(f"[{UNSPACED}]")
_KEPT_WORDS: Final = 300_000
_AT_ONCE: Final = 20_000
"""Lines whose n-grams are looked up together."""
_DIGITS: Final = 12
"""Decimals to which a worth is rounded: then the order of a sum does not decide between lines."""


def words_of(lines: Iterable[str]) -> TokenRows:
    """A 64-bit hash of each word of each line, without regard to case, numbers and punctuation.

    Where a script puts no space between words, each letter is one. What has no letter is no word.
    """
    hashes, lengths = array("Q"), array("i")
    for line in lines:
        spaced = line if line.isascii() else _UNSPACED.sub(r" \g<0> ", line)
        row = [*filter(None, map(_hash, spaced.split()))]
        hashes.extend(row)
        lengths.append(len(row))
    return TokenRows(np.array(hashes, np.uint64), np.array(lengths, np.int32))


@lru_cache(_KEPT_WORDS)
def _hash(word: str) -> int:
    letters = near_key(word)
    if not any(unicodedata.category(one)[0] in "LM" for one in letters):
        return 0
    return int.from_bytes(blake2b(letters.encode(), digest_size=8).digest(), "little")


def _ngrams(lines: TokenRows) -> Iterator[tuple[NDArray[np.uint64], Counts]]:
    """A hash of each n-gram and its row, for one word, two and three."""
    words = lines.ids.astype(np.uint64, copy=False)
    rows = np.repeat(np.arange(len(lines.lengths)), lines.lengths)
    hashes = words
    for order in range(_LONGEST):
        if order:
            hashes = hashes[:-1] * _FACTOR + words[order:]
        firsts = rows[: len(hashes)]
        is_whole = rows[order:] == firsts
        yield hashes[is_whole], firsts[is_whole]


class Ngrams:
    """The n-grams that a text has at least so often, numbered from 0.

    are_words: whether each is a single word.
    """

    def __init__(self, text: TokenRows, *, least: int = 1) -> None:
        counted = (np.unique(hashes, return_counts=True) for hashes, _ in _ngrams(text))
        kept = [hashes[counts >= least] for hashes, counts in counted]
        self._hashes = np.unique(np.concatenate(kept))
        self.are_words = np.isin(self._hashes, kept[0])

    def __len__(self) -> int:
        return len(self._hashes)

    def of(self, lines: TokenRows) -> TokenRows:
        """The distinct n-grams of each line, ascending."""
        rows = np.arange(len(lines.lengths))
        starts = range(0, max(1, len(rows)), _AT_ONCE)
        parts = [self._of(lines.take(rows[start : start + _AT_ONCE])) for start in starts]
        ids, lengths = ([getattr(part, name) for part in parts] for name in ("ids", "lengths"))
        return TokenRows(np.concatenate(ids), np.concatenate(lengths))

    def _of(self, lines: TokenRows) -> TokenRows:
        if not len(self):
            return TokenRows(np.empty(0, np.int32), np.zeros(len(lines.lengths), np.int32))
        found = []
        for hashes, rows in _ngrams(lines):
            places = np.minimum(np.searchsorted(self._hashes, hashes), len(self) - 1)
            is_known = self._hashes[places] == hashes
            found.append(rows[is_known] * len(self) + places[is_known])
        rows, ngrams = np.divmod(np.unique(np.concatenate(found)), len(self))
        lengths = np.bincount(rows, minlength=len(lines.lengths))
        return TokenRows(ngrams.astype(np.int32), lengths.astype(np.int32))


class NgramCounts(NamedTuple):
    """The n-grams of lines to choose from, and how many lines of two texts have each.

    rows: the distinct n-grams of each line. wanted, known: the wanted and the training text.
    are_words: whether each n-gram is a single word. expected: see above.
    """

    rows: TokenRows
    wanted: Counts
    known: Counts
    are_words: NDArray[np.bool_]
    expected: Floats


def expected_counts(rows: TokenRows, words: TokenRows, like: Counts, num_like: int) -> Floats:
    """How many lines of the wanted text, and of as many lines like it, have each n-gram.

    rows, words: of the lines to choose from. like: how many of the num_like wanted lines have each.
    """
    places = np.repeat(np.arange(len(rows.lengths)), rows.lengths)
    shared = np.bincount(places[like[rows.ids] > 0], minlength=len(rows.lengths))
    likeness = np.minimum(1, shared / np.maximum(3 * words.lengths - 3, 1)) ** 2
    share = likeness * (num_like / max(float(likeness.sum()), 1e-9))
    of_lines = np.bincount(rows.ids, weights=share[places], minlength=len(like))
    return (like + of_lines).astype(np.float64)


class Choice(NamedTuple):
    """A chosen line: its row, its worth, and the share of its n-grams that nothing had before."""

    row: int
    worth: float
    new: float


def choose(
    counts: NgramCounts,
    budget: int,
    *,
    scale: Floats,
    accepts: Callable[[int], bool] = lambda _: True,
) -> list[Choice]:
    """The lines that are worth most, each after those before it; of equal ones the first.

    scale: a factor for each line; one that is worth nothing is not chosen.
    accepts: called with each row that is about to be chosen; False leaves it out.
    """
    ngrams, known, weights = counts.rows, counts.known.copy(), np.sqrt(counts.expected)
    gains = weights / (1 + known)
    ends = np.cumsum(ngrams.lengths, dtype=np.int64)
    starts = ends - ngrams.lengths

    def worth(row: int) -> float:
        own = gains[ngrams.ids[starts[row] : ends[row]]]
        return round(float(own.sum() * scale[row]), _DIGITS)

    most = np.zeros(len(ends))
    filled = np.flatnonzero(ngrams.lengths)
    if len(filled):  # a sum in another order may be lower in its last digit
        sums = np.add.reduceat(gains[ngrams.ids], starts[filled]) * (1 + 1e-9)
        most[filled] = np.round(sums * scale[filled], _DIGITS)
    heap = [(-value, row) for row, value in enumerate(most.tolist()) if value > 0]
    heapify(heap)
    chosen: list[Choice] = []
    while heap and len(chosen) < budget:
        negative, row = heap[0]
        now = worth(row)
        if now < -negative:
            heapreplace(heap, (-now, row))
            continue
        heappop(heap)
        if accepts(row):
            own = ngrams.ids[starts[row] : ends[row]]
            chosen.append(Choice(row, now, float(np.mean(known[own] == 0))))
            known[own] += 1
            gains[own] = weights[own] / (1 + known[own])
    return chosen


class Coverage(NamedTuple):
    """N-grams of the wanted text that the training text lacks, and how many of them lines have.

    at_random: the expected number in as many lines drawn at random. in_all: those of all lines.
    """

    lacking: int
    chosen: int
    at_random: float
    in_all: int


def coverage(counts: NgramCounts, rows: Sequence[int]) -> tuple[Coverage, Coverage]:
    """How well these rows cover what is lacking: single words, and longer n-grams."""
    num_lines, num_ngrams = len(counts.rows.lengths), len(counts.known)
    in_all = np.bincount(counts.rows.ids, minlength=num_ngrams)
    in_chosen = np.bincount(counts.rows.take(np.array(rows, np.int64)).ids, minlength=num_ngrams)

    def of(lacking: NDArray[np.bool_]) -> Coverage:
        having = in_all[lacking]
        steps = np.arange(having.max(initial=0))
        # The probability that none of the lines which have it is drawn.
        missed = np.cumprod(np.maximum(num_lines - len(rows) - steps, 0) / (num_lines - steps))
        at_random = float((1 - np.concatenate([[1.0], missed])[having]).sum())
        found = [int(np.count_nonzero(one[lacking])) for one in (in_chosen, in_all)]
        return Coverage(len(having), found[0], at_random, found[1])

    lacking = (counts.known == 0) & (counts.wanted > 0)
    return of(lacking & counts.are_words), of(lacking & ~counts.are_words)
