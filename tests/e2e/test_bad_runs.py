"""Runs that are damaged or asked too much: one line names place and remedy, nothing half done."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bad_input import SENTENCES, complaint, replace, write_good_folder
from dragoman.cli import main


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run; the tests work on copies of it."""
    folder = tmp_path_factory.mktemp("trained")
    with contextlib.chdir(folder):
        write_good_folder()
        assert main(["run", "small.toml", "--ranks", "1"]) == 0
    return folder


@pytest.fixture
def run_path(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run in a copy of the trained folder."""
    shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return next(Path("runs").glob("small-*"))


def remove_test_set(run: Path) -> None:
    (prepared,) = (Path.cwd() / "prepared").iterdir()
    record = json.loads((run / "corpus.json").read_text())
    (run / "corpus.json").write_text(json.dumps(record | {"prepared": str(prepared)}))
    shutil.rmtree(prepared / "test")


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))


RUN_CASES: list[tuple[str, Callable[[Path], object], Callable[[Path], list[str]], list[str]]] = [
    (
        "not a run",
        lambda run: (run / "recipe.toml").unlink(),
        lambda run: ["translate", str(run)],
        ["recipe.toml"],
    ),
    (
        "no checkpoint",
        lambda run: shutil.rmtree(run / "checkpoints"),
        lambda run: ["evaluate", str(run)],
        ["checkpoint"],
    ),
    (
        "no checkpoint of this name",
        lambda run: None,
        lambda run: ["evaluate", str(run), "--checkpoint", "lats"],
        ["lats", "last"],
    ),
    (
        "a flipped byte in the weights",
        lambda run: flip_a_byte(run / "checkpoints" / "step-0000002" / "model.safetensors"),
        lambda run: ["evaluate", str(run), "--checkpoint", "last"],
        ["model.safetensors"],
    ),
    (
        "weights of another model",
        lambda run: replace(str(run / "recipe.toml"), "d_ffn = 16", "d_ffn = 32")(),
        lambda run: ["evaluate", str(run), "--checkpoint", "last"],
        ["fc1", "(16"],
    ),
    (
        "a torn subword model",
        lambda run: (run / "source.model").write_bytes(b"no model"),
        lambda run: ["evaluate", str(run), "--checkpoint", "last"],
        ["source.model"],
    ),
    (
        "a corpus that is gone",
        lambda run: replace(str(run / "corpus.json"), "prepared/", "prepared/gone-")(),
        lambda run: ["train", str(run)],
        ["prepared/gone-", "dragoman prepare"],
    ),
    (
        "a source without its reference",
        lambda run: None,
        lambda run: ["evaluate", str(run), "--source", "train.en"],
        ["needs its reference"],
    ),
    (
        "a run that does not say where its corpus is",
        lambda run: (run / "corpus.json").write_text('{"prepared"'),
        lambda run: ["train", str(run)],
        ["corpus.json", "(fresh)"],
    ),
    (
        "a run without a test set",
        remove_test_set,
        lambda run: ["evaluate", str(run)],
        ["no test set", "name another text"],
    ),
    (
        "a source that is missing",
        lambda run: None,
        lambda run: ["evaluate", str(run), "--source", "gone.en", "--reference", "train.de"],
        ["gone.en"],
    ),
    (
        "a reference that is not UTF-8",
        lambda run: Path("latin1").write_bytes(b"fine\n\xe4\n"),
        lambda run: ["evaluate", str(run), "--source", "train.en", "--reference", "latin1"],
        ["latin1, line 2", "UTF-8"],
    ),
    (
        "a reference of another text",
        lambda run: Path("short").write_text("Eins.\n"),
        lambda run: ["evaluate", str(run), "--source", "train.en", "--reference", "short"],
        ["train.en", "60 lines, the"],
    ),
    (
        "an override that would change nothing",
        lambda run: None,
        lambda run: ["evaluate", str(run), "--set", "model.num_heads=1"],
        ["model.num_heads=1:", "search"],
    ),
    (
        "an override that would change nothing of a translation",
        lambda run: None,
        lambda run: ["translate", str(run), "--set", "corpus.lowercase=true"],
        ["corpus.lowercase=true:", "search"],
    ),
    (
        "more checkpoints than were kept",
        lambda run: None,
        lambda run: ["export", str(run), "--average", "9"],
        ["only 2 of the 9", "checkpoint.keep_last"],
    ),
    (
        "an average in place of a run",
        lambda run: None,
        lambda run: ["export", str(run), "--average", "1", "--output", str(run)],
        ["is not an average", "another output"],
    ),
    (
        "overrides on a run",
        lambda run: None,
        lambda run: ["train", str(run), "--set", "train.max_steps=9"],
        ["overrides: "],
    ),
    (
        "a run that shall start anew",
        lambda run: None,
        lambda run: ["train", str(run), "--fresh"],
        ["fresh: ", "recipe.toml with it"],
    ),
    (
        "other shards for a run",
        lambda run: None,
        lambda run: ["train", str(run), "--prepared", "prepared/other"],
        ["prepared: "],
    ),
    (
        "processes that would prepare nothing",
        lambda run: None,
        lambda run: ["train", str(run), "--workers", "2"],
        ["workers: ", "leave it out"],
    ),
    (
        "input that is not UTF-8",
        lambda run: Path("latin1").write_bytes(b"fine\n\xe4\n"),
        lambda run: ["translate", str(run), "--input", "latin1", "--output", "out"],
        ["latin1", "UTF-8"],
    ),
    (
        "input that is missing",
        lambda run: None,
        lambda run: ["translate", str(run), "--input", "gone"],
        ["gone"],
    ),
    (
        "more translations than the beam holds",
        lambda run: None,
        lambda run: ["translate", str(run), "--input", "train.en", "--n-best", "9"],
        ["search.beam_size"],
    ),
]


@pytest.mark.parametrize(
    ("spoil", "command", "words"), [case[1:] for case in RUN_CASES], ids=[c[0] for c in RUN_CASES]
)
def test_a_run_that_is_damaged_or_asked_too_much(
    run_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Path], object],
    command: Callable[[Path], list[str]],
    words: list[str],
) -> None:
    spoil(run_path)
    capsys.readouterr()
    assert main(command(run_path)) != 0
    line = complaint(capsys)
    assert all(word in line for word in words), line
    assert not Path("out").exists()
    assert not any(path.name.startswith(".") for path in Path("runs").rglob("*"))


@pytest.mark.parametrize(("source", "name"), [("test.en", "test.en"), ("test", "other-test")])
def test_another_text_does_not_replace_the_translations_of_the_test_set(
    run_path: Path, source: str, name: str
) -> None:
    kept = (run_path / "samples" / "test.de").read_bytes()
    shutil.copyfile("train.en", source)
    options = ["--source", source, "--reference", "train.de", "--set", "search.beam_size=1"]
    assert main(["evaluate", str(run_path), *options]) == 0
    assert (run_path / "samples" / "test.de").read_bytes() == kept
    translated = (run_path / "samples" / f"{name}.de").read_text()
    assert translated.count("\n") == len(SENTENCES)
