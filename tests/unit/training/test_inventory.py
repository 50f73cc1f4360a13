"""Every file of a real run has a purpose, and the forecast is what the run then takes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman
from dragoman.base.errors import CheckpointError
from dragoman.cli import main
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.prepare import prepare
from dragoman.training.average import average_checkpoints
from dragoman.training.checkpoint import CheckpointStore
from dragoman.training.config import CheckpointConfig, TrainConfig
from dragoman.training.inventory import forecast_disk, take_inventory
from real_text import write_real_text
from small_run import small_run
from toy_fit import TRAIN_PAIRS, ToyRun


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ToyRun:
    directory = tmp_path_factory.mktemp("run")
    train = TrainConfig(max_steps=20, validate_every_steps=5, ema_decay=0.5, log_every_steps=1)
    toy = ToyRun(directory, train, CheckpointConfig(every_steps=5, keep_last=2))
    toy.fit()
    store = CheckpointStore(directory / "checkpoints", toy.checkpoint)
    average_checkpoints(store.last(2), directory / "checkpoints" / "average")
    for name in ("recipe.toml", "source.model", "samples/step-0000005.de", "logs/launch.log"):
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text("x" * 10)
    return toy


def test_every_file_of_a_run_has_a_purpose(run: ToyRun) -> None:
    inventory = take_inventory(run.directory)
    assert all(entry.purpose != "not written by dragoman" for entry in inventory.entries)
    on_disk = [path for path in run.directory.rglob("*") if path.is_file()]
    assert {run.directory / entry.path for entry in inventory.entries} == set(on_disk)
    assert inventory.size_bytes == sum(path.stat().st_size for path in on_disk)
    assert sum(inventory.bytes_by_part().values()) == inventory.size_bytes


def test_a_checkpoint_is_broken_down(run: ToyRun) -> None:
    checkpoint = run.directory / "checkpoints" / "step-0000020"
    inventory = take_inventory(checkpoint)
    parts = {entry.path.name: entry.part for entry in inventory.entries}
    assert parts == {
        "model.safetensors": "weights",
        "updated.safetensors": "state",
        "optimizer.safetensors": "optimizer",
        "state.json": "state",
        "digests.json": "state",
    }
    bytes_of_weights = (checkpoint / "model.safetensors").stat().st_size
    assert inventory.inference_bytes() == bytes_of_weights
    assert take_inventory(run.directory).inference_bytes() == bytes_of_weights + 10


def test_strangers_are_called_so(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (entry,) = take_inventory(tmp_path).entries
    assert (entry.part, entry.purpose) == ("record", "not written by dragoman")
    with pytest.raises(CheckpointError, match="no such directory"):
        take_inventory(tmp_path / "nothing")


def test_the_forecast_holds(run: ToyRun) -> None:
    model_file = run.directory / "checkpoints" / "step-0000020" / "model.safetensors"
    vocab_size = TRAIN_PAIRS.vocab_size
    num_parameters = run.model.num_parameters(
        source_vocab_size=vocab_size, target_vocab_size=vocab_size
    )
    assert model_file.stat().st_size == pytest.approx(num_parameters * 4, rel=0.1)
    forecast = forecast_disk(num_parameters, train=run.train, checkpoint=run.checkpoint)
    assert forecast.num_checkpoints == 5
    steps = list((run.directory / "checkpoints").glob("step-*"))
    assert len(steps) <= forecast.num_checkpoints
    measured = sum(file.stat().st_size for file in steps[-1].iterdir())
    assert measured == pytest.approx(forecast.checkpoint_bytes, rel=0.15)
    events = run.directory / "events" / "log.jsonl"
    assert events.stat().st_size < 1.5 * forecast.record_bytes


def test_the_newest_checkpoint_is_the_one_of_the_highest_step(tmp_path: Path) -> None:
    for step, size in ((9_999_999, 3), (10_000_000, 5)):
        folder = tmp_path / "checkpoints" / f"step-{step}"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"x" * size)
    assert take_inventory(tmp_path).inference_bytes() == 5


def test_exports_are_known_and_not_needed_to_translate_with_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_run().path, run)
    before = take_inventory(run).inference_bytes()
    for to in ("huggingface", "onnx"):
        dragoman.export(run, to=to)
    inventory = take_inventory(run)
    assert inventory.inference_bytes() == before
    assert all(entry.purpose != "not written by dragoman" for entry in inventory.entries)
    exported = sum(path.stat().st_size for path in run.glob("export/*/*"))
    assert inventory.bytes_by_part()["export"] == exported


def test_every_file_of_prepared_shards_has_a_purpose(tmp_path: Path) -> None:
    write_real_text(tmp_path, "train", 300)
    write_real_text(tmp_path, "valid", 20)
    english, german = "source_language", "target_language"
    entries = {
        split: [
            {"source": f"{split}.en", "target": f"{split}.de"},
            {"source": f"{split}.de", "target": f"{split}.en", english: "de", german: "en"},
        ]
        for split in ("train", "valid")
    }
    config = CorpusConfig.model_validate(
        {"folder": str(tmp_path), english: "en", german: "de", "subword": {"vocab_size": 300}}
        | entries
    )
    prepare(config, tmp_path / "prepared", workers=1)
    purposes = {
        str(entry.path): entry.purpose for entry in take_inventory(tmp_path / "prepared").entries
    }
    assert {"train/entries.npy", "valid/directions.txt"} <= purposes.keys()
    assert "not written by dragoman" not in purposes.values()


def test_the_forecast_of_a_run_knows_its_strategy_and_ranks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_run().path, run)

    def checkpoint() -> str:
        assert main(["inspect", str(run)]) == 0
        lines = capfd.readouterr().out.splitlines()
        (line,) = (line for line in lines if line.startswith("this run, at most"))
        return line.partition("checkpoints of ")[2]

    alone = checkpoint()
    log = run / "events" / "log.jsonl"
    log.write_text(log.read_text().replace('"world_size": 1', '"world_size": 2'))
    assert checkpoint() == alone, "a sum of gradients has no state"
    recipe = run / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('strategy = "sync"', 'strategy = "diloco"'))
    assert checkpoint() != alone


def test_looking_at_files_needs_no_torch() -> None:
    code = "import sys, dragoman.training.inventory; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_lock_and_the_record_of_a_session_are_told_apart(tmp_path: Path) -> None:
    for name in ("session.json", "session.lock"):
        (tmp_path / name).touch()
    found = {entry.path.name: entry.purpose for entry in take_inventory(tmp_path).entries}
    assert len({*found.values()}) == 2
    assert "locked" in found["session.lock"]
