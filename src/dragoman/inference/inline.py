"""Takes what a sentence must keep, such as {name}, into the search and back out of it.

Each such thing goes into the search as a piece that stands for it (`corpus.stand_ins`). A
translation counts only if it has each piece of its source exactly once. If the search finds none, a
wider one is made; if that finds none either, the text is translated without the pieces, and they
are put at the same shares of its length. So nothing is lost or doubled, whatever the model does.
"""

from __future__ import annotations

import html
import re
import unicodedata
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from dragoman.corpus import stand_ins

_SIGN: Final = re.compile(f"([{''.join(sorted(stand_ins.RETURNED))}])")
_LONGEST_SEAM: Final = 300
"""Characters beside a place where two texts meet."""
_FAR: Final = 12
"""Characters to the next space from which a text seems to be written without spaces."""


@dataclass(frozen=True, slots=True)
class Thing:
    """A part of a text that is kept: where it stands in it, and the piece that stands for it.

    sign: "" if there are no more pieces.
    """

    start: int
    end: int
    sign: str


def kept_spans(text: str, *, escaped: bool) -> list[tuple[int, int]]:
    """Where a text has what is kept. escaped: &amp; is a character and not a name to keep."""
    return [
        found.span()
        for found in stand_ins.KEPT.finditer(text)
        if not (escaped and found[0][0] == "&" and html.unescape(found[0]) != found[0])
    ]


def signs_of(text: str) -> str:
    """The pieces in a text that stand for other text, in order."""
    return "".join(_SIGN.findall(text))


def by_signs(text: str) -> list[str]:
    """A text cut at these pieces: text, piece, text, ..., text."""
    return _SIGN.split(text)


def without_signs(text: str) -> str:
    """A text without these pieces."""
    return _SIGN.sub("", text)


def would_merge(text: str, following: str) -> bool:
    """Whether what is kept at the end of a text or the beginning of the next would be another thing
    if nothing stood between them, as an address would with a word behind it."""
    if not (text and following) or text[-1].isspace() or following[0].isspace():
        return False
    left, right = text.split()[-1][-_LONGEST_SEAM:], following.split()[0][:_LONGEST_SEAM]
    return _kept(left) + _kept(right) != _kept(left + right)


def _kept(text: str) -> list[str]:
    return stand_ins.KEPT.findall(text)


def agree(source: str, translation: str) -> bool:
    """Whether a translation has the pieces of its source, each exactly once, and tags that nest.

    Both: as `signs_of` gives them. A tag that ends in another row stays open in both.
    """
    return sorted(source) == sorted(translation) and _left_open(source) == _left_open(translation)


def _left_open(signs: str) -> str | None:
    """The tags without a partner, in order; None if tags do not nest."""
    alone: list[str] = []
    for sign in signs:
        if sign in stand_ins.OPENING:
            alone.append(sign)
        elif sign in stand_ins.CLOSING:
            beginning = stand_ins.OPENING[stand_ins.CLOSING.index(sign)]
            if alone and alone[-1] == beginning:
                alone.pop()
            elif beginning in signs or any(other in stand_ins.OPENING for other in alone):
                return None
            else:
                alone.append(sign)
    return "".join(alone)


def placed(source: str, translation: str) -> str:
    """A translation without pieces, with those of its source at the same shares of its length.

    They stand between words; in a text without spaces, between characters. A tag has a word at
    least between it and its end.
    """
    length = max(1, len(without_signs(source)))
    written = ""
    position = before = 0
    for text, sign in pairwise(by_signs(source)):
        if sign not in stand_ins.RETURNED:
            continue
        before += len(text)
        place = _boundary(translation, round(before / length * len(translation)))
        place = max(place, position)
        if sign in stand_ins.CLOSING:
            place = _end_of_word(translation, place, is_empty=written[-1:] in stand_ins.OPENING)
            written += translation[position:place] + sign
        else:
            written = _apart(_apart(written, translation[position:place]), sign)
        position = place
        if sign in stand_ins.OPENING:
            position += len(translation[place:]) - len(translation[place:].lstrip(" "))
    rest = translation[position:]
    return written + rest if signs_of(written[-1:]) in stand_ins.TAGS else _apart(written, rest)


def _end_of_word(text: str, place: int, *, is_empty: bool) -> int:
    """The end of the word before a place, or of the one behind it if nothing stands before."""
    if not is_empty:
        return len(text[:place].rstrip(" "))
    end = text.find(" ", place)
    return len(text) if end < 0 else end


def _apart(text: str, following: str) -> str:
    """Two texts with a space between them if both have something there."""
    are_apart = not (text and following) or text[-1] == " " or following[0] == " "
    return text + following if are_apart else f"{text} {following}"


def _boundary(text: str, place: int) -> int:
    """The nearest place between two words of a text, or between two characters if none is near."""
    before = text.rfind(" ", 0, place) + 1
    after = text.find(" ", place)
    after = len(text) if after < 0 else after
    if min(place - before, after - place) <= _FAR:
        return before if place - before <= after - place else after
    while place < len(text) and unicodedata.category(text[place]).startswith("M"):
        place += 1
    return place
