"""A run of three stages over two ranks, killed in each of them, ends as the one left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import dragoman
from dragoman.telemetry.events import read_events
from parallel_text import sentences, write_pairs
from processes import processes_in, wait_until

RECIPE = """
name = "stages"
[corpus]
train = [
  {source = "a.en", target = "a.de", name = "a", weight = 3},
  {source = "b.en", target = "b.de", name = "b", weight = 1, tag = "<bt>"},
]
valid_pairs = 5
test_pairs = 5
subword.vocab_size = 120
[data]
batch_tokens = 256
[model]
d_model = 16
num_heads = 2
d_ffn = 16
encoder_layers = 1
decoder_layers = 1
[train]
max_steps = 180
log_every_steps = 5
validate_every_steps = 60
validate_at_start = false
[checkpoint]
every_steps = 10
keep_last = 100
[evaluate]
bleu_pairs = 0
[[stages]]
steps = 60
[[stages]]
steps = 60
weights = {b = 1}
[[stages]]
weights = {a = 1, b = 2}
learning_rate_factor = 0.25
"""


def train(place: Path) -> subprocess.Popen[bytes]:
    """The training of the recipe, which goes on if the run is there."""
    return subprocess.Popen(
        [sys.executable, "-m", "dragoman", "train", "stages.toml", "--ranks", "2"],
        cwd=place,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def last_step(place: Path) -> int:
    paths = place.glob("runs/stages-*/events/log.jsonl")
    return max((event.step or 0 for path in paths for event in read_events(path)), default=0)


def planned(place: Path) -> dict[tuple[int, str], Any]:
    """The share of each entry in each stage, as the run said it at its start."""
    (path,) = place.glob("runs/stages-*/events/log.jsonl")
    parts = [event.payload for event in read_events(path) if event.kind == "mixture_planned"]
    return {
        (part["first_step"], part["entry"]): pytest.approx(part["share"], abs=0.002)
        for part in parts
    }


def weights(place: Path) -> dict[str, torch.Tensor]:
    (run,) = place.glob("runs/stages-*")
    return load_file(run / "checkpoints" / "step-0000180" / "model.safetensors")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_kill_in_every_stage_changes_no_bit(tmp_path: Path) -> None:
    places = tmp_path / "whole", tmp_path / "killed"
    for place in places:
        place.mkdir()
        write_pairs(place, "a", sentences(300, seed=1))
        write_pairs(place, "b", sentences(500, seed=2))
        (place / "stages.toml").write_text(RECIPE)
    whole, killed = places
    assert train(whole).wait(timeout=200) == 0
    assert planned(whole) == {
        (1, "a"): 0.75, (1, "b"): 0.25,
        (61, "a"): 0.0, (61, "b"): 1.0,
        (121, "a"): 1 / 3, (121, "b"): 2 / 3,
    }  # fmt: skip
    for step in (25, 85, 145):
        training = train(killed)
        wait_until(lambda step=step: last_step(killed) >= step)  # type: ignore[misc]
        for pid in processes_in(killed):
            os.kill(pid, signal.SIGKILL)
        assert training.wait(timeout=20) == -9
    assert last_step(killed) < 180
    assert train(killed).wait(timeout=200) == 0
    expected, found = weights(whole), weights(killed)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


def test_a_weight_of_an_entry_that_has_no_pair_left_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pairs of b are also in a. The entry a comes first, so it keeps them."""
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        write_pairs(tmp_path, name, sentences(300, seed=1))
    recipe, _, _ = RECIPE.replace(', tag = "<bt>"', "").partition("[[stages]]")
    (tmp_path / "stages.toml").write_text(recipe)
    run = dragoman.train(dragoman.load_recipe("stages.toml", ["train.max_steps=1"]))
    payloads = [event.payload for event in read_events(run.events / "log.jsonl")]
    (cause,) = [one["cause"] for one in payloads if "no pair of" in one.get("cause", "")]
    assert cause == "no pair of b is left, so its weight has no effect"
    assert [one["share"] for one in payloads if "draws_per_pair" in one] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["data.batch_tokens=1024"], []),
        (["data.batch_tokens=256"], ["only 2 of 4", "longest pair takes more than 1/3 of"]),
        (["data.batch_tokens=256", "data.length_groups=2"], []),
        (["data.batch_tokens=256", "data.bucket=false"], []),
        (["data.batch_sentences=32"], []),
        (["data.batch_sentences=33"], ["only 3 of 4", "batch_sentences is not a multiple of 4"]),
    ],
)
def test_fewer_groups_than_the_recipe_says_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: list[str], expected: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        sources, targets = sentences(100, seed=ord(name))
        write_pairs(tmp_path, name, ([*sources, "ba de " * 50], [*targets, "fi go " * 50]))
    recipe, _, _ = RECIPE.replace("batch_tokens = 256", "").partition("[[stages]]")
    (tmp_path / "stages.toml").write_text(recipe)
    run = dragoman.train(dragoman.load_recipe("stages.toml", ["train.max_steps=1", *settings]))
    payloads = [event.payload for event in read_events(run.events / "log.jsonl")]
    found = " ".join(one["cause"] for one in payloads if "length_groups" in one.get("cause", ""))
    assert bool(found) == bool(expected)
    assert all(words in found for words in expected)
