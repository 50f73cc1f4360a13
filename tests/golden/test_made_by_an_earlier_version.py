"""A run and a bundle of an earlier version: they go on, and translate as they did.

The folder's README.md says how the files were made.
"""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from dragoman.cli import main
from dragoman.telemetry.events import TrainInterval, read_events
from served import serving

RECORDED = Path(__file__).parent / "from_4254f71"
NAME = "tiny-20261124T034953-58e1e01f"
"""The run's own name; its folder is called `run` here."""


@pytest.fixture
def expected() -> Any:
    return json.loads((RECORDED / "expected.json").read_bytes())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The run in a new place: only the path of its prepared corpus is changed."""
    path = copytree(RECORDED / "run", tmp_path / NAME)
    copytree(RECORDED / "shards", tmp_path / "prepared")
    record = json.loads((path / "corpus.json").read_bytes())
    record["prepared"] = str(tmp_path / "prepared")
    (path / "corpus.json").write_text(json.dumps(record))
    return path


def translated(path: Path, *options: str) -> list[str]:
    output = path.parent / "out.txt"
    output.unlink(missing_ok=True)
    source = str(RECORDED / "ten_lines.txt")
    arguments = ["translate", str(path), "--input", source, "--output", str(output), *options]
    assert main(arguments) == 0
    return output.read_text("utf-8").splitlines()


def test_the_run_resumes_with_the_same_losses(
    run: Path, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("model.safetensors", "digests.json"):
        (run / "checkpoints" / "step-0000200" / name).unlink()
    (run / "events" / "rank-0000.jsonl").unlink()  # it knows the steps up to 200 already
    assert main(["train", str(run)]) == 0
    losses = {
        event.step: event.payload["train_loss"]
        for event in read_events(run / "events" / "rank-0000.jsonl")
        if event.kind == TrainInterval.kind
    }
    assert set(losses) == set(range(101, 201))
    for step, loss in expected["losses_after_step_100"].items():
        # Another processor adds up in another order, which ten steps hardly enlarge.
        assert losses[int(step)] == pytest.approx(loss, rel=1e-5), step


@pytest.mark.parametrize("engine", ["ctranslate2", "torch"])
def test_run_and_bundle_translate_as_they_did(
    run: Path, tmp_path: Path, expected: Any, engine: str
) -> None:
    for step in (100, 200):
        found = translated(run, "--checkpoint", str(step), "--engine", engine)
        assert found == expected[f"translations_of_step_{step}"]
    bundle = copytree(RECORDED / "bundle", tmp_path / "bundle")
    assert translated(bundle, "--engine", engine) == expected["translations_of_step_200"]


def test_the_server_answers_from_the_bundle(tmp_path: Path, expected: Any) -> None:
    lines = (RECORDED / "ten_lines.txt").read_text("utf-8").splitlines()
    with serving(copytree(RECORDED / "bundle", tmp_path / "bundle")) as server:
        answer = server.ask("/translate", {"text": lines[2]})
        assert answer.status == 200
        (translation,) = answer.json["translations"]
        assert translation["text"] == expected["translations_of_step_200"][2]


def test_a_new_training_starts_from_the_bundle(tmp_path: Path) -> None:
    for name in ("train.tsv", "valid.tsv", "test.tsv", "tiny.toml"):
        (tmp_path / name).write_bytes((RECORDED / name).read_bytes())
    bundle = copytree(RECORDED / "bundle", tmp_path / "bundle")
    arguments = ["train", str(tmp_path / "tiny.toml"), "--from", str(bundle)]
    arguments += ["--runs", str(tmp_path / "runs"), "--prepared", str(tmp_path / "prepared")]
    arguments += ["--set", "train.max_steps=2", "--set", "checkpoint.every_steps=2"]
    assert main(arguments) == 0
    (made,) = (tmp_path / "runs").glob("tiny-*")
    events = list(read_events(made / "events" / "rank-0000.jsonl"))
    first = next(event for event in events if event.kind == TrainInterval.kind)
    assert first.payload["train_loss"] < 4.6  # untrained, it would be near ln 400 = 6.0
