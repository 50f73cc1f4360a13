"""Resuming on several ranks: the same bits, and the same checkpoint for all of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from dragoman.base.errors import CheckpointError
from dragoman.distributed.config import DilocoConfig, DistributedConfig
from dragoman.distributed.world import World
from dragoman.training.checkpoint import CheckpointStore
from dragoman.training.config import CheckpointConfig, TrainConfig
from dragoman.training.durable import verify
from dragoman.training.snapshot import agreed_checkpoint, resume, share_newest
from ranks import run_ranks
from toy_fit import TRAIN_PAIRS, ToyRun
from toy_task import toy_training


def _fit(world: World, directory: str, max_steps: int) -> Any:
    return ToyRun(Path(directory), TrainConfig(max_steps=max_steps)).fit(world).state.step


def test_resumed_weights_are_bit_identical(tmp_path: Path) -> None:
    # Two ranks add in either order to the same sum; with three the order tells.
    world_size = 3
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    run_ranks(_fit, str(whole), 15, world_size=world_size)
    run_ranks(_fit, str(halved), 5, world_size=world_size)
    run_ranks(_fit, str(halved), 15, world_size=world_size)
    expected, found = (
        load_file(run / "checkpoints" / "step-0000015" / "model.safetensors")
        for run in (whole, halved)
    )
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


DILOCO = DistributedConfig(strategy="diloco", diloco=DilocoConfig(every=4, fragments=2, delay=2))


def _fit_diloco(world: World, directory: str, max_steps: int) -> Any:
    world.barrier()  # rank 0 may still be writing what the others are to go on from
    train = TrainConfig(max_steps=max_steps, validate_every_steps=4)
    checkpoint = CheckpointConfig(every_steps=4, keep_last=100)
    return ToyRun(Path(directory), train, checkpoint, distributed=DILOCO).fit(world).state.dev_loss


def test_regrouped_replicas_go_on_from_their_shared_weights(tmp_path: Path) -> None:
    run_ranks(_fit_diloco, str(tmp_path), 10, world_size=3, hosts=[2, 1])
    shutil.rmtree(tmp_path / "checkpoints" / "step-0000010")  # at the end all were alike
    losses = run_ranks(_fit_diloco, str(tmp_path), 20, world_size=3, hosts=[1, 2])
    assert losses == losses[:1] * 3
    apart, first, second = (
        load_file(tmp_path / "checkpoints" / rank / "step-0000016" / "replica.safetensors")
        for rank in (".", "rank-0001", "rank-0002")
    )
    assert not all(torch.equal(tensor, first[name]) for name, tensor in apart.items())
    for name, tensor in first.items():
        # The rank that speaks for its host has all that rounding has taken.
        assert name.endswith("unsent") or torch.equal(tensor, second[name]), name


def _resumed(world: World, directories: list[str]) -> Any:
    """The step at which this rank resumes, or why not, with the files of its own machine."""
    found: list[int | str | None] = []
    for directory in directories:
        store = CheckpointStore(Path(directory) / f"machine-{world.rank}", CheckpointConfig())
        try:
            checkpoint = agreed_checkpoint(store, world, lambda _error: None)
        except CheckpointError as error:
            found.append(error.problem)
            continue
        if checkpoint is None:
            found.append(None)
            continue
        with toy_training(TRAIN_PAIRS, world=world) as training:
            found.append(resume(checkpoint, store, training.step).step)
    return found


def test_ranks_of_several_machines_go_on_from_one_checkpoint(tmp_path: Path) -> None:
    ToyRun(tmp_path / "one", TrainConfig(max_steps=10)).fit()
    ToyRun(tmp_path / "two", TrainConfig(max_steps=10, seed=2)).fit()
    names = ("none", "equal", "damaged", "lost", "only older", "other")
    cases = {name: tmp_path / name for name in names}
    for case in list(cases)[1:]:
        for machine in ("machine-0", "machine-1"):
            shutil.copytree(tmp_path / "one" / "checkpoints", cases[case] / machine)
    with (cases["damaged"] / "machine-1/step-0000010/model.safetensors").open("ab") as file:
        file.write(b"?")
    shutil.rmtree(cases["lost"] / "machine-1")
    shutil.rmtree(cases["only older"] / "machine-0/step-0000010")
    shutil.rmtree(cases["only older"] / "machine-1/step-0000005")
    shutil.rmtree(cases["other"] / "machine-1")
    shutil.copytree(tmp_path / "two" / "checkpoints", cases["other"] / "machine-1")
    said = run_ranks(_resumed, [str(path) for path in cases.values()], world_size=2)
    refused = [
        "rank 1 has no checkpoint, and rank 0 has one of step 10",
        "rank 1 lacks the checkpoint of step 5, the newest intact one of rank 0",
        "ranks 0 and 1 have different checkpoints of step 10",
    ]
    assert said == [[None, 10, 5, *refused]] * 2


def _given(world: World, directories: list[str]) -> Any:
    """The step at which this rank resumes once rank 0 has given its checkpoint to all."""
    found = []
    for directory in directories:
        store = CheckpointStore(Path(directory) / f"machine-{world.rank}", CheckpointConfig())
        share_newest(store, world, lambda _error: None)
        checkpoint = agreed_checkpoint(store, world, lambda _error: None)
        found.append(None if checkpoint is None else checkpoint.state.step)
    return found


def test_a_machine_gets_the_newest_intact_checkpoint_of_rank_0(tmp_path: Path) -> None:
    ToyRun(tmp_path / "one", TrainConfig(max_steps=10)).fit()
    cases = {name: tmp_path / name for name in ("none", "missing", "damaged here", "damaged there")}
    for case in list(cases)[1:]:
        for machine in ("machine-0", "machine-1"):
            shutil.copytree(tmp_path / "one" / "checkpoints", cases[case] / machine)
    shutil.rmtree(cases["missing"] / "machine-1/step-0000010")
    shutil.copytree(
        cases["missing"] / "machine-1/step-0000005", cases["missing"] / "machine-1/step-0000000"
    )
    with (cases["damaged here"] / "machine-0/step-0000010/model.safetensors").open("ab") as file:
        file.write(b"?")
    with (cases["damaged there"] / "machine-1/step-0000010/model.safetensors").open("ab") as file:
        file.write(b"?")
    said = run_ranks(_given, [str(path) for path in cases.values()], world_size=2, hosts=[1, 1])
    assert said == [[None, 10, 5, 10]] * 2
    there = cases["missing"] / "machine-1"
    assert sorted(path.name for path in there.iterdir()) == ["step-0000000", "step-0000010"]
    verify(there / "step-0000010")
    same = "step-0000010/model.safetensors"
    assert (there / same).read_bytes() == (there.with_name("machine-0") / same).read_bytes()
