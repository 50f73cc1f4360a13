"""Real steps of one rank, as doctor measures them."""

from __future__ import annotations

import time

import pytest
import torch

from dragoman.distributed.world import World
from dragoman.training.matrix_rate import measure_device
from dragoman.training.step_rate import agree, measure_steps


def test_steps_are_measured_and_their_arithmetic_is_counted() -> None:
    began = time.monotonic()
    found = measure_steps(World(0, 1, 0, torch.device("cpu")))
    wall_s = time.monotonic() - began
    # 2.05 million weights of the tied embedding, 1.57 of the encoder, 2.10 of the decoder.
    matrices = 8_000 * 256 + 2 * (4 * 256 * 256 + 2 * 256 * 1024) * 2 + 2 * 4 * 256 * 256
    assert 0 < 3 * found["step_s"] < wall_s, "three steps are timed at least"
    of_products = measure_device(torch.device("cpu"), "fp32").matrix_flop_per_s
    assert found["flop_per_s"] < 4 * of_products, "a step is hardly faster than its products"
    counted = found["flop_per_s"] * found["step_s"]
    assert counted == pytest.approx(6 * matrices * 16 * 32, rel=1e-12)


@pytest.mark.parametrize(
    ("seconds", "enough"),
    [
        ([0.50, 0.51, 0.50], True),
        ([0.50, 0.51, 0.70], False),
        ([0.50, 0.51, 0.50, 0.50, 2.00], True),  # one step that was disturbed
        ([0.50, 0.60, 0.50, 0.70, 0.51], False),
        ([0.50, 0.90, 0.50, 0.90, 0.90, 0.50], False),
        ([0.50, 0.52, 0.48, 0.56], False),
        ([0.50, 0.52, 0.48, 0.56] * 4, True),  # no less spread, but a median of more steps
    ],
)
def test_steps_that_agree_need_no_more_beside_them(seconds: list[float], enough: bool) -> None:
    assert agree(seconds) is enough
