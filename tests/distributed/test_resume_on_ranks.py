"""A run that is resumed on the same number of ranks ends with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from dragoman.distributed.world import World
from dragoman.train.config import TrainConfig
from ranks import run_ranks
from toy_fit import ToyRun


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
