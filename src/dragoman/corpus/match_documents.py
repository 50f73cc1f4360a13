"""Which documents of two folders are one text in two languages: by their names, then by content.

Names that differ by the language alone match: `guide.en.html` and `guide.de.html`, `en/guide.html`
and `de/guide.html`. Of the others, two match if they share rare words, such as numbers and names,
more than either does with any other document, and their lengths are alike.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import PurePosixPath
from typing import Final

from dragoman.base.languages import same_language
from dragoman.corpus.gains import units
from dragoman.corpus.names import language_of_file

_SEPARATORS: Final = re.compile(r"[._-]")
_LONG: Final = 5
"""Letters of a long word."""
_LONGEST_WORD: Final = 100
_FEWEST: Final = 3
"""Rare words that two documents must share."""
_LEAD: Final = 2.0
"""How many times as much they share as with the next."""
_LONGEST: Final = 3.0
"""How many times as long one may be as the other, when both languages are as wordy."""
_MOST_DOCUMENTS: Final = 10
"""A word that more documents of a side have is not rare."""


def language_of_names(names: Iterable[str]) -> str:
    """The language that most names of documents tell, "" if most tell none."""
    codes = Counter(map(_language, names))
    return codes.most_common(1)[0][0] if codes else ""


def match_names(
    names: tuple[Sequence[str], Sequence[str]], languages: tuple[str, str]
) -> list[tuple[str, str]]:
    """Pairs of names that are equal or differ by the language alone; two of one key match none."""
    equal = {*names[0]} & {*names[1]}
    keys = []
    for side, language in zip(names, languages, strict=True):
        of_key = defaultdict(list)
        for name in side:
            if name not in equal:
                of_key[_without(name, language)].append(name)
        keys.append({key: found[0] for key, found in of_key.items() if len(found) == 1})
    differ = {name: keys[1][key] for key, name in keys[0].items() if key in keys[1]}
    pairs = {name: name for name in equal} | differ
    return sorted(pairs.items())


def match_content(
    sources: Mapping[str, Sequence[str]], targets: Mapping[str, Sequence[str]]
) -> list[tuple[str, str]]:
    """Pairs of documents, given by their sentences, that share the most rare words, in order."""
    sides = [
        {name: {*chain.from_iterable(map(_telling, sentences))} for name, sentences in side.items()}
        for side in (sources, targets)
    ]
    having: tuple[dict[str, list[str]], ...] = defaultdict(list), defaultdict(list)
    for found, side in zip(having, sides, strict=True):
        for name, words in side.items():
            for word in sorted(words):
                found[word].append(name)
    shared: dict[tuple[str, str], float] = defaultdict(float)
    count: Counter[tuple[str, str]] = Counter()
    for word, ones in having[0].items():
        others = having[1].get(word, [])
        if len(ones) <= _MOST_DOCUMENTS and len(others) <= _MOST_DOCUMENTS:
            for pair in ((one, other) for one in ones for other in others):
                shared[pair] += 1.0 / math.sqrt(len(ones) * len(others))
                count[pair] += 1
    best: tuple[dict[str, list[float]], ...] = defaultdict(list), defaultdict(list)
    for (one, other), much in shared.items():
        best[0][one].append(much)
        best[1][other].append(much)
    sizes = [{name: sum(map(len, side[name])) for name in side} for side in (sources, targets)]

    def leads(pair: tuple[str, str]) -> bool:
        rivals = [sorted([0.0, *found[name]])[-2:] for found, name in zip(best, pair, strict=True)]
        small, large = sorted((sizes[0][pair[0]], sizes[1][pair[1]]))
        return (
            count[pair] >= _FEWEST
            and large <= _LONGEST * small
            and all(first == shared[pair] >= _LEAD * second for second, first in rivals)
        )

    return sorted(pair for pair in shared if leads(pair))


def _telling(text: str) -> list[str]:
    """The numbers and long words of a text: short words of two languages are often the same."""
    words = units(text, letters=_LONGEST_WORD)
    return [word for word in words if word[0].isdigit() or len(word) >= _LONG]


def _language(name: str) -> str:
    """The language in the name of a document, or else of a folder: of guide.en.html, en/a, a.en."""
    path = PurePosixPath(name)
    told = [path.stem, *reversed(path.parts[:-1])]
    if len(path.suffix) == 3:
        told.append(path.name)
    return next(filter(None, map(language_of_file, told)), "")


def _without(name: str, language: str) -> str:
    """The name without the language."""
    kept = []
    for part in PurePosixPath(name).parts:
        words = [
            word
            for word in _SEPARATORS.split(part)
            if not (language and word and same_language(word.casefold(), language))
        ]
        if any(words):
            kept.append(".".join(words))
    return "/".join(kept)
