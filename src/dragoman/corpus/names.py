"""The languages that the names of files and corpora tell: `a.en`, `en-fr.tmx`, `...-deu-eng`."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final

from dragoman.base.languages import is_language, parse_language, spelled

_FORMATS: Final = frozenset({".gz", ".bz2", ".lzma", ".xz", ".zst", ".zip", ".tmx", ".tsv", ".txt"})
"""Endings of formats, which stand after the language in a file name."""
_CODE: Final = r"[a-z]{2,3}(?:[-_][A-Z][a-z]{3})?(?:[-_][A-Z]{2})?"
_ENDING: Final = re.compile(rf"(?:^|[-_.])({_CODE})$|\.([A-Z]{{2}})$")
_PAIR: Final = re.compile(rf"(?:^|[-_.])({_CODE})[-_]({_CODE})$")
_LAST_CODE: Final = re.compile(r"(?:^|[-_.])([a-z]{2})$")
_WORDS: Final = frozenset(
    {
        *("alt", "ann", "any", "bak", "bal", "big", "bin", "cat", "ext", "for", "lab", "lem"),
        *("min", "new", "non", "ori", "rel", "res", "spl", "src", "tem", "vec"),
    }
)
"""What files are called that are no languages, although each is the code of one."""


def language_of_file(name: str) -> str:
    """The language of `a.en`, `corpus.en-fr.fr` or `train_fr.txt.gz`; "" if its name tells none.

    The name `a.pt_br` tells none: `br` may be Brazil, and is Breton.
    """
    found = _ENDING.search(_stem(name))
    return _code(found[1] or found[2]) if found and not _language_before(found) else ""


def languages_of_corpus(name: str) -> tuple[str, str]:
    """The languages of `en-fr.tmx`, `de-en.txt.zip` or `Statmt-europarl-7-deu-eng`, in that order.

    ("", "") if the name does not tell both, or may tell three, as `pt-br-en` does.
    """
    found = _PAIR.search(_stem(name))
    pair = (_code(found[1]), _code(found[2])) if found and not _language_before(found) else ("", "")
    return pair if all(pair) and pair[0] != pair[1] else ("", "")


def _stem(name: str) -> str:
    path = PurePosixPath(name)
    while path.suffix.lower() in _FORMATS:
        path = path.with_suffix("")
    return path.name


def _language_before(found: re.Match[str]) -> bool:
    """Whether a hyphen or underscore joins what is found to another code of two letters."""
    before = _LAST_CODE.search(found.string[: found.start()])
    return before is not None and found[0][0] in "-_" and is_language(before[1])


def _code(text: str) -> str:
    """The code as recipes have it; "" if it is no language.

    A language of three letters counts if its script is known: names of files have other words of
    three letters, of which most are the code of some rare language.
    """
    if not is_language(text):
        return ""
    language = re.split("[-_]", text)[0]
    if len(language) == 2 or spelled(text) == text != language:
        return spelled(text)
    found = parse_language(text)
    return found.tag if found.script and language not in _WORDS else ""
