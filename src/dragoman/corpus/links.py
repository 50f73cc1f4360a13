"""Which words of the sides of a pair translate each other, and which spans of them do.

A link is the best of both its words in either direction of the lexical table (`corpus.lexical`), so
links are few and mostly right. Without a table only words that are the same on both sides have one.
A span of words has a counterpart if no link leads out of either (Och and Ney 2004; Koehn, Och and
Marcu 2003).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from dragoman.corpus.directions import Direction
from dragoman.corpus.stand_ins import PLACEHOLDERS, UNSPACED

if TYPE_CHECKING:
    from dragoman.corpus.lexical import LexicalTable
    from dragoman.corpus.vocabulary import Vocabulary

Pair = tuple[str, str]
Span = tuple[int, int]
"""Of characters of a text, or of words: the first, and the one after the last."""
WORD: Final = re.compile(
    rf"[{''.join(PLACEHOLDERS)}]|[^\W_{''.join(PLACEHOLDERS)}]+(?:[-'’.][^\W_]+)*"
)
_LEAST: Final = 0.1
"""The least score of a link: the geometric mean of both probabilities, near the diagonal."""
_SLOPE: Final = 1.0
"""How fast the score of a link falls with its distance from the diagonal, which decides between
two equal words."""
_LONGEST: Final = 6
"""Words of a span."""


@dataclass(frozen=True, slots=True)
class Linked:
    """The words of both sides as spans of characters, and links: pairs of numbers of words."""

    words: tuple[list[Span], list[Span]]
    links: list[tuple[int, int]]

    def counterpart(self, first: int, last: int) -> Span | None:
        """The words of the target that these words of the source (first to last) say.

        None if a link leads out, or if fewer than half of the words have links.
        """
        inside = [target for source, target in self.links if first <= source <= last]
        if 2 * len(inside) < last - first + 1:
            return None
        low, high = min(inside), max(inside)
        around = [source for source, target in self.links if low <= target <= high]
        if len(around) != len(inside) or 2 * len(inside) < high - low + 1:
            return None
        ends = {source for source, _ in self.links}
        return (low, high) if {first, last} <= ends else None

    def spans(self, random: Random, *, wanted: int) -> list[tuple[Span, Span]]:
        """Up to this many spans of the source with their counterparts, as spans of characters.

        On either side two of them are apart, or one is inside the other.
        """
        found: list[tuple[Span, Span]] = []
        for _ in range(6 * wanted):
            if not self.links or len(found) == wanted:
                break
            first, _ = random.choice(self.links)
            last = first + min(int(random.expovariate(0.7)), _LONGEST - 1)
            target = self.counterpart(first, last) if last < len(self.words[0]) else None
            if target is None:
                continue
            (start, _), (_, end) = self.words[0][first], self.words[0][last]
            (target_start, _), (_, target_end) = (self.words[1][one] for one in target)
            span = ((start, end), (target_start, target_end))
            if all(
                _relation(span[0], other[0]) == _relation(span[1], other[1]) != "crosses"
                for other in found
            ):
                found.append(span)
        return found


Linker = Callable[[Pair, Direction], Linked]
"""Finds the links of a pair."""


def same_words(pair: Pair, _direction: Direction) -> Linked:
    """Links between words that are the same and stand once on both sides."""
    sides = ([*WORD.finditer(pair[0])], [*WORD.finditer(pair[1])])
    counts = [Counter(word[0] for word in side) for side in sides]
    places = {word[0]: place for place, word in enumerate(sides[1])}
    links = [
        (place, places[word[0]])
        for place, word in enumerate(sides[0])
        if counts[0][word[0]] == counts[1][word[0]] == 1
    ]
    return Linked(([word.span() for word in sides[0]], [word.span() for word in sides[1]]), links)


def by_table(
    pair: Pair, table: LexicalTable, vocabularies: tuple[Vocabulary, Vocabulary]
) -> Linked:
    """Links by a table of the pieces of these vocabularies."""
    sides = [_words(text, vocabulary) for text, vocabulary in zip(pair, vocabularies, strict=True)]
    spans = ([span for span, _ in sides[0]], [span for span, _ in sides[1]])
    if not all(spans):
        return Linked(spans, [])
    ids = [np.concatenate([pieces for _, pieces in side]) for side in sides]
    starts = [
        np.cumsum([0, *(len(pieces) for _, pieces in side[:-1])]).astype(np.intp) for side in sides
    ]
    forward, reverse = table.probabilities(ids[0], ids[1])
    # The likeliest piece of the other word explains each piece of a word.
    forward = _mean(np.maximum.reduceat(forward, starts[0], axis=0), starts[1], axis=1)
    reverse = _mean(np.maximum.reduceat(reverse, starts[1], axis=1), starts[0], axis=0)
    places = [np.arange(len(side)) / len(side) for side in sides]
    near = np.exp(-_SLOPE * np.abs(places[0][:, None] - places[1][None, :]))
    scores = np.sqrt(forward * reverse) * near
    for row, (start, end) in enumerate(spans[0]):
        if (word := pair[0][start:end]) in PLACEHOLDERS:
            scores[row] = [float(pair[1][first:last] == word) for first, last in spans[1]]
    best = scores.argmax(axis=1)
    links = [
        (row, int(column))
        for row, column in enumerate(best)
        if scores[row, column] >= _LEAST and scores[:, column].argmax() == row
    ]
    return Linked(spans, links)


def _words(text: str, vocabulary: Vocabulary) -> list[tuple[Span, NDArray[np.int64]]]:
    """The span of each word of a text, and its pieces."""
    found = [*WORD.finditer(text)]
    words = []
    for word, ids in zip(found, vocabulary.encode_plain([one[0] for one in found]), strict=True):
        parts = [(word.span(), ids)]
        if re.search(f"[{UNSPACED}]", word[0]):
            lengths = [len(piece.lstrip("▁")) for piece in vocabulary.pieces(ids)]
            if sum(lengths) == len(word[0]):
                ends = [word.start() + int(end) for end in np.cumsum(lengths)]
                spans = zip([word.start(), *ends[:-1]], ends, strict=True)
                parts = [
                    (span, [piece])
                    for span, piece in zip(spans, ids, strict=True)
                    if span[0] < span[1]
                ]
        words += [(span, np.array(pieces, dtype=np.int64)) for span, pieces in parts if pieces]
    return words


def _mean(
    values: NDArray[np.float64], starts: NDArray[np.intp], *, axis: int
) -> NDArray[np.float64]:
    sums: NDArray[np.float64] = np.add.reduceat(values, starts, axis=axis)
    sizes = np.diff(starts, append=values.shape[axis])
    return sums / (sizes[None, :] if axis == 1 else sizes[:, None])


def _relation(span: Span, other: Span) -> str:
    if span[1] <= other[0]:
        return "before"
    if other[1] <= span[0]:
        return "after"
    if span == other:
        return "crosses"
    if other[0] <= span[0] and span[1] <= other[1]:
        return "inside"
    if span[0] <= other[0] and other[1] <= span[1]:
        return "around"
    return "crosses"
