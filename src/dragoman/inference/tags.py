"""Puts the tags of a text into its translation, around the words that say the same.

The text is translated without its tags, so these cannot spoil the translation, and no model has to
learn them. Where they belong is read from the attention of the decoder (the model itself aligns the
words, as in Bahdanau et al. 2015). With A(t, s), the attention of a word t of the translation to a
word s of the text, two words are linked by

    A(t, s)^2 / (sum of A(t, s') over s'  x  sum of A(t', s) over t')

which is high if each is what the other looks at (the product of both directions, as Liang et al.
2006 have it). A word belongs into a tag by the share of its links that lead there. A tag stands
around the run of words whose shares exceed a half by most in sum.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.corpus.links import Span
from dragoman.corpus.stand_ins import PLACEHOLDERS, PLANE, UNSPACED

MOST: Final = 16
"""Tags of a text, at most; at a further one it is cut."""
OPENING: Final = tuple(chr(PLANE + 0x10 + number) for number in range(MOST))
"""Characters that stand for tags in a text, as those of `corpus.stand_ins` do for other things."""
CLOSING: Final = tuple(chr(PLANE + 0x20 + number) for number in range(MOST))
"""The end of the tag of the same place in OPENING."""
_ROW_OF_SIGNS: Final = re.compile(f"[{OPENING[0]}-{OPENING[-1]}{CLOSING[0]}-{CLOSING[-1]}]+")
_WORD: Final = re.compile(rf"[{''.join(PLACEHOLDERS)}]|[^\W_]+(?:['’.][^\W_]+)*")
_UNSPACED: Final = re.compile(f"[{UNSPACED}]")
_FAR: Final = 64
"""Characters in which the next piece of a text is looked for, if one before it is unknown."""
_IMPOSSIBLE: Final = -1e9
Weights = NDArray[np.float64]


class AttendedRow(NamedTuple):
    """A row of pieces, its translation, and the attention between them: (target, source) pieces."""

    source: list[str]
    target: list[str]
    translation: str
    attention: NDArray[np.float32]


@dataclass(slots=True)
class _Tag:
    """A tag and its end, or one of them, with those inside.

    start, end: its place in the text. opening, closing: the characters that stand for it.
    is_apart: whether space stands before it, and behind it. place: its span of the translation.
    """

    start: int
    opening: str = ""
    closing: str = ""
    end: int = 0
    is_apart: tuple[bool, bool] = (False, False)
    inside: list[_Tag] = field(default_factory=list)
    place: Span = (0, 0)


def without_tags(text: str) -> str:
    """A text without the characters that stand for tags."""
    return _taken_out(text)[0]


def with_tags(text: str, rows: Sequence[AttendedRow]) -> str:
    """The translation of a text that has tags, with these tags.

    text: normalised. rows: those of the text without tags, in order.
    """
    plain, tags = _taken_out(text)
    translation = " ".join(row.translation for row in rows)
    linked = _Linked.of(plain, translation, rows)
    linked.place(tags, np.ones(len(linked.target), dtype=bool), (0, len(translation)))
    return _written(translation, tags, (0, len(translation)))


def _taken_out(text: str) -> tuple[str, list[_Tag]]:
    """A text without tags, and the tags.

    Where more than one stood between two letters, or one without a partner, a space stands.
    """
    plain = ""
    root = _Tag(0)
    open_tags = [root]
    position = 0
    for row in _ROW_OF_SIGNS.finditer(text):
        plain += text[position : row.start()]
        position = row.end()
        before, after = plain[-1:] or " ", text[position : position + 1] or " "
        is_apart = (before.isspace(), after.isspace())
        if before.isspace() and after.isspace():
            position += 1
        elif before.isalnum() and after.isalnum() and (len(row[0]) > 1 or _is_alone(row[0], text)):
            plain += " "
        for sign in row[0]:
            if sign in OPENING:
                tag = _Tag(len(plain), opening=sign, end=len(plain), is_apart=is_apart)
                open_tags[-1].inside.append(tag)
                if CLOSING[OPENING.index(sign)] in text:
                    open_tags.append(tag)
            elif open_tags[-1].opening == OPENING[CLOSING.index(sign)]:
                tag = open_tags.pop()
                tag.closing, tag.end = sign, len(plain)
            else:
                alone = _Tag(len(plain), closing=sign, end=len(plain), is_apart=is_apart)
                open_tags[-1].inside.append(alone)
    return plain + text[position:], root.inside


def _is_alone(sign: str, text: str) -> bool:
    of_sign, others = (OPENING, CLOSING) if sign in OPENING else (CLOSING, OPENING)
    return others[of_sign.index(sign)] not in text


@dataclass(frozen=True, slots=True)
class _Linked:
    """A text and its translation, their words, and how much these are linked.

    source, target: spans of words. links: of each word of the target with each of the source.
    same: the number of the same word of the target, by that of the source.
    """

    text: str
    translation: str
    source: list[Span]
    target: list[Span]
    links: Weights
    same: dict[int, int]

    @classmethod
    def of(cls, text: str, translation: str, rows: Sequence[AttendedRow]) -> _Linked:
        source_pieces = _piece_spans(text, [piece for row in rows for piece in row.source])
        target_pieces = _piece_spans(translation, [piece for row in rows for piece in row.target])
        source, target = _words(text, source_pieces), _words(translation, target_pieces)
        of_source, of_target = _members(source, source_pieces), _members(target, target_pieces)
        attention = np.zeros((len(target), len(source)))
        first = last = 0
        for row in rows:
            own = of_target[first : (first := first + len(row.target))]
            theirs = of_source[last : (last := last + len(row.source))]
            attention += own.T @ row.attention @ theirs
        attention /= np.maximum(of_target.sum(0), 1)[:, None]
        totals = attention.sum(1, keepdims=True) * attention.sum(0, keepdims=True)
        links = attention**2 / np.maximum(totals, 1e-12)
        same = dict(_same(text, source, translation, target))
        for word, other in same.items():
            links[:, word] = links[other] = 0.0
            links[other, word] = 1.0
        return cls(text, translation, source, target, links, same)

    def place(self, tags: Sequence[_Tag], free: NDArray[np.bool_], around: Span) -> None:
        """Find the places of tags and of those inside them.

        free: the words of the target that they may stand around. around: their span.
        """
        runs = [(tag, self._run(tag, free)) for tag in tags if tag.opening and tag.closing]
        for tag, _ in sorted(runs, key=lambda run: -run[1][0]):
            gain, first, last = self._run(tag, free)
            if gain == _IMPOSSIBLE:
                continue
            own = np.zeros_like(free)
            own[first:last] = True
            tag.place = self._with_marks(tag, self._within_words(tag, first, last - 1))
            self.place(tag.inside, free & own, tag.place)
            free = free & ~own
        self._place_others(tags, free, around)

    def _place_others(self, tags: Sequence[_Tag], free: NDArray[np.bool_], around: Span) -> None:
        """Find the places of tags that have no words, or whose partner is in another text.

        The latter keep their order, and pairs their side of them: so elements stay nested.
        """
        placed = [(number, tag) for number, tag in enumerate(tags) if tag.place[0] < tag.place[1]]
        numbers = {number for number, _ in placed}
        least = around[0]
        for number, tag in enumerate(tags):
            if number in numbers:
                continue
            inner = self.text[tag.start : tag.end].strip()
            found = self.translation.find(inner, *around) if inner else -1
            place = self._point(tag, around) if found < 0 else found
            if not tag.opening:
                place = max([place, *(pair.place[1] for other, pair in placed if other < number)])
            elif not tag.closing:
                place = min([place, *(pair.place[0] for other, pair in placed if other > number)])
            place = max(place, least)
            for other, pair in placed:
                start, end = pair.place
                if start < place < end:
                    place = start if number < other else end
            if not (tag.opening and tag.closing):
                least = place
            tag.place = place, place + len(inner) * (place == found)
            self.place(tag.inside, np.zeros_like(free), tag.place)

    def _run(self, tag: _Tag, free: NDArray[np.bool_]) -> tuple[float, int, int]:
        """The best run of words for a tag, and by how much its shares exceed a half in sum."""
        inside = [max(tag.start, start) < min(tag.end, end) for start, end in self.source]
        if not any(inside) or not free.any():
            return _IMPOSSIBLE, 0, 0
        shares = self.links[:, inside].sum(1) / np.maximum(self.links.sum(1), 1e-12)
        best, start, gain = (_IMPOSSIBLE, 0, 0), 0, 0.0
        for number, more in enumerate(np.where(free, shares - 0.5, _IMPOSSIBLE).tolist()):
            if gain <= 0:
                start, gain = number, 0.0
            gain += more
            if gain > best[0]:
                best = gain, start, number + 1
        return best

    def _within_words(self, tag: _Tag, first: int, last: int) -> Span:
        """The span of words of the target; a part of a word at an end of the tag is a part of the
        same word there."""
        start, end = self.target[first][0], self.target[last][1]
        for word, (begins, ends) in enumerate(self.source):
            if begins < tag.start < ends and self.same.get(word) == first:
                start += tag.start - begins
            if begins < tag.end < ends and self.same.get(word) == last:
                end -= ends - tag.end
        return start, end

    def _with_marks(self, tag: _Tag, place: Span) -> Span:
        """The place of a tag with the marks at its ends, if it has some in the text."""
        start, end = place
        inner = self.text[tag.start : tag.end].strip()
        if not inner[0].isalnum():
            while start and _is_mark(self.translation[start - 1]):
                start -= 1
        if not inner[-1].isalnum():
            while end < len(self.translation) and _is_mark(self.translation[end]):
                end += 1
        return start, end

    def _point(self, tag: _Tag, around: Span) -> int:
        """The place of a tag without words: by the next word, or by the last if it is an end."""
        if tag.opening:
            word, beside = bisect_right([end for _, end in self.source], tag.start), 0
        else:
            word, beside = bisect_left([start for start, _ in self.source], tag.start) - 1, 1
        places = [
            (weight, span[beside])
            for weight, span in zip(
                self.links[:, word] if 0 <= word < len(self.source) else (),
                self.target,
                strict=False,
            )
            if around[0] <= span[0] and span[1] <= around[1]
        ]
        if places:
            return max(places)[1]
        ends = [end for start, end in self.target if around[0] <= start and end <= around[1]]
        return max(ends, default=around[0]) if tag.opening else around[0]


def _same(
    text: str, words: Sequence[Span], translation: str, others: Sequence[Span]
) -> list[tuple[int, int]]:
    """The numbers of words that are the same and stand once on both sides, in whatever case."""
    sides = [text[start:end] for start, end in words], [translation[a:b] for a, b in others]
    counts = [Counter(map(str.casefold, side)) for side in sides]
    places = {word: number for number, word in enumerate(sides[1])}
    return [
        (number, places[word])
        for number, word in enumerate(sides[0])
        if word in places and all(count[word.casefold()] == 1 for count in counts)
    ]


def _piece_spans(text: str, pieces: Sequence[str]) -> NDArray[np.int64]:
    """Where each piece of a text stands, shape (pieces, 2); an empty span if it is not found."""
    spans = []
    position = 0
    for piece in pieces:
        shown = piece.replace("▁", " ").strip()
        found = text.find(shown, position, position + len(shown) + _FAR) if shown else -1
        start = position if found < 0 else found
        position = start if found < 0 else start + len(shown)
        spans.append((start, position))
    return np.array(spans, dtype=np.int64).reshape(-1, 2)


def _words(text: str, pieces: NDArray[np.int64]) -> list[Span]:
    """The spans of words; in a script without spaces, of pieces."""
    words: list[Span] = []
    for word in _WORD.finditer(text):
        edges = {*word.span()}
        if _UNSPACED.search(word[0]):
            edges |= {*pieces[(pieces > word.start()) & (pieces < word.end())].tolist()}
        words += pairwise(sorted(edges))
    return words


def _members(words: Sequence[Span], pieces: NDArray[np.int64]) -> Weights:
    """Which pieces are in which words: 1 or 0, shape (pieces, words)."""
    starts, ends = np.array(words, dtype=np.int64).reshape(-1, 2).T
    return ((starts < pieces[:, 1:]) & (pieces[:, :1] < ends)).astype(np.float64)


def _is_mark(character: str) -> bool:
    return not (character.isalnum() or character.isspace())


def _written(translation: str, tags: Sequence[_Tag], span: Span) -> str:
    """A span of the translation with tags at their places."""
    position, end = span
    written = ""
    for tag in sorted(tags, key=lambda tag: tag.place[0]):
        start = max(position, min(tag.place[0], end))
        stop = max(start, min(tag.place[1], end))
        written += translation[position:start]
        inner = _written(translation, tag.inside, (start, stop))
        before, after = tag.is_apart if start == stop else (False, False)
        written += " " * (before and written[-1:].isalnum())
        written += f"{tag.opening}{inner}{tag.closing}"
        written += " " * (after and translation[stop : stop + 1].isalnum())
        position = stop
    return written + translation[position:end]
