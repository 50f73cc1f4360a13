"""The rate of matrix products is that of real ones, and makes the useful share measurable."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest
import torch

from dragoman.recipe.recipe import dump_toml, load_recipe
from dragoman.reporting import measures
from dragoman.reporting.reading import read_facts
from dragoman.training.config import Precision
from dragoman.training.matrix_rate import measure_device, slow_precision
from example_events import changed
from recorded_runs import Recorded

SIZE = 1024
"""As large as those of the measurement: a busy machine interrupts longer products more often."""
TRIES = 20
"""A busy moment slows one of two measurements."""


def torch_flop_per_s(dtype: torch.dtype) -> float:
    """The median rate of PyTorch's own linear layer.

    A processor without instructions for bf16 takes seconds for one product, and several times as
    long for `one @ other`, whose columns lie apart in memory.
    """
    rows, weight = torch.randn(SIZE, SIZE, dtype=dtype), torch.randn(SIZE, SIZE, dtype=dtype)
    seconds: list[float] = []
    while len(seconds) < 7 and sum(seconds) < 1:
        began = time.perf_counter()
        torch.nn.functional.linear(rows, weight)
        seconds.append(time.perf_counter() - began)
    return 2 * SIZE**3 / statistics.median(seconds)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_device_has_the_rate_of_products_in_pytorch(precision: Precision) -> None:
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    times = []
    for _ in range(TRIES):
        found = measure_device(torch.device("cpu"), precision)
        times.append(found.matrix_flop_per_s / torch_flop_per_s(dtype))
        if 1 / 3 < times[-1] < 3:
            break
    else:
        pytest.fail(f"so many times the rate of PyTorch: {times}")
    assert found.device == "cpu"
    assert precision in found.method


def test_half_precision_that_is_slower_than_fp32_is_reported() -> None:
    fp32 = measure_device(torch.device("cpu"), "fp32")
    slow = changed(fp32, matrix_flop_per_s=fp32.matrix_flop_per_s / 10)
    fast = changed(fp32, matrix_flop_per_s=fp32.matrix_flop_per_s * 10)
    alert = slow_precision(slow, "bf16")
    assert alert is not None
    assert "times as long in bf16 as in fp32" in alert.cause
    assert "fp32 (train.precision)" in alert.remedy
    assert slow_precision(fast, "bf16") is None
    assert slow_precision(slow, "fp32") is None


def test_useful_flops_are_known_once_the_device_is_measured(tmp_path: Path) -> None:
    device = measure_device(torch.device("cpu"), "fp32")
    run = Recorded(extra=[(0, device), (1, device)]).write(tmp_path / "run")
    (run / "recipe.toml").write_text(dump_toml(load_recipe("demo")))
    share = measures.useful_flop_share(read_facts(run))
    assert share is not None
    assert 0 < share < 10
