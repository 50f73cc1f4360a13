"""Files that tests keep between runs are made once, and again when their makers change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import kept as keeping
from kept import kept


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Asks as a process of its own would for a folder that `recipe.py` makes."""
    monkeypatch.setattr(keeping, "FOLDER", tmp_path / "kept")
    recipe = tmp_path / "recipe.py"
    recipe.write_text("first")

    def make(folder: Path) -> None:
        (tmp_path / "times").open("a").write("once\n")
        (folder / "result").write_text(recipe.read_text())

    def ask() -> str:
        keeping._digest.cache_clear()
        with kept("result", make, recipe) as folder:
            return (folder / "result").read_text()

    return ask


def test_a_kept_folder_is_made_once(made: Callable[[], str], tmp_path: Path) -> None:
    assert [made(), made()] == ["first", "first"]
    assert (tmp_path / "times").read_text() == "once\n"


def test_a_stale_one_is_never_used(made: Callable[[], str], tmp_path: Path) -> None:
    made()
    (tmp_path / "recipe.py").write_text("second")
    assert made() == "second"
    assert len([path for path in (tmp_path / "kept").iterdir() if path.is_dir()]) == 1


def test_one_that_was_broken_off_is_made_again(made: Callable[[], str], tmp_path: Path) -> None:
    (tmp_path / "kept" / "result-draft").mkdir(parents=True)
    (tmp_path / "kept" / "result-draft" / "result").write_text("half")
    assert made() == "first"
