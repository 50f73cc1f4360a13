"""The record of a run holds the share of each entry of text in each stage."""

from __future__ import annotations

from pathlib import Path

import pytest

import dragoman
from parallel_text import sentences, write_pairs
from tiny_recipe import TINY

ENTRIES = """train = [
  {source = "a.en", target = "a.de", name = "a"},
  {source = "b.en", target = "b.de", name = "b"},
]"""
STAGES = "stages = [{steps = 1}, {steps = 1, weights = {b = 1}}, {}]\n"


@pytest.mark.system
def test_stages_without_weights_are_recorded_beside_those_with_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path, "a", sentences(60, seed=1))
    write_pairs(tmp_path, "b", sentences(30, seed=2))
    recipe = TINY.replace('train = [{source = "train.en", target = "train.de"}]', ENTRIES)
    Path("stages.toml").write_text(STAGES + recipe)
    settings = ["train.max_steps=3", "evaluate.bleu_pairs=0", "data.batch_tokens=256"]
    run = dragoman.train(dragoman.load_recipe("stages.toml", settings))
    planned = [one for one in dragoman.read_events(run) if one["kind"] == "mixture_planned"]
    pairs = {one["entry"]: one["pairs"] for one in planned}
    all_of_both = [pairs["a"] / (pairs["a"] + pairs["b"]), pairs["b"] / (pairs["a"] + pairs["b"])]
    for first_step, shares in ((1, all_of_both), (2, [0.0, 1.0]), (3, all_of_both)):
        found = [one["share"] for one in planned if one["first_step"] == first_step]
        assert found == pytest.approx(shares), first_step
    assert [one["draws_per_pair"] for one in planned] == pytest.approx([1, 1, 0, 1, 1, 1])
