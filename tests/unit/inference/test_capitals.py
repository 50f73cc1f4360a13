"""A sentence in capitals is translated as one in small letters, into capitals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import pytest

from dragoman.inference.text import TextFormat
from dragoman.inference.translator import _restores_capitals, open_translator
from small_run import small_run

SENTENCE = "Two men are walking in the street."


class Translate(Protocol):
    """restores: whether sentences in capitals are translated as others."""

    def __call__(
        self, text: str, text_format: TextFormat = "line", *, restores: bool = True
    ) -> str: ...


@pytest.fixture(scope="module")
def translate() -> Iterator[Translate]:
    run = small_run().path
    with open_translator(
        run, checkpoints=["best"], overrides=[], engine="auto", threads=1
    ) as opened:

        def of(text: str, text_format: TextFormat = "line", *, restores: bool = True) -> str:
            translator = replace(opened.translator, restores_capitals=restores)
            search = opened.recipe.search
            ((best, *_),) = translator.translate([text], search, text_format=text_format)
            return best.text

        yield of


def test_capitals_are_translated_as_small_letters_are(translate: Translate) -> None:
    assert translate(SENTENCE.upper()) == translate(SENTENCE.capitalize()).upper()
    assert translate(SENTENCE.upper()) != translate(SENTENCE.upper(), restores=False)


@pytest.mark.parametrize(
    ("shouted", "usual"),
    [
        ("1. TWO MEN ARE WALKING.", "1. Two men are walking."),
        ("„TWO MEN ARE WALKING.", "„Two men are walking."),
        ("STRAßE: TWO MEN ARE WALKING.", "Straße: two men are walking."),
    ],
)
def test_the_first_letter_is_a_capital_whatever_stands_before_it(
    shouted: str, usual: str, translate: Translate
) -> None:
    assert translate(shouted) == translate(usual).upper()


def test_each_sentence_of_a_document_is_looked_at(translate: Translate) -> None:
    both = translate(f"{SENTENCE.upper()} {SENTENCE}", "document")
    assert both == f"{translate(SENTENCE.upper())} {translate(SENTENCE)}"


@pytest.mark.parametrize(
    "text", ["USB", "WHO EU", SENTENCE, "THE MAN {name} RUNS", "你好 USB HDMI"]
)
def test_what_is_no_sentence_in_capitals_stays(text: str, translate: Translate) -> None:
    assert translate(text) == translate(text, restores=False)


def test_markup_and_its_escapes_stay(translate: Translate) -> None:
    told = translate(f"<b>{SENTENCE.upper()}</b><br>R&amp;D AND MEN", "markup")
    assert told.startswith("<b>")
    assert "&AMP;" not in told


@pytest.mark.parametrize(("source", "target"), [("tr", "en"), ("en", "az-Latn")])
def test_languages_with_another_capital_of_i_are_left_alone(source: str, target: str) -> None:
    recipe = small_run().recipe()
    assert _restores_capitals(recipe)
    corpus = recipe.corpus.model_copy(update={"source_language": source, "target_language": target})
    assert not _restores_capitals(recipe.model_copy(update={"corpus": corpus}))


def test_a_sentence_in_capitals_has_its_terms_in_capitals() -> None:
    with open_translator(
        small_run().path, checkpoints=["best"], overrides=[], engine="auto", threads=1
    ) as opened:
        translator = opened.translator.with_terms({"men": "Frau"})
        texts = [SENTENCE.upper(), SENTENCE.capitalize(), "A DOG IS RUNNING."]
        found = translator.translate(texts, opened.recipe.search, text_format="line")
        (shouted, *_), (usual, *_), (other, *_) = found
        assert shouted.text == usual.text.upper()
        assert "FRAU" in shouted.text
        without = opened.translator.translate(texts[2:], opened.recipe.search, text_format="line")
        assert other.text == without[0][0].text
