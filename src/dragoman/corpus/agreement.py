"""Parts of a sentence that a translation keeps: numbers, and the kind of the sentence."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import Final

_NUMBER: Final = re.compile(r"\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d)|\d+(?:[.,'’٫٬]\d+)*")
"""Digits with separators inside; spaces separate thousands only."""
_CLOSING: Final = "\"'”“„»«›‹’‘)]}>）」』】*_` \u00a0"
_GREEK: Final = re.compile(r"[\u0370-\u03ff]")
_ENDINGS: Final = {
    **dict.fromkeys(".!…。！．｡।۔።", "statement"),
    **dict.fromkeys("?？؟", "question"),
    **dict.fromkeys(":：", "colon"),
}


def number_differences(source: str, target: str) -> int:
    """Numbers that occur on one side only.

    Separators and leading zeros do not count: 1,000.50 is 1.000,50 and 1 000,50.
    """
    ours, theirs = _numbers(source), _numbers(target)
    return (ours - theirs).total() + (theirs - ours).total()


def endings_differ(source: str, target: str) -> bool:
    """Whether one side ends as a statement, a question or before a list, and the other does not.

    Full stops and exclamation marks are one kind; brackets and quotation marks after them are
    ignored. In Greek ";" is the question mark.
    """
    return _ending(source) != _ending(target)


def _numbers(text: str) -> Counter[str]:
    if text.isalpha():
        return Counter()
    return Counter(
        "".join(str(unicodedata.digit(c)) for c in number if c.isdigit()).lstrip("0") or "0"
        for number in _NUMBER.findall(text)
    )


def _ending(text: str) -> str:
    last = text.rstrip(_CLOSING)[-1:]
    if last == ";" and _GREEK.search(text):
        return "question"
    return _ENDINGS.get(last, "")
