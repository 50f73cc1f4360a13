"""Weights are used with the settings and vocabularies they were trained with, or not at all."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bad_input import complaint, replace, write_good_folder
from dragoman.cli import main

TWO_HEADS = "num_heads = 2"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, an average of it, and one of the same shape with another vocabulary."""
    folder = tmp_path_factory.mktemp("trained")
    with contextlib.chdir(folder):
        write_good_folder()
        assert main(["train", "small.toml"]) == 0
        (run,) = Path("runs").iterdir()
        assert main(["export", str(run), "--average", "2"]) == 0
        replace("train.de", "Zelle", "Tabelle")()
        assert main(["train", "small.toml", "--runs", "others", "--prepared", "other"]) == 0
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run in a copy of the trained folder."""
    shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return next(Path("runs").iterdir())


def other() -> Path:
    return next(Path("others").iterdir())


def exchange_vocabulary(run: Path) -> None:
    """For one of the same size, with all that says whose it is."""
    for name in ("source.model", "target.model", "manifest.json"):
        shutil.copyfile(other() / name, run / name)


def flip_a_score(run: Path) -> None:
    """The last byte of a piece's score: SentencePiece reads it as before."""
    content = bytearray((run / "source.model").read_bytes())
    content[content.index(b"\x15", len(content) // 2) + 4] ^= 0x01
    (run / "source.model").write_bytes(bytes(content))


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (exchange_vocabulary, "source.model"),
    (flip_a_score, "source.model"),
    (
        lambda run: replace(str(run / "recipe.toml"), TWO_HEADS, "num_heads = 4")(),
        "model.num_heads: 2",
    ),
    (lambda run: replace(str(run / "recipe.toml"), '"relu"', '"gelu"')(), "model.activation: relu"),
]


@pytest.mark.parametrize(("damage", "named"), DAMAGES)
def test_a_run_with_another_vocabulary_or_setting_is_refused(
    run: Path, damage: Callable[[Path], object], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("in").write_text("The cell is empty.\n")
    damage(run)
    shutil.rmtree(Path("prepared"), ignore_errors=True)
    for arguments in (
        ["translate", str(run), "--input", "in", "--output", "out"],
        ["translate", str(run), "--input", "in", "--checkpoint", str(run / "checkpoints/average")],
        ["export", str(run), "--sentences", "in", "--output", "out"],
        ["train", "small.toml", "--from", str(run)],
    ):
        assert main(arguments) == 1
        assert f"was trained with another {named}" in complaint(capsys)
    assert not Path("out").exists()
    assert not Path("prepared").exists()


def test_a_checkpoint_of_another_run_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("in").write_text("The cell is empty.\n")
    checkpoint = next((other() / "checkpoints").glob("step-*"))
    assert main(["translate", str(run), "--input", "in", "--checkpoint", str(checkpoint)]) == 1
    assert "was trained with another source.model" in complaint(capsys)


def test_training_does_not_go_on_with_another_setting(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replace(str(run / "recipe.toml"), TWO_HEADS, "num_heads = 4")()
    assert main(["train", str(run)]) == 1
    assert "was trained with another model.num_heads: 2" in complaint(capsys)
