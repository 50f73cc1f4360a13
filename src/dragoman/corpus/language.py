"""The language of a text, and how much likelier another one is than the expected one.

py3langid: naive Bayes over n-grams of bytes, made for short text of any domain (Lui and Baldwin
2012, langid.py). Its probabilities are calibrated by the square root of the text's bytes.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterable
from functools import cache
from threading import Lock
from typing import Any, Final

from dragoman.base.errors import ConfigError, MachineError

_LEAST_PROBABILITY: Final = 1e-30
NO_LANGUAGE: Final = "zxx"
"""The code that py3langid gives to text such as tables of numbers."""
_VARIETIES: Final = (
    {"ar", "ary", "arz"},
    {"bs", "hr", "sr"},
    {"id", "ms"},
    {"nn", "no"},
    {"wuu", "yue", "zh"},
)
"""Languages so close that py3langid takes one for another."""
_SUBTAG: Final = re.compile(r"[-_.@]")
_LOADING: Final = Lock()


def check_languages(*codes: str, place: str) -> None:
    """Raise ConfigError for a language that py3langid lacks, MachineError without py3langid."""
    known = _identifier(place).labels
    for code in codes:
        if base_language(code) not in known:
            raise ConfigError(
                f"the language {code!r} cannot be identified in a text",
                place=place,
                remedy="leave it out, or write an ISO 639-1 code such as de",
            )


def other_language_log_odds(texts: Iterable[str], language: str) -> list[float]:
    """ln(p of the likeliest other language / p of this language) for each text.

    Negative if this language is the likeliest; at most ln 2 for text without letters.
    language: a code that `check_languages` accepts.
    """
    expected, rank = base_language(language), _identifier().rank
    odds = []
    for text in texts:
        ranked = rank(text)
        best_other = next(p for code, p in ranked if code != expected)
        own = next(p for code, p in ranked if code == expected)
        odds.append(math.log(max(best_other, _LEAST_PROBABILITY) / max(own, _LEAST_PROBABILITY)))
    return odds


def likely_languages(text: str, codes: Iterable[str]) -> list[tuple[str, float]]:
    """Those of the given languages that py3langid knows, likeliest first, with their
    probabilities among all languages that py3langid knows.

    Raises MachineError without py3langid.
    """
    found: dict[str, float] = dict(_identifier().rank(text))
    known = [code for code in codes if base_language(code) in found]
    return sorted(((code, found[base_language(code)]) for code in known), key=lambda one: -one[1])


def identify_language(text: str, expected: Iterable[str]) -> tuple[str, float]:
    """The likeliest of all languages that py3langid knows, and its probability.

    expected: if the text is in one of these or in a close variety of it, that one is returned.
    Raises MachineError without py3langid.
    """
    language, probability = _identifier().rank(text)[0]
    for code in expected:
        base = base_language(code)
        if base == language or any({base, language} <= varieties for varieties in _VARIETIES):
            return code, probability
    return language, probability


def is_known(code: str) -> bool:
    """Whether py3langid knows the language. Raises MachineError without py3langid."""
    return base_language(code) in _identifier().labels


def base_language(code: str) -> str:
    """The language of a code such as pt-BR."""
    return _SUBTAG.split(code)[0].lower()


def _identifier(place: str = "") -> Any:
    """The classifier (py3langid has no types); raises MachineError without py3langid."""
    try:
        module = importlib.import_module("py3langid.langid")
    except ImportError as error:
        raise MachineError(
            "identifying languages needs a package that is not installed: py3langid",
            place=place,
            remedy='pip install "dragoman[clean]"',
        ) from error
    with _LOADING:  # threads of a server that all find none would each load one of 100 MB
        return _loaded(module)


@cache
def _loaded(module: Any) -> Any:
    return module.LanguageIdentifier.from_model_file(module.MODEL_FILE, norm_probs=True)
