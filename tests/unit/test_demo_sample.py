"""The text that ships with the demo: enough, held apart, under its licence."""

from __future__ import annotations

import lzma
from itertools import pairwise
from pathlib import Path

import pytest

from dragoman.cli import main
from dragoman.recipe.recipe import SHIPPED_RECIPES, load_recipe

SAMPLE = SHIPPED_RECIPES / "demo"


def pairs(split: str) -> list[tuple[str, str]]:
    (entry,) = getattr(load_recipe("demo").corpus, split)
    raw = (SHIPPED_RECIPES / entry.tsv).read_bytes()
    text = (lzma.decompress(raw) if entry.tsv.endswith(".xz") else raw).decode()
    return [(english, german) for english, german in (s.split("\t") for s in text.splitlines())]


def keys(split: str) -> set[str]:
    return {"".join(filter(str.isalnum, side.casefold())) for p in pairs(split) for side in p}


def test_there_is_enough_text_and_it_is_small() -> None:
    assert 20_000 <= sum(len(pairs(split)) for split in ("train", "valid", "test")) <= 60_000
    assert len(pairs("valid")) == len(pairs("test")) == 500
    assert sum(file.stat().st_size for file in SAMPLE.iterdir()) < 2_000_000


@pytest.mark.parametrize(("one", "other"), list(pairwise(["train", "valid", "test", "train"])))
def test_no_sentence_is_in_two_splits(one: str, other: str) -> None:
    assert not keys(one) & keys(other)


def test_no_pair_is_there_twice() -> None:
    train = pairs("train")
    assert len(set(train)) == len(train)


def test_the_licence_lies_beside_the_text() -> None:
    assert "Mozilla Public License Version 2.0" in (SAMPLE / "LICENSE").read_text()
    attribution = (SAMPLE / "ATTRIBUTION.md").read_text()
    for words in ("libreoffice-help-de", "LibreOffice contributors", "Oracle", "22,249"):
        assert words in attribution


def test_the_sample_is_written_as_two_files_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--sample", str(tmp_path / "new")]) == 0
    english, german = (
        (tmp_path / "new" / f"help.{code}").read_text(encoding="utf-8").splitlines()
        for code in ("en", "de")
    )
    assert list(zip(english, german, strict=True)) == pairs("train")
    assert "MPL-2.0" in capsys.readouterr().out
    (tmp_path / "new" / "help.de").write_text("my own text\n")
    (tmp_path / "new" / "help.en").unlink()
    assert main(["run", "--sample", str(tmp_path / "new")]) == 2
    assert (tmp_path / "new" / "help.de").read_text() == "my own text\n"
    assert not (tmp_path / "new" / "help.en").exists()
