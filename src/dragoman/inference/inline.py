"""Takes what a sentence must keep, such as {name}, into the search and back out of it.

Each such thing goes into the search as a piece that stands for it (`corpus.stand_ins`). A
translation counts only if it has each piece of its source exactly once. If the search finds none, a
wider one is made; if that finds none either, the text is translated without the pieces, and they
are put at the same shares of its length. So nothing is lost or doubled, whatever the model does.
Tags do not go into the search: `inference.tags` puts them into the translation.
"""

from __future__ import annotations

import html
import re
import unicodedata
from dataclasses import dataclass
from typing import Final

from dragoman.corpus import stand_ins
from dragoman.inference.tags import CLOSING, OPENING

_PLACEHOLDER: Final = re.compile(f"[{''.join(stand_ins.PLACEHOLDERS)}]")
_SIGN: Final = re.compile(f"([{''.join((*stand_ins.PLACEHOLDERS, *OPENING, *CLOSING))}])")
_LONGEST_SEAM: Final = 300
"""Characters beside a place where two texts meet."""
_FAR: Final = 12
"""Characters to the next space from which a text seems to be written without spaces."""


@dataclass(frozen=True, slots=True)
class Thing:
    """A part of a text that is kept: where it stands in it, and the character that stands for it:
    a placeholder, or one of `inference.tags`."""

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


def by_signs(text: str) -> list[str]:
    """A text cut at the characters that stand for something: text, character, text, ..., text."""
    return _SIGN.split(text)


def placeholders_of(text: str) -> list[str]:
    """The placeholders in a text, in order."""
    return _PLACEHOLDER.findall(text)


def without_placeholders(text: str) -> str:
    """A text without these pieces."""
    return _PLACEHOLDER.sub("", text)


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
    """Whether a translation has the placeholders of its source, each exactly once."""
    return sorted(placeholders_of(source)) == sorted(placeholders_of(translation))


def placed(source: str, translation: str) -> str:
    """A translation without placeholders, with those of its source at the same shares of its
    length.

    They stand between words; in a text without spaces, between characters.
    """
    length = max(1, len(without_placeholders(source)))
    written = ""
    position = 0
    for number, found in enumerate(_PLACEHOLDER.finditer(source)):
        before = found.start() - number
        place = max(position, _boundary(translation, round(before / length * len(translation))))
        written = _apart(_apart(written, translation[position:place]), found[0])
        position = place
    return _apart(written, translation[position:])


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
