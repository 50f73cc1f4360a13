"""Real steps of one rank, as doctor measures them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from dragoman.data.loader import Update
from dragoman.distributed.world import World
from dragoman.model.config import ModelConfig
from dragoman.training.matrix_rate import measure_device
from dragoman.training.step import TrainStep
from dragoman.training.step_rate import StepCost, agree, measure_steps, step_cost


@pytest.mark.system
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


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[StepCost], list[int]]:
    """A machine whose steps take as long as a cost says; the list gets their target tokens."""

    def make(cost: StepCost) -> list[int]:
        taken: list[int] = []
        now_s = 0.0

        def step(_: TrainStep, update: Update, **__: object) -> None:
            nonlocal now_s
            now_s += cost.fixed_s + cost.token_s * update.global_target_tokens
            now_s += 5 * cost.fixed_s * (not taken)  # the first one makes the optimizer's state
            taken.append(update.global_target_tokens)

        monkeypatch.setattr(TrainStep, "__call__", step)
        monkeypatch.setattr("dragoman.telemetry.timers.PhaseTimer.step_done", lambda _: None)
        for clock in ("monotonic", "perf_counter"):
            monkeypatch.setattr(time, clock, lambda: now_s)
        return taken

    return make


TINY = ModelConfig(d_model=16, num_heads=2, d_ffn=32, encoder_layers=1, decoder_layers=1)


@pytest.mark.parametrize(
    ("cost", "most_steps"),
    [(StepCost(1e-3, 1e-5), 8), (StepCost(1.5, 1e-3), 3), (StepCost(20.0, 0.02), 3)],
    ids=["a small model", "a large model", "a large model on a busy machine"],
)
def test_a_straight_line_is_found_in_little_time(
    cost: StepCost, most_steps: int, steps: Callable[[StepCost], list[int]]
) -> None:
    taken = steps(cost)
    world = World(0, 1, 0, torch.device("cpu"))
    found = step_cost(world, TINY, vocab_size=50, pairs=132, precision="fp32", at_most_s=3.0)
    assert found.fixed_s == pytest.approx(cost.fixed_s)
    assert found.token_s == pytest.approx(cost.token_s)
    assert len(taken) <= most_steps
    assert max(taken) <= 132 * 32


def test_one_pair_is_enough(steps: Callable[[StepCost], list[int]]) -> None:
    steps(StepCost(1.0, 0.001))
    world = World(0, 1, 0, torch.device("cpu"))
    found = step_cost(world, TINY, vocab_size=50, pairs=1, precision="fp32", at_most_s=3.0)
    assert found.fixed_s + found.token_s * 32 == pytest.approx(1.032)


def test_real_steps_have_a_cost() -> None:
    world = World(0, 1, 0, torch.device("cpu"))
    found = step_cost(world, TINY, vocab_size=50, pairs=64, precision="fp32", at_most_s=1.0)
    assert found.fixed_s >= 0.0
    assert found.token_s > 0.0
