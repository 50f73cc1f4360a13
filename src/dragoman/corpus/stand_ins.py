"""Pieces that stand for what a translation must keep, such as {name}, or between sentences.

Each is one character of Unicode's last private plane, in which no script is written. It is a piece
of its own and is never cut. If a model has learnt these pieces, `{name}` or `https://example.org`
goes into the search as one of them and comes out in its place, whatever its letters are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dragoman.corpus.links import Linked

MOST: Final = 8
"""Placeholders of a text, at most; at a further one it is cut."""
PLANE: Final = 0x10FA00
PLACEHOLDERS: Final = tuple(chr(PLANE + number) for number in range(MOST))
"""A translation has those that its source has."""
SEPARATOR: Final = chr(PLANE + MOST)
"""Stands behind each sentence of a paragraph but the last; see `corpus.context`."""
ALL: Final = frozenset((*PLACEHOLDERS, SEPARATOR))
OWN_SIGNS: Final = re.compile(f"[{PLACEHOLDERS[0]}-{chr(PLANE + 0xFF)}]")
"""Matches what the search puts into a text. In a text itself nothing may pretend to be one."""
UNSPACED: Final = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Ranges of the letters of scripts that put no space between words."""
_LETTER: Final = rf"[^\W{UNSPACED}]"
_END: Final = r"'.,;:!?()\[\]{}…"
KEPT: Final = re.compile(
    rf"""
    (?:(?<!\w)(?i:https?)://|(?<![\w.])(?i:www)\.)               # addresses
        (?:(?!&(?:[lg]t|quot|nbsp);)[^\s<>"])*[^\s<>"{_END}]
    | (?<=[{UNSPACED}])(?i:https?://|www\.)                      # which end where letters go on
        [^\s<>"{UNSPACED}\u3000-\u303f\uff00-\uffef]*[^\s<>"{_END}{UNSPACED}\u3000-\u303f\uff00-\uffef]
    | (?<!{_LETTER})(?<![.+-])(?:{_LETTER}|[.+-]){{1,64}}@(?:{_LETTER}|-)+(?:\.(?:{_LETTER}|-)+)+
    | \{{\{{[^{{}}\n]{{0,80}}\}}\}} | [$%\#]?\{{[^{{}}\s]{{0,80}}\}}  # braces
    | (?<![\d%])%(?:\([^()\s]{{1,80}}\)|\d+\$)?[-+\#0']*\d*(?:\.\d+)?(?:hh?|ll?|[qjzt])?
        (?:[sd@%]|[iouxXeEfFgGcrapnmL](?![^\W\d_]))       # printf, Python
    | (?<![\d%])%\d\d?(?![\w%])                            # Qt, KDE
    | (?<!\w)\$[A-Za-z_]\w*                                # the shell
    | (?<!{_LETTER})&[A-Za-z][\w.-]{{0,40}}; | &[A-Za-z][\w.-]{{2,40}};   # names of XML
    | {OWN_SIGNS.pattern}                                   # these pieces themselves
    """,
    re.VERBOSE,
)
"""What is kept in every text that is translated."""
_NUMBER: Final = r"\d+(?:[.,:]\d+)*"
_WORD: Final = r"[^\W\d_]\w*"
_REPLACED: Final = re.compile(rf"(?P<kept>{KEPT.pattern})|{_NUMBER}|{_WORD}", re.VERBOSE)
Pair = tuple[str, str]


def placeholders(pair: Pair, linked: Callable[[Pair], Linked], random: Random) -> Pair | None:
    """Both sides with placeholders for some of the numbers, names and things to keep.

    Only what stands exactly once on both sides counts; if there is nothing, a word and its
    translation. None if there is none either.
    linked: finds the links of a pair.
    """
    sides = [{found[0]: found for found in _unique(text)} for text in pair]
    common = [text for text in sides[0] if text in sides[1]]
    if not common:
        return _with_a_word_replaced(pair, linked(pair), random)
    chosen = [
        text for text in common if sides[0][text]["kept"] is not None or random.random() < 0.5
    ]
    chosen = (chosen or [random.choice(common)])[:MOST]
    numbers = sorted(random.sample(range(MOST), len(chosen)))
    signs = {text: PLACEHOLDERS[number] for text, number in zip(chosen, numbers, strict=True)}
    source, target = (
        _replaced(text, sorted((*found[one].span(), signs[one]) for one in chosen))
        for text, found in zip(pair, sides, strict=True)
    )
    return source, target


def _with_a_word_replaced(pair: Pair, linked: Linked, random: Random) -> Pair | None:
    if not linked.links:
        return None
    sign = random.choice(PLACEHOLDERS)
    source, target = (
        _replaced(text, [(*words[word], sign)])
        for text, words, word in zip(pair, linked.words, random.choice(linked.links), strict=True)
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
    for start, end, sign in spans:
        parts += [text[position:start], sign]
        position = end
    return "".join([*parts, text[position:]])
