"""Parts of a sentence that a translation keeps: numbers, and the kind of the sentence."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import Final

_NUMBER: Final = re.compile(r"\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d)|\d+(?:[.,:'’٫٬]\d+)*")
"""Digits with separators inside; spaces separate thousands only."""
_DIGITS: Final = re.compile(r"\d+")
_CLOSING: Final = "\"'”“„»«›‹’‘)]}>）」』】*_` \u00a0"
_GREEK: Final = re.compile(r"[\u0370-\u03ff]")
_ENDINGS: Final = {
    **dict.fromkeys(".!…。！．｡।۔።", "statement"),
    **dict.fromkeys("?？؟", "question"),
    **dict.fromkeys(":：", "colon"),
}


def number_differences(source: str, target: str) -> int:
    """The number of numbers that occur on one side only.

    Separators and leading zeros do not count: 1,000.50 is 1.000,50 and 1 000,50; 10:30 is 10.30
    and 10 h 30; 1,2,3 is 1, 2, 3. All other digits do: 1.50 is not 1.5.
    """
    ours, theirs = _numbers(source), _numbers(target)
    left, right = _without(ours, theirs), _without(theirs, ours)
    # One side may write several numbers of the other as one.
    if left and right and _parts(left) == _parts(right):
        return 0
    return len(left) + len(right)


def endings_differ(source: str, target: str) -> bool:
    """Whether the sides end in different ways.

    There are four ways: a full stop or exclamation mark; a question mark (in Greek, ";"); a colon;
    none of these. Brackets and quotation marks at the end are ignored.
    """
    return _ending(source) != _ending(target)


def _numbers(text: str) -> list[str]:
    """The numbers of a text as they are written, in its order."""
    return [] if text.isalpha() else _NUMBER.findall(text)


def _without(numbers: list[str], others: list[str]) -> list[str]:
    """The numbers without a partner of equal value in `others`; each partner counts once."""
    known = Counter(map(_value, others))
    left = []
    for number in numbers:
        value = _value(number)
        if known[value]:
            known[value] -= 1
        else:
            left.append(number)
    return left


def _value(number: str) -> str:
    """The digits of a number, without separators and leading zeros."""
    return _plain("".join(_DIGITS.findall(number))).lstrip("0") or "0"


def _parts(numbers: list[str]) -> list[str]:
    """The runs of digits in the numbers, in order, in ASCII."""
    return [_plain(digits) for number in numbers for digits in _DIGITS.findall(number)]


def _plain(digits: str) -> str:
    """The same digits in ASCII."""
    return digits if digits.isascii() else "".join(str(unicodedata.digit(c)) for c in digits)


def _ending(text: str) -> str:
    last = text.rstrip(_CLOSING)[-1:]
    if last == ";" and _GREEK.search(text):
        return "question"
    return _ENDINGS.get(last, "")
