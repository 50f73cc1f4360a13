"""Pieces that stand for what a translation must keep: placeholders, addresses and tags.

Each is one character of Unicode's last private plane, in which no script is written; as a piece of
its own it is never cut. Where a model has learnt them, `{name}` or `https://example.org` goes into
the search as one such piece and comes out in its place, whatever its letters are.
"""

from __future__ import annotations

import re
from collections import Counter
from random import Random
from typing import Final

MOST: Final = 8
"""Placeholders of a text, at most; further ones are kept by cutting the text."""
_PLANE: Final = 0x10FA00
PLACEHOLDERS: Final = tuple(chr(_PLANE + number) for number in range(MOST))
ALL: Final = frozenset(PLACEHOLDERS)
KEPT: Final = re.compile(
    rf"""
    (?:(?<!\w)https?://|(?<![\w.])www\.)                         # addresses
        (?:(?!&(?:[lg]t|quot|nbsp);)[^\s<>"])*[^\s<>"'.,;:!?()\[\]{{}}…]
    | (?<![\w.+-])[\w.+-]{{1,64}}@[\w-]+(?:\.[\w-]+)+
    | \{{\{{[^{{}}\n]{{0,80}}\}}\}} | [$%\#]?\{{[^{{}}\s]{{0,80}}\}}  # braces
    | (?<![\d%])%(?:\([^()\s]{{1,80}}\)|\d+\$)?[-+\#0']*\d*(?:\.\d+)?(?:hh?|ll?|[qjzt])?
        (?:[sd@%]|[iouxXeEfFgGcrapnmL](?![^\W\d_]))       # printf, Python
    | (?<![\d%])%\d\d?(?![\w%])                            # Qt, KDE
    | (?<!\w)\$[A-Za-z_]\w*                                # the shell
    | (?<!\w)&[A-Za-z][\w.-]{{0,40}};                             # names of XML
    | [{PLACEHOLDERS[0]}-{chr(_PLANE + 0xFF)}]             # these pieces themselves
    """,
    re.VERBOSE,
)
"""What is kept in every text that is translated."""
_NUMBER: Final = r"\d+(?:[.,:]\d+)*"
_WORD: Final = r"[^\W\d_]\w*"
_REPLACED: Final = re.compile(rf"(?P<kept>{KEPT.pattern})|{_NUMBER}|{_WORD}", re.VERBOSE)
Pair = tuple[str, str]


def placeholders(pair: Pair, random: Random) -> Pair | None:
    """Both sides with placeholders for some of the numbers, names and things to keep.

    Only what stands exactly once on both sides counts. None if there is nothing.
    """
    sides = [{found[0]: found for found in _unique(text)} for text in pair]
    common = [text for text in sides[0] if text in sides[1]]
    if not common:
        return None
    chosen = [
        text for text in common if sides[0][text]["kept"] is not None or random.random() < 0.5
    ]
    chosen = (chosen or [random.choice(common)])[:MOST]
    numbers = sorted(random.sample(range(MOST), len(chosen)))
    signs = {text: PLACEHOLDERS[number] for text, number in zip(chosen, numbers, strict=True)}
    source, target = (
        _replaced(text, [(*found[one].span(), signs[one]) for one in chosen])
        for text, found in zip(pair, sides, strict=True)
    )
    return source, target


def _unique(text: str) -> list[re.Match[str]]:
    """Numbers, names and things to keep that stand once in a text, in order."""
    found = [*_REPLACED.finditer(text)]
    counts = Counter(one[0] for one in found)
    return [
        one
        for one in found
        if counts[one[0]] == 1
        and (one["kept"] is not None or one[0][0].isdecimal() or _is_name(one))
    ]


def _is_name(word: re.Match[str]) -> bool:
    """Whether a word has a capital for another reason than that a sentence begins."""
    later = word[0] if word.start() else word[0][1:]
    return later != later.lower()


def _replaced(text: str, spans: list[tuple[int, int, str]]) -> str:
    parts = []
    position = 0
    for start, end, sign in sorted(spans):
        parts += [text[position:start], sign]
        position = end
    return "".join([*parts, text[position:]])
