"""Pieces that stand for what a translation must keep: placeholders, addresses and tags; and those
beside a term.

A placeholder stands where the thing stood that it stands for. The pieces of a tag and of its end
stand before a space, so that the words beside them keep their usual pieces: what is written
`the <b>red</b> cat` is read as `the( red) cat`.

Each is one character of Unicode's last private plane, in which no script is written. It is a piece
of its own and is never cut. If a model has learnt these pieces, `{name}` or `https://example.org`
goes into the search as one of them and comes out in its place, whatever its letters are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from dragoman.corpus.links import Linked

MOST: Final = 8
"""Placeholders of a text, at most, and tags with an end; at a further one the text is cut."""
_PLANE: Final = 0x10FA00
PLACEHOLDERS: Final = tuple(chr(_PLANE + number) for number in range(MOST))
OPENING: Final = tuple(chr(_PLANE + 0x10 + number) for number in range(MOST))
CLOSING: Final = tuple(chr(_PLANE + 0x20 + number) for number in range(MOST))
"""The end of the tag of the same place in OPENING."""
TAGS: Final = (*OPENING, *CLOSING)
RETURNED: Final = frozenset((*PLACEHOLDERS, *TAGS))
"""Those that a translation has as its source has them."""
TERM: Final = chr(_PLANE + 0x30)
"""Between words of the source and those of the target that shall translate them; see
`corpus.terms`."""
TERM_END: Final = chr(_PLANE + 0x31)
ALL: Final = RETURNED | {TERM, TERM_END}
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
_TAGS_IN_A_ROW: Final = re.compile(rf" *[{''.join(TAGS)}](?: *[{''.join(TAGS)}])* *")
_OPENING_LAST: Final = re.compile(rf"[{''.join(OPENING)}]*\Z")
_POINTS: Final = 0.2
"""The share of spans that get a placeholder before them, as for a tag without an end."""
WITH_PLACEHOLDERS: Final = 0.3
"""The share of copies with tags or terms that have placeholders as well."""
Pair = tuple[str, str]


def before_spaces(text: str) -> str:
    """A text with the pieces of tags before the space that stands beside them."""

    def moved(row: re.Match[str]) -> str:
        signs = row[0].replace(" ", "")
        has_space = signs != row[0] or row.start() == 0
        return f"{signs} " if has_space and row.end() < len(text) else signs

    return _TAGS_IN_A_ROW.sub(moved, text)


def beside_words(text: str) -> str:
    """The inverse: those that open stand behind the space, before their word."""

    def moved(row: re.Match[str]) -> str:
        signs = row[0].replace(" ", "")
        if signs == row[0] or row.start() == 0 or row.end() == len(text):
            return signs
        opening = _OPENING_LAST.search(signs)
        place = opening.start() if opening else len(signs)
        return f"{signs[:place]} {signs[place:]}"

    return _TAGS_IN_A_ROW.sub(moved, text)


class _Insertion(NamedTuple):
    """A piece at a place of a text; in the order of these values."""

    place: int
    is_opening: int
    length: int
    sign: str


def with_terms(text: str, terms: Sequence[tuple[int, int, str]]) -> str:
    """A source with words of the target beside some of its own, as a model learns to read it.

    terms: the spans, in order, each with the words for it.
    """
    return _replaced(
        text,
        [(start, end, f"{text[start:end]}{TERM} {words}{TERM_END}") for start, end, words in terms],
    )


def tags(pair: Pair, linked: Callable[[Pair], Linked], random: Random) -> Pair | None:
    """Both sides with tags around words that translate each other; None if no such words are found.

    linked: finds the links of a pair.
    """
    if random.random() < WITH_PLACEHOLDERS:
        pair = placeholders(pair, linked, random) or pair
    spans = linked(pair).spans(random, wanted=1 + min(int(random.expovariate(1.2)), MOST - 1))
    if not spans:
        return None
    used = {sign for sign in pair[0] if sign in PLACEHOLDERS}
    free = [sign for sign in PLACEHOLDERS if sign not in used]
    numbers = sorted(random.sample(range(MOST), len(spans)))
    insertions: tuple[list[_Insertion], list[_Insertion]] = ([], [])
    in_order = sorted(spans, key=lambda span: (span[0][0], -span[0][1]))
    for number, span in zip(numbers, in_order, strict=True):
        is_point = bool(free) and random.random() < _POINTS
        opening = f"{free.pop(0)} " if is_point else OPENING[number]
        for (start, end), of_side in zip(span, insertions, strict=True):
            # At one place ends stand before beginnings, and what is inside stands inside.
            of_side.append(_Insertion(start, 1, start - end, opening))
            if not is_point:
                of_side.append(_Insertion(end, 0, end - start, CLOSING[number]))
    source, target = (
        before_spaces(_replaced(text, [(one.place, one.place, one.sign) for one in sorted(own)]))
        for text, own in zip(pair, insertions, strict=True)
    )
    return source, target


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
