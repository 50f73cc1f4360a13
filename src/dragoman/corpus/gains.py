"""How well the sentences of two documents predict each other's words, for aligning them.

The gain of a bead in one direction is ln (p(words of one side | the other side) / p(words)), in
nats, by IBM Model 1 (`corpus.lexical`), as in Moore (2002). A word counts by its first five letters
without regard to case, so that its inflected forms are one; where a script puts no space between
words, each two neighbouring letters are one.
Before anything is learnt, and for words that were not seen often enough, a word translates itself:
numbers, names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dragoman.corpus.align import Band, Ends, Floats
from dragoman.corpus.lexical import (
    ITERATIONS,
    Counts,
    LexicalTable,
    OftenMet,
    met_keys,
)
from dragoman.corpus.shards import BOS, EOS, TokenRows
from dragoman.corpus.stand_ins import UNSPACED

_WORD: Final = re.compile(rf"[{UNSPACED}]+|[^\W_{UNSPACED}]+")
_UNSPACED: Final = re.compile(rf"[{UNSPACED}]{{3,}}")
_LETTERS: Final = 5
_ITSELF: Final = 0.5
"""p(word | the same word) of one that the table has not."""
_LEAST: Final = 0.01
"""Links of lower probability are left out: they say little, and there are many."""
_FLOOR: Final = 1e-3
_LOWEST: Final = -3.0
_AT_ONCE: Final = 1000
"""Pairs whose co-occurrences are held in memory at once."""
Words = list[NDArray[np.int64]]
"""The distinct words of each sentence, ascending."""


class Numbers:
    """Numbers the words of one language, above the ids that are special in a lexical table."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}
        self._counts = [0] * (EOS + 1)

    def words(self, sentences: Iterable[str]) -> Words:
        """The numbers of the words of each sentence."""
        rows = []
        for text in sentences:
            row = sorted({self.of.setdefault(one, len(self.of) + EOS + 1) for one in units(text)})
            self._counts += [0] * (len(self.of) + EOS + 1 - len(self._counts))
            for word in row:
                self._counts[word] += 1
            rows.append(np.array(row, np.int64))
        return rows

    def shares(self) -> Floats:
        """p(word) of each word."""
        return np.array(self._counts, float) / max(1, sum(self._counts))


def units(text: str, *, letters: int = _LETTERS) -> list[str]:
    """The beginnings of the words of a text, and its numbers; or pairs of letters if unspaced."""
    found = []
    for word in _WORD.findall(text.casefold()):
        if _UNSPACED.match(word):
            found += [word[place : place + 2] for place in range(len(word) - 1)]
        else:
            found.append(word if word[0].isdigit() else word[:letters])
    return found


@dataclass(frozen=True, slots=True)
class Links:
    """p(word | other) of the words of one side, where it is not small.

    others[starts[w]:starts[w + 1]] are the words that may be translated by w, shares their p(w |
    other). none: p(w | no word). alone: p(w).
    """

    others: Ends
    shares: Floats
    starts: Ends
    none: Floats
    alone: Floats

    @classmethod
    def of(cls, ours: Ends, others: Ends, shares: Floats, alone: Floats) -> Links:
        """From pairs of words with their probabilities."""
        none = np.zeros(len(alone))
        is_none = others == BOS
        none[ours[is_none]] = shares[is_none]
        kept = np.flatnonzero(~is_none & (shares >= _LEAST))
        kept = kept[np.argsort(ours[kept], kind="stable")]
        starts = np.searchsorted(ours[kept], np.arange(len(alone) + 1))
        return cls(others[kept], shares[kept], starts, none, alone)


Lexicon = tuple[Links, Links]
"""Links of the words of sources, and of those of targets."""


def learn_lexicon(numbers: tuple[Numbers, Numbers], pairs: tuple[Words, Words]) -> Lexicon:
    """The lexicon of pairs of sentences; with none, each word translates itself alone."""
    alone = [side.shares() for side in numbers]
    sizes = len(alone[0]), len(alone[1])
    parts = [
        tuple(_rows(side[start : start + _AT_ONCE]) for side in pairs)
        for start in range(0, len(pairs[0]), _AT_ONCE)
    ]
    met = OftenMet()
    for source, target in parts:
        met.add(*met_keys(source, target, target_vocab_size=sizes[1]))
    table = LexicalTable.uniform(met.keys(), vocab_sizes=sizes)
    empty = [np.zeros(size, np.int64) for size in sizes]
    for iteration in range(ITERATIONS if len(table.keys) else 0):
        total = Counts(np.zeros(len(table.keys)), np.zeros(len(table.keys)), empty[0], empty[1])
        for source, target in parts:
            total += table.counts(source, target)
        table = LexicalTable.of(table.keys, total, last=iteration == ITERATIONS - 1)
    both = numbers[0].of.keys() & numbers[1].of.keys()
    same = np.array([numbers[0].of[word] * sizes[1] + numbers[1].of[word] for word in both], int)
    same = np.setdiff1d(same, table.keys)
    sources, targets = np.divmod(np.concatenate([table.keys, same]), sizes[1])
    itself = np.full(len(same), _ITSELF)
    return (
        Links.of(sources, targets, np.concatenate([table.reverse, itself]), alone[0]),
        Links.of(targets, sources, np.concatenate([table.forward, itself]), alone[1]),
    )


class Gains:
    """The gains of the beads of two documents, inside a band."""

    def __init__(self, band: Band, words: tuple[Words, Words], lexicon: Lexicon) -> None:
        self._band = band
        self._of = [
            [_gains(band, words, lexicon[side], side, taken) for taken in (1, 2)]
            for side in range(2)
        ]

    def both(self, taken: tuple[int, int], end: int, ends: Ends) -> tuple[Floats, Floats]:
        """Those of beads that end there: of the words of their sources, and of their targets."""
        of_sources, of_targets = self._of[0][taken[1] - 1], self._of[1][taken[0] - 1]
        source, target = self._at(of_sources, end, ends), self._at(of_targets, end, ends)
        if taken[0] == 2:
            source += self._at(of_sources, end - 1, ends)
        if taken[1] == 2:
            target += self._at(of_targets, end, ends - 1)
        return source, target

    def _at(self, gains: NDArray[np.float32], end: int, ends: Ends) -> Floats:
        places = ends - self._band.lows[end]
        inside = (places >= 0) & (places < self._band.width)
        return np.where(inside, gains[end, np.where(inside, places, 0)], -100.0).astype(float)


def _gains(
    band: Band, words: tuple[Words, Words], links: Links, side: int, taken: int
) -> NDArray[np.float32]:
    """The gain of the words of each sentence of one side, from each one (or two) of the other."""
    ours, others = words[side], words[1 - side]
    postings, theirs = _postings(ours), _postings(others)
    sizes = np.array([*map(len, others)], float)
    if taken == 2:
        sizes[1:] += sizes[:-1].copy()
    usual = sizes.mean() if len(sizes) else 0.0
    without = np.zeros(len(links.alone))
    known = links.none > 0
    without[known] = _nats(links.none[known] / (usual + 1), links.alone[known])
    base = np.array([without[own].sum() for own in ours])
    columns = band.lows[:, None] + np.arange(band.width)
    gains = np.zeros(columns.shape, np.float32)
    if side == 0:
        gains[1:] = base[:, None]
    else:
        gains[:] = np.concatenate([[0.0], base])[columns]
    flat = gains.reshape(-1)
    for word, ours_at in postings.items():
        shares = np.zeros(len(others))
        for link in range(links.starts[word], links.starts[word + 1]):
            at = theirs.get(int(links.others[link]))
            if at is not None:
                shares[at] += links.shares[link]
        if taken == 2:
            shares[1:] += shares[:-1].copy()
        at = np.flatnonzero(shares)
        if not len(at):
            continue
        likely = (shares[at] + links.none[word]) / (sizes[at] + 1)
        nats = _nats(likely, float(links.alone[word])) - without[word]
        rows, places = (ours_at, at) if side == 0 else (at, ours_at)
        lows = band.lows[rows + 1]
        firsts = np.searchsorted(places + 1, lows)
        counts = np.searchsorted(places + 1, lows + band.width) - firsts
        row_of = np.repeat(np.arange(len(rows)), counts)
        column_of = np.arange(len(row_of)) + np.repeat(firsts - np.cumsum(counts) + counts, counts)
        index = (rows[row_of] + 1) * band.width + places[column_of] + 1 - lows[row_of]
        flat[index] += nats[column_of if side == 0 else row_of]
    return gains


def _nats(shares: Floats, alone: Floats | float) -> Floats:
    gains: Floats = np.log((shares + _FLOOR * alone) / (alone * (1 + _FLOOR)))
    return np.maximum(gains, _LOWEST)


def _postings(words: Sequence[NDArray[np.int64]]) -> dict[int, Ends]:
    """The sentences with each word."""
    if not words:
        return {}
    flat = np.concatenate(words)
    sentences = np.repeat(np.arange(len(words)), [*map(len, words)])
    order = np.argsort(flat, kind="stable")
    found, firsts = np.unique(flat[order], return_index=True)
    return dict(zip(found.tolist(), np.split(sentences[order], firsts[1:]), strict=True))


def _rows(words: Words) -> TokenRows:
    lengths = np.array([*map(len, words)], np.int32)
    return TokenRows(np.concatenate(words), lengths)
