"""Files whose lines are shifted against each other are told apart from real text of all kinds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dragoman.cli.command_line import main
from dragoman.corpus.shifted import first_shift, line_lengths
from real_text import real_lines
from tiny_recipe import TINY

PAIRS = 2000


def lengths(lines: list[str]) -> np.ndarray:
    return line_lengths("".join(f"{line}\n" for line in lines).encode())


@pytest.mark.parametrize("by", [-3, -1, 1, 4])
def test_a_shift_is_found_and_where_it_begins(by: int) -> None:
    source, target = (lengths(real_lines("train", language)) for language in ("en", "de"))
    assert first_shift(source, target) is None
    assert first_shift(source, np.roll(target, by)) == (0, by)
    target[8000:] = np.roll(target[8000:], by)
    assert first_shift(source, target) == (8000, by)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (["Yes."], ["Ja."]),
        (["Yes.", "No, I do not want that at all."], ["Ja.", "Nein, das möchte ich gar nicht."]),
        (["Hm.", "Well, come in.", "I said that you should go."], ["Na.", "Komm.", "Geh doch."]),
        ([""], ["Etwas."]),
    ],
)
def test_short_repeated_lines_raise_no_alarm(source: list[str], target: list[str]) -> None:
    assert first_shift(lengths(source * 300), lengths(target * 300)) is None


def test_sentences_that_have_nothing_to_do_with_each_other_raise_no_alarm() -> None:
    source, target = (lengths(real_lines("train", language)) for language in ("en", "de"))
    assert first_shift(source, np.random.default_rng(1).permutation(target)) is None


def test_preparation_and_dry_run_warn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    english, german = (real_lines("train", language)[:PAIRS] for language in ("en", "de"))
    Path("train.en").write_text("".join(f"{line}\n" for line in english))
    Path("train.de").write_text("".join(f"{line}\n" for line in [*german[1:], german[0]]))
    Path("r.toml").write_text(f'name = "r"\n{TINY}'.replace("vocab_size = 60", "vocab_size = 200"))
    warning = (
        "train.en, train.de: from about line 1 on, line N of the source fits line N-1 of the "
        "target by its length, not line N; give files"
    )
    for command in (["run", "--dry-run"], ["prepare", "--workers", "1"]):
        assert main([command[0], "r.toml", *command[1:]]) == 0
        out, err = capsys.readouterr()
        assert warning in " ".join((out + err).replace(f"{tmp_path}/", "").split()), command
