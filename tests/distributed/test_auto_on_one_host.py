"""`auto` without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dragoman.distributed.world import World
from dragoman.recipe.recipe import load_recipe
from dragoman.run import auto
from ranks import run_ranks
from toy_fit import recorder
from toy_task import TOY_MODEL, ToyPairs, toy_training


def _chosen(world: World, directory: str) -> list[Any]:
    """The strategy, and how often diloco's own work was measured."""
    recipe = load_recipe("demo", ["distributed.strategy=auto"])
    with (
        mock.patch.object(auto, "measure_weight_s", return_value=1e-9) as measured,
        recorder(Path(directory), rank=world.rank) as events,
        toy_training(ToyPairs(300), model=TOY_MODEL, world=world) as training,
    ):
        config, *_ = auto.choose_strategy(
            recipe,
            training.model,
            training.stream,
            precision="fp32",
            world=world,
            events=events,
        )
    return [config.strategy, measured.call_count]


@pytest.mark.system
def test_auto_on_one_host_does_not_measure_diloco(tmp_path: Path) -> None:
    """It takes a second, and half a gigabyte on each rank."""
    for strategy, times in run_ranks(_chosen, str(tmp_path / "events"), world_size=2):
        assert strategy == "sync"
        assert times == 0
