"""`dragoman.choose`: the lines that are worth translating, and why."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import dragoman
from dragoman.base.errors import ConfigError, CorpusError
from dragoman.cli.command_line import main
from real_text import real_lines
from small_run import NUM_PAIRS, small_run

POOL = real_lines("train", "en")[NUM_PAIRS : NUM_PAIRS + 600]
WANTED = real_lines("valid", "en")[:100]


def written(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def reasons(made: dragoman.Chosen) -> list[dict[str, str]]:
    with made.reasons.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_lines_are_chosen_by_worth_and_uncertainty_the_same_each_time(tmp_path: Path) -> None:
    text, like = written(tmp_path / "text", POOL), written(tmp_path / "like", WANTED)
    made, again = (
        dragoman.choose(text, tmp_path / name, run=small_run(), like=like, budget=50)
        for name in ("one", "two")
    )
    assert made.output.read_bytes() == again.output.read_bytes()
    assert made.reasons.read_bytes() == again.reasons.read_bytes()
    lines, table = made.output.read_text("utf-8").splitlines(), reasons(made)
    assert lines == [POOL[int(row["line"]) - 1] for row in table]
    assert (made.lines, made.read) == (len(lines), len(POOL)) == (50, 600)
    assert all(float(row["uncertainty"]) > 0 for row in table)
    assert 0 < made.trained <= NUM_PAIRS
    for covered in (made.new_words, made.new_phrases):
        assert covered.lacking >= covered.in_all >= covered.chosen > covered.at_random

    plain = dragoman.choose(
        text, tmp_path / "plain", run=small_run(), like=like, budget=50, uncertainty=False
    )
    worths = [float(row["worth"]) for row in reasons(plain)]
    assert worths == sorted(worths, reverse=True)
    assert {row["uncertainty"] for row in reasons(plain)} == {""}
    assert plain.output.read_bytes() != made.output.read_bytes()


def test_an_unsure_translation_makes_a_line_worth_more(tmp_path: Path) -> None:
    text = written(tmp_path / "text", POOL[:40])
    made = [
        dragoman.choose(text, tmp_path / f"{asks}", run=small_run(), budget=40, uncertainty=asks)
        for asks in (True, False)
    ]
    first = reasons(made[0])[0]
    surest = max(float(row["worth"]) for row in reasons(made[1]))
    assert float(first["worth"]) <= float(first["uncertainty"]) * surest * 1.001
    with dragoman.Translator(
        small_run(),
        overrides=[
            *("search.beam_size=1", 'search.length_penalty="power"'),
            "search.length_penalty_alpha=1",
        ],
    ) as translator:
        line = POOL[int(first["line"]) - 1]
        ((best,),) = translator.translate([line], n_best=1)
    assert float(first["uncertainty"]) == pytest.approx(-best.score, abs=2e-3)


def test_lines_that_teach_nothing_are_left_out_and_counted(tmp_path: Path) -> None:
    trained = real_lines("train", "en")[0]
    odd = [
        *("", "a\x07b", "word " * 300, trained.upper(), WANTED[0], POOL[0] + "!!"),
        "Der schnelle braune Fuchs springt über den faulen Hund, und niemand hat es gesehen.",
    ]
    text = written(tmp_path / "text", POOL[:20] + odd)
    like = written(tmp_path / "like", [*WANTED, "Fuchs springt über den faulen Hund"])
    made = dragoman.choose(
        text, tmp_path / "out", run=small_run(), like=like, budget=100, uncertainty=False
    )
    assert made.left_out == {
        "empty": 1,
        "control characters": 1,
        "over long": 1,
        "repeat": 1,
        "in the training or wanted text": 2,
        "in another language": 1,
    }
    assert all(int(row["line"]) <= 20 for row in reasons(made))


def test_without_a_wanted_text_what_the_lines_share_comes_first(tmp_path: Path) -> None:
    text = written(
        tmp_path / "text", ["Quite alone.", "The red dog runs.", "A red dog.", "Red dogs."]
    )
    made = dragoman.choose(text, tmp_path / "out", budget=1)
    assert made.output.read_text("utf-8") == "A red dog.\n"


def test_the_command_says_what_is_covered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, like = written(tmp_path / "text", POOL), written(tmp_path / "like", WANTED)
    command = ["choose", str(text), "--like", str(like), "--budget", "20"]
    assert main([*command, "--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "lines 20 of 600" in printed
    assert "as many at random" in printed
    assert main([*command, "--output", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    text, output = written(tmp_path / "text", POOL[:50]), tmp_path / "out"
    with pytest.raises(CorpusError, match="no such file"):
        dragoman.choose(tmp_path / "nowhere", output)
    with pytest.raises(CorpusError, match="has no words"):
        dragoman.choose(text, output, like=written(tmp_path / "like", ["1 2 3"]))
    with pytest.raises(CorpusError, match=r"no line that would teach.*wanted text 50"):
        dragoman.choose(text, output, like=text)
    with pytest.raises(ConfigError, match="length_power"):
        dragoman.choose(text, output, length_power=-1.0)
    with pytest.raises(ConfigError, match="budget"):
        dragoman.choose(text, output, budget=0)
    assert not output.exists()
