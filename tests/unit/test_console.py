"""The output of commands, made of the real classes."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console

import dragoman
from dragoman.base.errors import CheckpointError
from dragoman.cli import console
from dragoman.cli.command_line import main
from dragoman.cli.views import show_recipes
from dragoman.corpus.config import CorpusConfig, SubwordConfig, TextFiles
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.prepare import prepare
from dragoman.recipe.recipe import dump_toml, list_recipes, load_recipe
from dragoman.recipe.run_directory import PREPARE_EVENTS
from dragoman.run.progress import preparing
from dragoman.telemetry.events import read_events
from dragoman.training.inventory import take_inventory

ONE_STEP = [
    *("train.max_steps=1", "evaluate.bleu_pairs=0", "data.batch_tokens=256"),
    *("model.d_model=16", "model.num_heads=2", "model.d_ffn=16"),
    *("model.encoder_layers=1", "model.decoder_layers=1"),
]


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
        source_language="en",
        target_language="de",
        train=(TextFiles(tsv="train.tsv"),),
        valid_pairs=3,
        max_pieces=30,
        subword=SubwordConfig(vocab_size=48),
    )
    prepare(config, directory / "shards", workers=1)
    return directory / "shards"


def test_each_shipped_recipe_is_a_line_of_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    show_recipes(list_recipes())
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
    console.print_prepared(prepared)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue()).splitlines()
    tables = [line for line in lines if str(prepared) not in line]  # a path stays whole
    assert max(map(len, tables)) <= width
    assert not [line for line in lines if "…" in line]


def test_dropped_pairs_are_printed_with_their_reasons(
    prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = Manifest.load(prepared)
    console.print_prepared(prepared)
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


@pytest.mark.system
def test_the_keys_that_drop_most_pairs_are_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    short = [f"cell {n}\tZelle {n}" for n in range(20)]
    long = [f"{'a long cell ' * 3}{n}\t{'eine lange Zelle ' * 3}{n}" for n in range(25)]
    again = ["the same cell\tdieselbe Zelle"] * 11
    Path("train.tsv").write_text("\n".join([*short, *long, *again]) + "\n")
    Path("r.toml").write_text(
        'name = "r"\n[corpus]\nvalid_pairs = 3\ntrain = [{tsv = "train.tsv"}]\n'
        'source_language = "en"\ntarget_language = "de"\n'
        "[corpus.filters]\nmax_words = 5\n[corpus.subword]\nvocab_size = 60\n"
    )
    assert main(["prepare", "r.toml", "--workers", "1"]) == 0
    said = capfd.readouterr().out
    (warning,) = (line for line in said.splitlines() if line.startswith("warning: "))
    assert "corpus.filters.max_words 25, corpus.filters.drop_duplicates 10" in warning
    assert "filters.html" in warning

    # A run that prepares the text says it, too, and its record keeps it.
    warned = []
    run = dragoman.train(
        dragoman.load_recipe("r.toml", [*ONE_STEP, "corpus.filters.max_words=4"]),
        workers=1,
        on_event=lambda event: warned.append(event) if event.kind == "alert" else None,
    )
    (alert,) = (one for one in warned if "training pairs were dropped" in one.payload["cause"])
    assert "corpus.filters.max_words 25" in alert.payload["cause"]
    recorded = list(read_events(run.events / PREPARE_EVENTS))
    assert [one for one in recorded if one.kind == "alert"] == [alert]

    assert main(["prepare", "r.toml", "--set", "corpus.filters.max_words=250"]) == 0
    assert "warning: " not in capfd.readouterr().out


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
    console.print_inventory(take_inventory(run))
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
        take_inventory(tmp_path / "none")


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
