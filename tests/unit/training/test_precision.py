from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import torch

from dragoman.distributed.world import World
from dragoman.training import precision
from dragoman.training.config import Precision, TrainConfig
from dragoman.training.precision import agreed_precision, fastest_precision
from ranks import run_ranks
from toy_task import ONE_RANK


def _agreed(world: World, by_rank: list[Precision]) -> str:
    with mock.patch.object(precision, "fastest_precision", return_value=by_rank[world.rank]):
        return agreed_precision(TrainConfig(), world)


@pytest.mark.parametrize(
    ("by_rank", "agreed"),
    [(["bf16", "bf16"], "bf16"), (["bf16", "fp32"], "fp32"), (["fp32", "fp32"], "fp32")],
)
def test_all_ranks_train_in_the_fastest_precision_that_all_have(
    by_rank: list[Precision], agreed: str
) -> None:
    assert run_ranks(_agreed, by_rank, world_size=2) == [agreed, agreed]


@pytest.mark.parametrize("wanted", ["fp32", "bf16", "fp16"])
def test_a_recipe_fixes_the_precision(wanted: Precision) -> None:
    assert agreed_precision(TrainConfig(precision=wanted), ONE_RANK) == wanted


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="only Linux names instructions")
def test_a_processor_with_instructions_for_bf16_trains_in_it() -> None:
    flags = Path("/proc/cpuinfo").read_text().split()
    has_bf16 = "avx512_bf16" in flags or "amx_bf16" in flags
    assert fastest_precision("cpu") == ("bf16" if has_bf16 else "fp32")


@pytest.mark.parametrize(("capability", "found"), [((7, 0), "fp32"), ((8, 0), "bf16")])
def test_gpus_from_ampere_on_train_in_bf16(capability: tuple[int, int], found: str) -> None:
    with mock.patch.object(torch.cuda, "get_device_capability", return_value=capability):
        assert fastest_precision.__wrapped__("cuda") == found
