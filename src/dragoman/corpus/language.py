"""The language of a text, and how much likelier another one is than the expected one.

py3langid: naive Bayes over n-grams of bytes, made for short text of any domain (Lui and Baldwin
2012, langid.py). Its probabilities are calibrated by the square root of the text's bytes.
"""

from __future__ import annotations

import importlib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache, lru_cache
from threading import Lock
from typing import Any, Final

from dragoman.base.errors import ConfigError, MachineError
from dragoman.base.languages import (
    closest_language,
    is_language,
    is_one_script,
    parse_language,
)

_LEAST_PROBABILITY: Final = 1e-30
NO_LANGUAGE: Final = "zxx"
"""The code that py3langid gives to text such as tables of numbers."""
_VARIETIES: Final = (
    {"ar", "ary", "arz"},
    {"bs", "hr", "sr"},
    {"hbo", "he"},
    {"id", "ms"},
    {"nn", "no"},
    {"wuu", "yue", "zh"},
)
"""Languages so close that py3langid takes one for another."""
_LABELS: Final = {"ckb": "sdh"}
"""What py3langid calls a language by the code of another one."""
_SCRIPTS: Final = {"bs": ("Latn", "Cyrl"), "hr": ("Latn", "Cyrl"), "sr": ("Cyrl", "Latn")} | {
    "uz": ("Latn", "Cyrl"),
    **dict.fromkeys(("wuu", "zh"), ("Hans", "Hant")),
    "yue": ("Hant", "Hans"),
}
"""Languages that py3langid knows in two scripts, the usual one first."""
_WRITTEN_SO: Final = {("hr", "Cyrl"): "sr", ("bs", "Cyrl"): "sr", ("yue", "Hans"): "zh"}
"""The close variety that is meant if hardly anybody writes a language in a script."""
_LEAST_CYRILLIC, _SURELY_CYRILLIC = 0.15, 0.5
"""Shares of the letters. Between the two, words decide: products and commands have Latin names in
any language."""
_CODES: Final = re.compile(r"(?<![!-~])(?=[!-~]*?(?:://|[@%{}_\\]))[!-~]++")
"""Addresses, placeholders and names in programs: runs of ASCII that have one of their marks. They
do not tell the script of a text."""
_ADDRESSES: Final = re.compile(
    r"(?<![\w.+-])[\w.+-]++@[\w-]++\.[\w.-]++|\b[A-Za-z][A-Za-z0-9+.-]{1,10}://[!-~]++"
    r"|\{\w{0,40}\}|%\(\w{1,40}\)[a-z]|%(?:\d{1,2}\$)?[sd]\b"
)
"""Addresses and placeholders alone, without the words beside them. They are in no language."""
_CLEARLY: Final = 4.0
"""So much likelier than each given language is one that is only added. So one of 300 Slovenian
sentences is taken for Serbian, and 25 of 300 Croatian ones for Slovenian."""
_CHARSETS: Final = {"Hans": "gb2312", "Hant": "big5"}
"""Sets of characters that have hardly any of the other script's own ones."""
_HAN: Final = re.compile("[\u3400-\u9fff\uf900-\ufaff]")
_NAMES: Final = {"Latn": "LATIN", "Cyrl": "CYRILLIC"}
"""How the names of their letters begin in Unicode."""
_OTHER_NAMES: Final = {
    **{"Arab": "ARABIC", "Armn": "ARMENIAN", "Beng": "BENGALI", "Deva": "DEVANAGARI"},
    **{"Ethi": "ETHIOPIC", "Geor": "GEORGIAN", "Grek": "GREEK", "Gujr": "GUJARATI"},
    **{"Guru": "GURMUKHI", "Hang": "HANGUL", "Hani": "CJK", "Hebr": "HEBREW", "Hira": "HIRAGANA"},
    **{"Kana": "KATAKANA", "Khmr": "KHMER", "Knda": "KANNADA", "Laoo": "LAO", "Mlym": "MALAYALAM"},
    **{"Mong": "MONGOLIAN", "Mymr": "MYANMAR", "Orya": "ORIYA", "Sinh": "SINHALA"},
    **{"Taml": "TAMIL", "Telu": "TELUGU", "Thai": "THAI", "Tibt": "TIBETAN"},
}
_SCRIPTS_BY_NAME: Final = {name: script for script, name in (_NAMES | _OTHER_NAMES).items()}
_LOADING: Final = Lock()


def check_languages(*codes: str, place: str) -> None:
    """Raise ConfigError for a language that py3langid lacks, MachineError without py3langid."""
    _identifier(place)
    for code in codes:
        if not is_known(code):
            raise ConfigError(
                f"the language {code!r} cannot be identified in a text",
                place=place,
                remedy="leave it out, or write an ISO 639 or BCP 47 code such as de",
            )


def other_language_log_odds(texts: Iterable[str], language: str) -> list[float]:
    """ln(p of the likeliest other language / p of this language) for each text.

    Negative if this language is the likeliest; at most ln 2 for text without letters. Close
    varieties, such as Croatian and Serbian, are no other languages; another script is one.
    language: a code that `check_languages` accepts.
    """
    label, rank = _label(language), _identifier().rank
    assert label is not None
    own_labels = _varieties(label)
    odds = []
    for text in texts:
        ranked = rank(text)
        best_other = next(p for code, p in ranked if code not in own_labels)
        own = sum(p for code, p in ranked if code in own_labels) if _fits(language, text) else 0.0
        odds.append(math.log(max(best_other, _LEAST_PROBABILITY) / max(own, _LEAST_PROBABILITY)))
    return odds


def likely_languages(text: str, codes: Iterable[str]) -> list[tuple[str, float]]:
    """Those of the given languages that py3langid knows, likeliest first, with their
    probabilities among all languages that py3langid knows; 0 if the text has no letter of theirs.

    Of close varieties, the likeliest in the script of the text has the probability of those that
    are not given, too. If none is in that script, but the text clearly is in one of them, the
    language in that script is added, as sr-Latn for sr.
    Raises MachineError without py3langid.
    """
    probabilities = dict(_identifier().rank(_words_of(text, _ADDRESSES)))
    labels = {code: label for code in codes if (label := _label(code)) is not None}
    fitting = {
        code: label
        for code, label in labels.items()
        if _fits(code, text) and _has_letter_of(code, text)
    }
    probable = dict.fromkeys(labels, 0.0)
    probable |= {code: probabilities[label] for code, label in fitting.items()}
    added: dict[str, float] = {}
    groups = {min(_varieties(label)): code for code, label in reversed(labels.items())}
    for code in groups.values():
        varieties = _varieties(labels[code])
        close = [other for other, label in fitting.items() if label in varieties]
        not_given = varieties.difference(fitting.values())
        others = sum(probabilities[variety] for variety in not_given)
        if close:
            probable[max(close, key=probable.__getitem__)] += others
        elif script := _script(labels[code], text):
            added[in_script(code, script)] = others
    likely = max(probable.values(), default=0.0)
    probable |= {code: p for code, p in added.items() if p >= _CLEARLY * likely and p > 0.5}
    return sorted(probable.items(), key=lambda language: -language[1])


def identify_language(text: str, expected: Iterable[str]) -> tuple[str, float]:
    """The likeliest of all languages that py3langid knows, and its probability.

    expected: if the text is in one of these or in a close variety of it, that one is returned.
    A script that is not the usual one is part of the code: sr-Latn.
    Raises MachineError without py3langid.
    """
    label, probability = _identifier().rank(text)[0]
    for code in expected:
        if _label(code) in _varieties(label) and _fits(code, text):
            return code, probability
    return in_script_of(label, text), probability


def language_probabilities(text: str) -> dict[str, float]:
    """The probability of each language that py3langid knows, by its code."""
    codes = {label: code for code, label in _LABELS.items()}
    return {codes.get(label, label): float(p) for label, p in _identifier().rank(text)}


def in_script(code: str, script: str) -> str:
    """A code that states a script of ISO 15924: zh-CN in Hant is zh-Hant; hr in Cyrl is sr-Cyrl."""
    language = parse_language(code).language
    return f"{_WRITTEN_SO.get((language, script), language)}-{script}"


def in_script_of(label: str, text: str) -> str:
    """A code of `language_probabilities`, with the script of the text if that is not the usual
    one: sr-Latn."""
    script = _script(label, text)
    usual = _SCRIPTS.get(label, ("",))[0]
    return label if script in ("", usual) else f"{label}-{script}"


def are_close(code: str, other: str) -> bool:
    """Whether two codes name one language, members of one macrolanguage, or languages so close that
    py3langid takes one for another."""
    codes = (code, other)
    if all(map(is_language, codes)) and len({parse_language(one).language for one in codes}) == 1:
        return True
    label = _label(code)
    return label is not None and _label(other) in _varieties(label)


def is_known(code: str) -> bool:
    """Whether py3langid knows the language. Raises MachineError without py3langid."""
    return _label(code) is not None


def script_of_text(code: str, text: str) -> str:
    """The script of most letters of a text, by ISO 15924; "" if it does not show.

    code: the language. If Chinese is written in Han, its script is Hans or Hant.
    """
    scripts = Counter[str]()
    for letter, count in Counter(filter(str.isalpha, text)).items():
        scripts[_script_of_letter(letter)] += count
    language = parse_language(code).language
    if scripts["Hani"] and set(_SCRIPTS.get(language, ())) == {*_CHARSETS}:
        return _script(language, text)
    return scripts.most_common(1)[0][0] if scripts else ""


def _varieties(label: str) -> set[str]:
    return next((group for group in _VARIETIES if label in group), {label})


@lru_cache(1000)
def _label(code: str) -> str | None:
    """What py3langid calls a language; None if it does not know it in this script."""
    labels = [label for label in _identifier().labels if label != NO_LANGUAGE]
    if (found := closest_language(code, labels)) is not None or not is_language(code):
        return found
    wanted = parse_language(code)
    label = _LABELS.get(wanted.language, wanted.language)
    if label in _SCRIPTS:
        return label if wanted.script in _SCRIPTS[label] else None
    return label if label in _LABELS.values() else None


def _fits(code: str, text: str) -> bool:
    """Whether a text may be in the script of a language that py3langid knows in two."""
    script = _script(_label(code) or "", text)
    return is_one_script(script, parse_language(code).script)


def _has_letter_of(code: str, text: str) -> bool:
    """Whether a text has a letter that may be of a language, or no letter of a known script."""
    wanted = parse_language(code).script
    scripts = {_script_of_letter(letter) for letter in filter(str.isalpha, text)} - {""}
    return not scripts or any(is_one_script(script, wanted) for script in scripts)


def _script_of_letter(letter: str) -> str:
    """The script of a letter by ISO 15924; "" if it is not known."""
    return _SCRIPTS_BY_NAME.get(unicodedata.name(letter, "").partition(" ")[0], "")


def _script(label: str, text: str) -> str:
    """In which of a language's scripts a text is; "" if it has one, or the text does not show."""
    scripts = _SCRIPTS.get(label, ())
    if not scripts:
        return ""
    text = _words_of(text, _CODES)
    counts = {script: _count_letters(text, script) for script in scripts}
    share = counts.get("Cyrl", 0) / max(1, sum(counts.values()))
    if _LEAST_CYRILLIC < share < _SURELY_CYRILLIC:
        counts = _count_words(text)
    best = max(counts, key=counts.__getitem__)
    return "" if len(set(counts.values())) == 1 else best


def _words_of(text: str, others: re.Pattern[str]) -> str:
    """A text without what is no word; the text itself if no letters are left."""
    words = others.sub(" ", text)
    return words if any(map(str.isalpha, words)) else text


def _count_words(text: str) -> dict[str, int]:
    """Words with Cyrillic letters, and others in small letters, which are no names of products."""
    words = text.split()
    cyrillic = [word for word in words if _count_letters(word, "Cyrl")]
    return {
        "Cyrl": len(cyrillic),
        "Latn": sum(map(str.islower, words)) - sum(map(str.islower, cyrillic)),
    }


def _count_letters(text: str, script: str) -> int:
    if script in _CHARSETS:
        ideographs = "".join(filter(_HAN.match, text))
        return len(ideographs.encode(_CHARSETS[script], errors="ignore"))
    return sum(unicodedata.name(letter, "").startswith(_NAMES[script]) for letter in text)


def _identifier(place: str = "") -> Any:
    """The classifier (py3langid has no types); raises MachineError without py3langid."""
    try:
        module = importlib.import_module("py3langid.langid")
    except ImportError as error:
        raise MachineError(
            "identifying languages needs a package that is not installed: py3langid",
            place=place,
            remedy="pip install py3langid",
        ) from error
    with _LOADING:  # threads of a server that all find none would each load one of 100 MB
        return _loaded(module)


@cache
def _loaded(module: Any) -> Any:
    return module.LanguageIdentifier.from_model_file(module.MODEL_FILE, norm_probs=True)
