"""A run that was really trained, for a few seconds, on real text: what exports start from."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from dragoman.api.training import run_recipe
from dragoman.recipe.recipe import load_recipe
from dragoman.recipe.run_directory import RunDirectory
from kept import kept
from own_folder import own_folder
from real_text import Split, write_real_text

NUM_PAIRS = 2000
RECIPE = """
name = "small"
[corpus]
train = [{source = "train.en", target = "train.de"}]
valid = [{source = "valid.en", target = "valid.de"}]
subword.vocab_size = 500
max_pieces = 60
[data]
batch_tokens = 1500
[model]
d_model = 48
num_heads = 4
d_ffn = 128
encoder_layers = 1
decoder_layers = 1
[schedule]
kind = "inverse_sqrt"
peak_learning_rate = 0.006
warmup_steps = 30
[train]
max_steps = 180
log_every_steps = 60
validate_every_steps = 180
validate_at_start = false
[checkpoint]
every_steps = 180
[evaluate]
bleu_pairs = 10
train_slice_pairs = 0
bootstrap_samples = 10
"""


KEEPING = (
    RECIPE.replace("max_pieces = 60", "max_pieces = 60\naugment = {placeholders = 1.0}")
    .replace("_steps = 180", "_steps = 40")
    .replace("log_every_steps = 60", "log_every_steps = 40")
)
"""The same for a model that keeps placeholders; it has hardly learnt to."""


@cache
def small_run() -> RunDirectory:
    """A copy of the run for this process, in a folder with the text and the recipe."""
    return copied_run("small-run", partial(_train_on_real_text, RECIPE), Path(__file__))


@cache
def keeping_run() -> RunDirectory:
    """The same for the run whose vocabulary has placeholders."""
    return copied_run("keeping-run", partial(_train_on_real_text, KEEPING), Path(__file__))


def copied_run(name: str, make: Callable[[Path], None], *made_by: Path) -> RunDirectory:
    """A copy for this process of the run that `make` leaves in a folder; see `kept`."""
    folder = own_folder(name)
    with kept(name, make, *made_by) as whole:
        shutil.copytree(whole, folder, dirs_exist_ok=True)
    (path,) = (folder / "runs").iterdir()
    (prepared,) = (folder / "prepared").iterdir()
    record = json.loads((path / "corpus.json").read_bytes())
    (path / "corpus.json").write_text(json.dumps(record | {"prepared": str(prepared)}))
    return RunDirectory.open(path)


def _train_on_real_text(text: str, folder: Path) -> None:
    splits: tuple[tuple[Split, int], ...] = (("train", NUM_PAIRS), ("valid", 150))
    for split, count in splits:
        write_real_text(folder, split, count)
    train_in(folder, text)


def train_in(folder: Path, text: str) -> None:
    """Train by a recipe whose text is in the folder."""
    (folder / "small.toml").write_text(text)
    recipe = load_recipe(folder / "small.toml")
    before = Path.cwd()
    os.chdir(folder)
    try:
        run_recipe(recipe, runs=folder / "runs", workers=1, ranks=1)
    finally:
        os.chdir(before)
