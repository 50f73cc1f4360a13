"""Averaged checkpoints: the mean, its sources, and what cannot be averaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from dragoman.base.errors import CheckpointError
from dragoman.training.average import average_checkpoints
from dragoman.training.checkpoint import CheckpointStore, TrainState, load_weights
from dragoman.training.config import CheckpointConfig
from dragoman.training.durable import verify


def save(store: CheckpointStore, step: int, weight: torch.Tensor) -> Path:
    state = TrainState(
        step=step, seed=1, world_size=1, recipe_digest="r", corpus_digest="c", dev_loss=9.0 - step
    )
    return store.save(state, {"model": {"weight": weight}}).path


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", CheckpointConfig(keep_last=10))


def test_the_mean_is_taken_and_can_be_loaded(store: CheckpointStore) -> None:
    weights = [torch.randn(3, 4, generator=torch.Generator().manual_seed(n)) for n in range(5)]
    for step, weight in enumerate(weights):
        save(store, step, weight)
    output = store.directory / "average"
    average_checkpoints(store.last(3), output)
    model = nn.Linear(4, 3, bias=False)
    load_weights(output, model)
    torch.testing.assert_close(model.weight.detach(), torch.stack(weights[2:]).mean(0))
    verify(output)
    provenance = json.loads((output / "provenance.json").read_text())["average_of"]
    assert [source["step"] for source in provenance] == [2, 3, 4]
    # It lies among the checkpoints but is none of them.
    assert len(store.paths()) == 5


def test_the_mean_of_equal_weights_is_exactly_them(store: CheckpointStore) -> None:
    weight = torch.randn(50, 4)
    for step in range(3):
        save(store, step, weight)
    average_checkpoints(store.best(3), store.directory / "average")
    model = nn.Linear(4, 50, bias=False)
    load_weights(store.directory / "average", model)
    assert torch.equal(model.weight, weight)


def test_checkpoints_that_cannot_be_averaged_are_named(store: CheckpointStore) -> None:
    output = store.directory / "average"
    with pytest.raises(CheckpointError, match="no checkpoint to average"):
        average_checkpoints([], output)
    paths = [save(store, 1, torch.zeros(2, 2)), save(store, 2, torch.zeros(3, 2))]
    with pytest.raises(CheckpointError, match=r"step-0000002.*weight is \(3, 2\)"):
        average_checkpoints(paths, output)
    (paths[1] / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"step-0000002.*has 0 bytes"):
        average_checkpoints(paths, output)
    assert not output.exists()


def test_nothing_but_an_older_average_is_replaced(store: CheckpointStore) -> None:
    paths = [save(store, step, torch.full((2, 2), float(step))) for step in (1, 2, 3)]
    output = store.directory / "average"
    for chosen in (paths[:2], paths[1:]):
        average_checkpoints(chosen, output)
    model = nn.Linear(2, 2, bias=False)
    load_weights(output, model)
    assert torch.equal(model.weight, torch.full((2, 2), 2.5))
    file = store.directory / "recipe.toml"
    file.write_text("precious")
    for other in (paths[0], store.directory, file):
        with pytest.raises(CheckpointError, match="is not an average"):
            average_checkpoints(paths, other)
    assert file.read_text() == "precious"
    verify(paths[0])
