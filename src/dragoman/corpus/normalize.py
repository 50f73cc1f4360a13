"""One spelling for one character, so that filters, hashes and subwords see the same text.

Characters that nobody sees and that change nothing are removed, every kind of space becomes one
plain space, spaces at both ends are stripped, and the text is in Unicode NFC. A reader sees no
difference.

Invisible characters that change what is seen stay: the joiners U+200C and U+200D (words of Persian
and Hindi, emoji), marks of direction (the order of what is seen), variation selectors and tags
(emoji, ideographs), Mongolian separators and Hangul fillers inside a syllable.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

INVISIBLE = (
    "\u00ad"  # soft hyphen: seen only where a line ends
    "\u200b\u2060\ufeff"  # where a line may end or not: between words of Khmer, Thai, Burmese, Lao
    "\u2061\u2062\u2063\u2064"  # operators of formulas
    "\u17b4\u17b5"  # Khmer vowels that are not written
    "\u206a\u206b\u206c\u206d\u206e\u206f"  # deprecated
)
"""Characters that are removed; U+FEFF is also the byte order mark."""
_ASCII_SPACES = "\t\r"
UNICODE_SPACES = (
    "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
    "\u2800\u3164\uffa0"  # a cell of Braille without dots, and Hangul fillers: blank, but wide
    "\u2581"  # how SentencePiece writes a space: it would come back as one
)
_NFC_SPACES = "\u2002\u2003"
"""What two other spaces become in NFC."""
_SEARCHED_AT_ONCE: Final = 4000
"""From this length on, one search for all of some characters is faster than one for each."""
_LONGEST_RUN: Final = 30
"""Combining marks in a row. Unicode's Stream-Safe Text Format (UAX #15, section 13) has this
limit: the longest run in a real language has 18."""
_LONGEST_SORTED: Final = 10 * _LONGEST_RUN
"""Python sorts a run in quadratic time when it normalises; up to this length that costs nothing."""
_NUM_CODES: Final = 0x20000
"""Two planes: those after them hold ideographs and tags, but no combining marks."""
_JOINER: Final = "\u034f"
"""COMBINING GRAPHEME JOINER, which that format puts into longer runs. It is invisible."""


def normalize(text: str, *, lowercase: bool = False) -> str:
    """The normalised form of a text; the number of its lines stays.

    Only the newline separates lines. Control characters stay, for a filter to judge.
    The time is linear in the length of the text, whatever the text is.
    """
    if lowercase:
        text = text.lower()
    spaces = _ASCII_SPACES
    if not text.isascii():
        invisible, further_spaces = _blanks(text)
        for character in invisible:
            text = text.replace(character, "")
        # The first cut keeps NFC fast. A run may grow in NFC, by marks that were part of a letter.
        text = _cut_runs(text, longest=_LONGEST_SORTED)
        text = _cut_runs(unicodedata.normalize("NFC", text), longest=_LONGEST_RUN)
        spaces += further_spaces
    for space in spaces:
        text = text.replace(space, " ")
    while "  " in text:
        text = text.replace("  ", " ")
    return text.replace(" \n", "\n").replace("\n ", "\n").strip(" ")


def _blanks(text: str) -> tuple[str, str]:
    """Those of INVISIBLE and of UNICODE_SPACES that may occur in a text and in its NFC."""
    if len(text) < _SEARCHED_AT_ONCE:
        return INVISIBLE, UNICODE_SPACES
    codes = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), dtype=np.uint16)
    found = {*map(chr, codes[_blank_table()[codes]].tolist()), *_NFC_SPACES}
    return "".join(found.intersection(INVISIBLE)), "".join(found.intersection(UNICODE_SPACES))


@cache
def _blank_table() -> NDArray[np.bool_]:
    table = np.zeros(1 << 16, dtype=np.bool_)
    table[[ord(character) for character in INVISIBLE + UNICODE_SPACES]] = True
    return table


def _cut_runs(text: str, *, longest: int) -> str:
    """The text with a joiner after every 30 marks of each run of over `longest` marks."""
    if len(text) <= longest:
        return text
    # Each run that is too long holds two neighbours of this sample, which are quick to find.
    sample = _are_marks(text[:: longest // 2])
    if not (sample[1:] & sample[:-1]).any():
        return text
    marks = _are_marks(text)
    bounds = np.flatnonzero(np.diff(marks, prepend=False, append=False)).tolist()
    cuts = [0]
    for start, end in zip(bounds[::2], bounds[1::2], strict=True):
        if end - start > longest:
            cuts += range(start + _LONGEST_RUN, end, _LONGEST_RUN)
    return _JOINER.join(text[start:end] for start, end in pairwise([*cuts, len(text)]))


def _are_marks(text: str) -> NDArray[np.bool_]:
    """Whether each character is a combining mark."""
    if text.isascii():
        return np.zeros(len(text), dtype=np.bool_)
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    return _mark_table()[np.minimum(codes, _NUM_CODES)]


def mark_bounds() -> list[int]:
    """The codes below _NUM_CODES at which combining marks begin and end, in turn."""
    bounds: list[int] = np.flatnonzero(np.diff(_mark_table(), prepend=False)).tolist()
    return bounds


@cache
def _mark_table() -> NDArray[np.bool_]:
    # Three Tibetan vowels are not marks themselves, but are made of them. A character
    # without a decomposition is its own: that test takes a thirtieth of the time.
    marks = (
        unicodedata.combining(unicodedata.normalize("NFD", one)[0])
        if unicodedata.decomposition(one)
        else unicodedata.combining(one)
        for one in map(chr, range(_NUM_CODES))
    )
    return np.array([*marks, 0]) > 0
