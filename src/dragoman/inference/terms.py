"""Terms: words of the source and the words that shall translate them.

They are found in text here; `inference.term_search` makes a model use them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

from dragoman.base.errors import ConfigError, CorpusError
from dragoman.base.languages import same_language
from dragoman.corpus.directions import Direction, parse_pair
from dragoman.corpus.normalize import normalize
from dragoman.corpus.stand_ins import ALL, KEPT, UNSPACED

_WORD: Final = re.compile(
    rf"(?P<kept>{KEPT.pattern})|[{UNSPACED}]|[^\W{UNSPACED}]+(?:[-.][^\W{UNSPACED}]+)*|[^\w\s]",
    re.VERBOSE,
)
"""Matches a word, a character of a script without spaces, or a mark. An address or a placeholder is
one match, which is no part of a term."""
_SHORTEST_STEM: Final = 4
_VOWELS: Final = frozenset("aeiouyаеиоуыэюяієαεηιουω")
_LONGEST_ENDING: Final = 3
_LONGEST_OTHER_ENDING: Final = 2


class Term(NamedTuple):
    """A term of a file. direction: the languages that it is for; None: all."""

    source: str
    target: str
    direction: Direction | None = None

    def is_for(self, directions: Iterable[Direction]) -> bool:
        """Whether one of these directions is in its languages."""
        return self.direction is None or any(
            all(map(same_language, self.direction, direction)) for direction in directions
        )


class _Word(NamedTuple):
    start: int
    end: int
    text: str
    """Without case; "" if it is kept and so no part of a term."""


class Terms:
    """Finds terms in normalised text. A term with something that is kept, such as {name}, is none.

    lowercase: whether the text is in lower case. can_write: whether the model can write a text.
    unused: the sources that are no terms, or whose translations the model cannot write.
    """

    def __init__(
        self,
        targets: Mapping[str, str],
        *,
        lowercase: bool = False,
        can_write: Callable[[str], bool] = bool,
    ) -> None:
        self.unused: list[str] = []
        self._targets: dict[str, str] = {}
        self._by_first: dict[str, list[tuple[list[str], str]]] = {}
        """The words of each term without case, and the term, by the first word."""
        for given, wanted in targets.items():
            source, target = (normalize(text, lowercase=lowercase) for text in (given, wanted))
            words = _folded(source)
            if words and all(words) and ALL.isdisjoint(target) and can_write(target):
                self._targets[source] = target
                self._by_first.setdefault(words[0], []).append((words, source))
            else:
                self.unused.append(given)
        for terms in self._by_first.values():
            terms.sort(key=lambda term: -len(term[0]))

    def found(self, text: str) -> list[tuple[int, int, str]]:
        """The spans of terms in a text, in order, with their translations.

        Of terms that begin at a word the longest one counts, and of equal ones that in the same
        case.
        """
        words = _words(text)
        spans = []
        position = 0
        while position < len(words):
            start = words[position].start
            fitting = []
            for folded, source in self._by_first.get(words[position].text, ()):
                own = words[position : position + len(folded)]
                if [word.text for word in own] != folded or _goes_on(text, own[-1].end):
                    continue
                is_same = text[start : own[-1].end] == source
                fitting.append((len(folded), is_same, own[-1].end, source))
            if not fitting:
                position += 1
                continue
            length, _, end, source = max(fitting, key=lambda term: term[:2])
            spans.append((start, end, self._targets[source]))
            position += length
        return spans


def has_term(text: str, term: str) -> bool:
    """Whether a text has the words of a term, each in any form.

    Words with the same beginning and about the same length are taken for forms of one word.
    """
    return count_term(text, term) > 0


def count_term(text: str, term: str, is_form: Callable[[str, str], bool] | None = None) -> int:
    """How often a text has the words of a term, each in a form of it; None: in any form."""
    words, wanted = _folded(text), _folded(term)
    count = start = 0
    while start <= len(words) - len(wanted):
        is_here = all(map(is_form or _is_form, words[start : start + len(wanted)], wanted))
        count += is_here
        start += len(wanted) if is_here else 1
    return count


def is_whole(word: str, term: str) -> bool:
    """Whether a word is that of a term, with no ending or a further one."""
    is_long = len(term) >= _SHORTEST_STEM and len(word) <= len(term) + _LONGEST_ENDING
    return word == term or (is_long and word.startswith(term))


def has_other_ending(word: str, term: str) -> bool:
    """Whether a word is that of a term but for a few last letters."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(word, term, strict=False))
    stem = sum(1 for _ in same)
    endings = len(word) - stem, len(term) - stem
    return word == term or (stem >= _SHORTEST_STEM and max(endings) <= _LONGEST_OTHER_ENDING)


def _is_form(word: str, other: str) -> bool:
    stem = other[: max(_SHORTEST_STEM, len(other) - len(other) // 4)]
    is_long = len(stem) >= _SHORTEST_STEM and len(word) <= len(other) + _LONGEST_ENDING
    if word == other or not (is_long and word.startswith(stem)):
        return word == other
    if word.startswith(other) or other.startswith(word) or len(stem) > _SHORTEST_STEM:
        return True
    # Short words with one beginning are often two words, such as Daten and Datei: an ending that
    # takes the place of another one is a vowel, as that was.
    endings = word[len(stem) :], other[len(stem) :]
    is_short = len(word) <= len(other) + 1 or endings == ("ies", "y")
    return is_short and all(map(_begins_with_vowel, endings))


def _begins_with_vowel(ending: str) -> bool:
    return unicodedata.normalize("NFD", ending[:1])[:1] in _VOWELS


def read_terms(path: Path) -> list[Term]:
    """The terms of a file of source TAB target, with languages behind a further tab if they are for
    some languages alone. Lines that begin with # say nothing.

    Raises CorpusError that names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise CorpusError("cannot be read", place=path, remedy="check its name") from error
    except UnicodeDecodeError as error:
        raise CorpusError("is not UTF-8", place=path, remedy="save it as UTF-8") from error
    terms = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        source, target, languages, *rest = (*map(str.strip, line.split("\t")), "", "")
        place = f"{path}, line {number}"
        if not source or not target or any(rest):
            raise CorpusError(
                "is not a term and its translation",
                place=place,
                remedy="write source TAB target, or source TAB target TAB en-de",
            )
        try:
            direction = parse_pair(languages, place=place) if languages else None
        except ConfigError as error:
            raise CorpusError(error.problem, place=place, remedy=error.remedy) from error
        terms.append(Term(source, target, direction))
    return terms


def targets_for(terms: Iterable[Term], directions: Sequence[Direction]) -> dict[str, str]:
    """The translations of the terms that are for one of these directions, by the sources."""
    return {term.source: term.target for term in terms if term.is_for(directions)}


def _words(text: str) -> list[_Word]:
    return [
        _Word(*word.span(), "" if word["kept"] else word[0].casefold())
        for word in _WORD.finditer(text)
    ]


def _folded(text: str) -> list[str]:
    return [word.text for word in _words(text)]


def _goes_on(text: str, end: int) -> bool:
    """Whether a mark that belongs to the letter before stands here."""
    return unicodedata.category(text[end : end + 1] or " ").startswith("M")
