"""Telling languages, on captions that people wrote."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from dragoman.base.errors import ConfigError, MachineError
from dragoman.corpus.language import (
    check_languages,
    identify_language,
    likely_languages,
    other_language_log_odds,
)
from real_text import real_lines

PLACE = "corpus.filters.max_language_log_odds"


@pytest.mark.parametrize(("own", "other"), [("en", "de"), ("de", "en")])
def test_sentences_of_the_other_language_are_found_and_right_ones_stay(
    own: str, other: str
) -> None:
    right, wrong = real_lines("train", own)[:300], real_lines("train", other)[:300]
    assert np.mean(np.array(other_language_log_odds(right, own)) > 1.5) <= 0.01
    assert np.mean(np.array(other_language_log_odds(wrong, own)) > 1.5) >= 0.98


def test_text_without_a_language_passes_as_any_language() -> None:
    assert max(other_language_log_odds(["", "12:30", "1 + 1 = 2"], "de")) < 1


def test_a_region_does_not_count() -> None:
    check_languages("pt-BR", "zh_Hant", place=PLACE)
    text = ["Uma frase sobre nada."]
    assert other_language_log_odds(text, "pt-BR") == other_language_log_odds(text, "pt")


def test_an_unknown_language_is_named() -> None:
    with pytest.raises(ConfigError, match=r"max_language_log_odds: the language 'tlh' cannot be"):
        check_languages("en", "tlh", place=PLACE)


@pytest.mark.parametrize("own", ["en", "de"])
def test_the_language_of_a_sentence_is_found_among_some(own: str) -> None:
    lines = real_lines("train", own)[:300]
    first = [likely_languages(line, ["fr", "de-AT", "en", "tlh"])[0] for line in lines]
    assert np.mean([code.startswith(own) for code, _ in first]) >= 0.99
    assert all(0 <= probability <= 1 for _, probability in first)


def test_languages_that_cannot_be_recognised_are_left_out() -> None:
    assert [code for code, _ in likely_languages("Ein Hund bellt.", ["tlh", "de"])] == ["de"]
    assert likely_languages("Ein Hund bellt.", ["tlh"]) == []


def test_a_close_variety_is_taken_for_the_expected_language() -> None:
    croatian = (
        "Djevojčica sjedi na klupi i čita knjigu. Dva čovjeka popravljaju krov kuće u ulici. "
        "Vlak za Zagreb kreće u osam sati, a djeca već čekaju na kolodvoru. Nitko ne zna gdje je."
    )
    assert identify_language(croatian, [])[0] in {"bs", "hr", "sr"}
    assert identify_language(croatian, ["sr-Latn"])[0] == "sr-Latn"
    assert identify_language(croatian, ["sl", "de"])[0] in {"bs", "hr", "sr"}


ASKED_AT_ONCE = """
import threading
from concurrent.futures import ThreadPoolExecutor
from py3langid.langid import LanguageIdentifier
from dragoman.corpus.language import likely_languages
loads, load = [], LanguageIdentifier.from_model_file
LanguageIdentifier.from_model_file = lambda *a, **named: loads.append(a) or load(*a, **named)
begin = threading.Barrier(4)
def ask(text):
    begin.wait()
    return likely_languages(text, ["de", "en"])[0][0]
with ThreadPoolExecutor(4) as pool:
    assert list(pool.map(ask, ["Ein Hund und eine Katze."] * 4)) == ["de"] * 4
assert len(loads) == 1, len(loads)
"""


def test_threads_that_ask_at_once_load_one_model() -> None:
    """A model takes 100 MB."""
    subprocess.run([sys.executable, "-c", ASKED_AT_ONCE], check=True)


def test_the_remedy_for_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    with pytest.raises(MachineError, match=r'pip install "dragoman\[clean\]"'):
        check_languages("en", place=PLACE)
