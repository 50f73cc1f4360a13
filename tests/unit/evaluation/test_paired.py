"""Paired tests are sacreBLEU's; groups and sentences add up."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.base.errors import CorpusError
from dragoman.evaluation.metrics import bleu
from dragoman.evaluation.paired import compare_translations, word_counts, words
from real_text import real_lines


def worse(lines: list[str], share: float, seed: int) -> list[str]:
    """The lines with some words left out."""
    rng = random.Random(seed)
    return [" ".join(w for w in line.split() if rng.random() > share) for line in lines]


REFERENCES = real_lines("test", "de")[:120]
SOURCES = real_lines("test", "en")[:120]
_NUMBER = re.compile(r"\d+\.\d+")
GOOD, BAD = worse(REFERENCES, 0.1, 1), worse(REFERENCES, 0.3, 2)
LIKE_GOOD = worse(REFERENCES, 0.1, 3)


@pytest.mark.system
@pytest.mark.parametrize("second", [BAD, LIKE_GOOD], ids=["worse", "alike"])
def test_scores_and_p_values_are_those_of_sacrebleu(second: list[str], tmp_path: Path) -> None:
    found = compare_translations(GOOD, second, REFERENCES, sources=SOURCES)
    for name, lines in (("ref", REFERENCES), ("a", GOOD), ("b", second)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for option, field in (("bs", "p_bootstrap"), ("ar", "p_randomisation")):
        command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "a", "b", "-m", "bleu", "chrf"]
        command += [f"--paired-{option}", "--width", "10", "-f", "latex"]
        printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
        rows = re.findall(r"^.*& .*$", printed.stdout, re.MULTILINE)[-2:]
        for column, name in enumerate(("bleu", "chrf"), 1):
            score = found.scores[name]
            first, other = (row.split("&")[column] for row in rows)
            assert float(_NUMBER.findall(first)[0]) == pytest.approx(score.first, abs=1e-4)
            assert float(_NUMBER.findall(other)[0]) == pytest.approx(score.second, abs=1e-4)
            p_value = float(_NUMBER.findall(other)[-1])
            assert p_value == pytest.approx(getattr(score, field), abs=5.1e-5)


@pytest.mark.system
def test_the_better_system_wins_and_equal_ones_do_not() -> None:
    for first, second, winner in ((GOOD, BAD, "first"), (BAD, GOOD, "second"), (GOOD, GOOD, None)):
        found = compare_translations(first, second, REFERENCES, sources=SOURCES)
        assert found.winner == winner
        assert found.first_wins + found.ties + found.second_wins == found.pairs == 120
    assert found.ties == 120
    assert {score.p_bootstrap for score in found.scores.values()} == {1.0}
    few = compare_translations(GOOD[:5], BAD[:5], REFERENCES[:5], sources=SOURCES[:5])
    assert few.winner is None
    assert not found.first_best
    assert not found.second_best


@pytest.mark.system
def test_a_few_sentences_that_differ_make_no_winner() -> None:
    """The p-values of sacreBLEU are small if all that differ do so to one side."""
    for count, winner in ((1, None), (5, None), (12, "first")):
        second = [""] * count + REFERENCES[count:]
        found = compare_translations(REFERENCES, second, REFERENCES, sources=SOURCES)
        assert found.scores["bleu"].p_randomisation < 0.05
        assert found.winner == winner


@pytest.mark.slow
def test_chance_alone_makes_no_winner() -> None:
    """Systems that leave out words at random at the same rate: few of many pairs may differ."""
    winners = [
        compare_translations(
            worse(REFERENCES, 0.2, 2 * seed), worse(REFERENCES, 0.2, 2 * seed + 1), REFERENCES,
            sources=SOURCES,
        ).winner
        for seed in range(12)
    ]  # fmt: skip
    assert sum(winner is not None for winner in winners) <= 1


def test_sentences_that_differ_most_come_first() -> None:
    second = [*GOOD]
    differs = next(n for n in range(120) if GOOD[n] != REFERENCES[n])
    second[41] = ""
    second[differs] = REFERENCES[differs]
    found = compare_translations(GOOD, second, REFERENCES, sources=SOURCES)
    assert [(one.line, one.second) for one in found.first_best] == [(42, "")]
    assert [one.line for one in found.second_best] == [differs + 1]
    assert found.second_best[0].source == SOURCES[differs]


def test_groups_by_length_are_bleu_of_their_sentences() -> None:
    found = compare_translations(GOOD, BAD, REFERENCES, sources=SOURCES)
    assert sum(group.size for group in found.by_length) == 120
    short = [n for n, line in enumerate(REFERENCES) if len(words(line)) < 10]
    group = found.by_length[0]
    assert (group.name, group.size) == ("0 to 9", len(short))
    expected = bleu([GOOD[n] for n in short], [REFERENCES[n] for n in short]).value
    assert group.first == pytest.approx(expected)


def test_words_are_grouped_by_how_often_they_were_trained_on() -> None:
    references = ["rare common common", "common"]
    found = compare_translations(
        ["rare common", "common"], ["common common", "other"], references,
        sources=["a", "b"], training_words={"common": 500, "rare": 3},
    )  # fmt: skip
    groups = {group.name: group for group in found.by_frequency}
    assert list(groups) == ["1 to 9", "100 to 999"]
    assert (groups["1 to 9"].first, groups["1 to 9"].second) == (100, 0)
    assert groups["100 to 999"].size == 3
    assert groups["100 to 999"].first == pytest.approx(100 * 2 * 2 / (3 + 2))
    assert word_counts(references) == {"common": 3, "rare": 1}


def test_texts_of_other_lengths_are_refused() -> None:
    with pytest.raises(CorpusError, match="second: 1 lines for 2 references"):
        compare_translations(["a", "b"], ["a"], ["a", "b"], sources=["a", "b"])
    with pytest.raises(CorpusError, match="no sentences"):
        compare_translations([], [], [], sources=[])
