"""The output of commands, made of the real classes."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from dragoman.base.errors import CheckpointError
from dragoman.cli import console
from dragoman.corpus.config import CorpusConfig, SubwordConfig, TextFiles
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.prepare import prepare
from dragoman.recipe.recipe import dump_toml, list_recipes, load_recipe
from dragoman.run.progress import preparing


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("prepared")
    words = ["sun", "moon", "star", "sea", "hill"]
    lines = [f"the {a} and the {b}\tdie {b} und der {a}" for a in words for b in words]
    lines += [lines[0], "same\tsame", f"{'long ' * 9}\tkurz", ""]
    text = "\ufeff" + "\r\n".join(lines[:4]) + "\n" + "\n".join(lines[4:])
    (directory / "train.tsv").write_bytes(text.encode())
    config = CorpusConfig(
        folder=str(directory),
        train=(TextFiles(tsv="train.tsv"),),
        valid_pairs=3,
        max_pieces=30,
        subword=SubwordConfig(vocab_size=48),
    )
    prepare(config, directory / "shards", workers=1)
    return directory / "shards"


def test_each_shipped_recipe_is_a_line_of_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_recipes(list_recipes())
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    recipes = list_recipes()
    assert len(lines) == 1 + len(recipes)
    for line, recipe in zip(lines[1:], recipes, strict=True):
        assert line.startswith(recipe.name)
        assert line.endswith(recipe.summary)


@pytest.mark.parametrize("width", [80, 120])
def test_no_table_is_wider_than_the_terminal(
    width: int, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.StringIO()
    terminal = Console(file=file, width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(console, "open_console", lambda: terminal)
    console.print_recipes(list_recipes())
    console.print_prepared(Manifest.load(prepared), Path("prepared"))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue()).splitlines()
    assert max(map(len, lines)) <= width
    assert not [line for line in lines if "…" in line]


def test_a_dry_run_shows_the_recipe_and_its_size_memory_and_disk(
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = load_recipe("wmt16-ende-reference", [])
    console.print_dry_run(recipe)
    shown = capsys.readouterr().out
    assert "warmup_steps = 8000" in shown
    facts = dict(line.split("  ", 1) for line in shown.splitlines()[-6:])
    assert facts["parameters"].strip() == "60,880,896"
    assert facts["steps"].strip() == "300,000"
    assert "weights" in facts["memory a rank"]
    assert "not known before the text is here" in facts["disk"]


def test_a_dry_run_names_the_text_that_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.en").write_text("A man.\n")
    path = tmp_path / "mine.toml"
    path.write_text(
        "[corpus]\ntrain = [{source = 'a.en', target = 'a.de'}, {tsv = 'b.tsv'}]\nvalid_pairs = 1\n"
        "test = [{tmx = 'c.tmx'}]\n"
    )
    console.print_dry_run(load_recipe(path))
    missing = [line for line in capsys.readouterr().out.splitlines() if "does not exist" in line]
    assert missing == [
        f"corpus.train: {tmp_path / 'a.de'} does not exist yet",
        f"corpus.train: {tmp_path / 'b.tsv'} does not exist yet",
        f"corpus.test: {tmp_path / 'c.tmx'} does not exist yet",
    ]


def test_dropped_pairs_are_printed_with_their_reasons(
    prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = Manifest.load(prepared)
    console.print_prepared(manifest, prepared)
    shown = capsys.readouterr().out
    for reason, pairs in manifest.train.dropped.items():
        line = next(line for line in shown.splitlines() if reason.replace("_", " ") in line)
        assert line.split()[0] == "train"
        assert line.split()[-2] == str(pairs)
    assert str(prepared / "rejected") in shown
    text = manifest.train.stages[-1].source_text
    assert f"{text.num_bytes} B" in shown
    assert "joint bpe pieces: 48" in shown
    assert "train.tsv: 1 x byte order mark taken out" in shown
    assert "train.tsv: 3 x CRLF line end taken out" in shown


def test_every_file_is_listed_with_its_size_and_purpose(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    checkpoint = run / "checkpoints" / "step-0000400"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(bytes(2_000_000))
    (checkpoint / "optimizer.safetensors").write_bytes(bytes(4_000_000))
    shutil.copy(prepared / "manifest.json", run)
    recipe = load_recipe("demo", ["model.d_model=64", "train.max_steps=800"])
    (run / "recipe.toml").write_text(dump_toml(recipe))
    console.print_inventory(run)
    shown = capsys.readouterr().out
    for name, size, purpose in (
        ("model.safetensors", "2 MB", "the weights"),
        ("optimizer.safetensors", "4 MB", "Adam's two moments"),
    ):
        line = next(line for line in shown.splitlines() if name in line)
        assert size in line
        assert purpose in line
    assert "checkpoints/step-0000400/" in shown
    facts = dict(re.findall(r"^(\S.*?)  +(.*?) *$", shown, re.MULTILINE))
    assert facts["weights"] == "2 MB (1.907 MiB)"
    assert facts["to translate with"] == "2 MB (1.907 MiB)"
    assert "5 checkpoints of" in facts["this run, at most"]


def test_nothing_to_list_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such directory; name a run"):
        console.print_inventory(tmp_path / "none")


def test_a_preparation_shows_its_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with preparing(every_s=0.0) as tell:
        tell("clean", 32_768, None)
        tell("encode", 10_000, 60_000)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["read and clean: 32,768 pairs", "encode: 10,000 of 60,000 pairs"]
    with preparing() as tell:  # nothing is printed in the first ten seconds
        tell("clean", 32_768, None)
    assert capsys.readouterr().out == ""


def test_a_preparation_is_a_bar_on_a_terminal() -> None:
    file = io.StringIO()
    terminal = Console(file=file, force_terminal=True, width=100, no_color=True)
    with preparing(terminal) as tell:
        for stage, pairs, total in (("clean", 9_000, None), ("learn", 0, None), ("encode", 5, 9)):
            tell(stage, pairs, total)
    shown = file.getvalue()
    assert "encode" in shown
    assert "5 of 9 pairs" in shown
