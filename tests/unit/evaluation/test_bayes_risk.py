"""Minimum Bayes risk against sacreBLEU's chrF, and what translate and evaluate make of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import sacrebleu

import dragoman
from dragoman.evaluation.bayes_risk import best_first, expected_chrf, pairwise_chrf
from dragoman.inference.translator import EngineName
from real_text import real_lines
from small_run import small_run

TEXTS = [
    "Ein Hund schläft auf dem Boden.",
    "Ein Hund liegt am Boden .",
    "Der  Hund, der schläft",
    "Hunde",
    "a",
    "",
]


def test_each_pair_has_the_chrf_of_sacrebleu() -> None:
    chrf = sacrebleu.CHRF()
    expected = [
        [chrf.sentence_score(text, [reference]).score / 100 for reference in TEXTS]
        for text in TEXTS
    ]
    np.testing.assert_allclose(pairwise_chrf(TEXTS), expected, atol=1e-12)


def test_the_others_count_with_their_probability() -> None:
    chrf = pairwise_chrf(TEXTS)
    sure = [0.0, -50.0, -50.0, -50.0, -50.0, -50.0]
    np.testing.assert_allclose(expected_chrf(TEXTS, sure), chrf[:, 0])
    np.testing.assert_allclose(expected_chrf(TEXTS, [-0.5] * 6), chrf.mean(axis=1))
    assert best_first(TEXTS, sure)[0] == 0
    assert best_first(["x"], [-1.0]) == [0]
    assert best_first(["b", "a", "a"], [-1.0, -1.0, -1.0])[:2] == [1, 2]


@pytest.mark.parametrize("engine", ["ctranslate2", "torch"])
def test_a_translation_is_the_most_expected_of_its_candidates(engine: EngineName) -> None:
    texts, candidates = list(real_lines("test", "en")[:30]), 6
    overrides = [f"search.beam_size={candidates}"]
    with dragoman.Translator(small_run().path, engine=engine, overrides=overrides) as translator:
        found = translator.translate(texts, n_best=candidates, text_format="line")
    best = []
    for row in found:
        order = best_first([one.text for one in row], [one.score for one in row])
        best.append([row[number].text for number in order])
    overrides = [f"search.candidates={candidates}"]
    with dragoman.Translator(small_run().path, engine=engine, overrides=overrides) as translator:
        chosen = translator.translate(texts, n_best=2, text_format="line")
    assert [[one.text for one in row] for row in chosen] == [row[:2] for row in best]
    assert [row[0] for row in best] != [row[0].text for row in found]


def test_a_beam_that_is_asked_for_bounds_the_candidates() -> None:
    texts = list(real_lines("test", "en")[:30])
    with dragoman.Translator(small_run().path, overrides=["search.candidates=6"]) as translator:
        greedy = translator.translate(texts, beam_size=1)
        assert len(translator.translate(texts[:1], n_best=5)[0]) == 5  # the beam is as wide
    with dragoman.Translator(small_run().path, overrides=["search.beam_size=1"]) as translator:
        assert greedy == translator.translate(texts)


def test_evaluate_scores_the_translations_that_translate_gives(tmp_path: Path) -> None:
    source, reference = tmp_path / "text.en", tmp_path / "text.de"
    lines = {language: real_lines("test", language)[:30] for language in ("en", "de")}
    source.write_text("\n".join(lines["en"]) + "\n")
    reference.write_text("\n".join(lines["de"]) + "\n")
    overrides = ["search.candidates=6"]
    scores = dragoman.evaluate(
        small_run().path, source=source, reference=reference, overrides=overrides
    ).scores
    with dragoman.Translator(small_run().path, engine="torch", overrides=overrides) as translator:
        translated = translator.translate(lines["en"], text_format="line")
    expected = sacrebleu.corpus_chrf(translated, [list(lines["de"])]).score
    assert scores["chrf"].value == pytest.approx(expected)
