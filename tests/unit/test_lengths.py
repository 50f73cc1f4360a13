"""How the seconds of a budget become steps, validations and saves."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.recipe.recipe import load_recipe
from dragoman.run.lengths import lengths, weights_s

STEP_S, VALIDATION_S, SAVE_S = 0.1, 2.0, 0.5
"""A validation with the save after it."""


def found(left_s: float, most_steps: int | None = None) -> dict[str, Any]:
    return lengths(
        step_s=STEP_S,
        validation_s=VALIDATION_S - SAVE_S,
        save_s=SAVE_S,
        left_s=left_s,
        most_steps=most_steps,
    )


def test_validations_take_six_percent_of_the_time() -> None:
    values = found(600.0)
    steps, every = values["train.max_steps"], values["train.validate_every_steps"]
    count = -(-steps // every)
    assert count * VALIDATION_S == pytest.approx(0.06 * 600, rel=0.1)
    assert steps * STEP_S + count * VALIDATION_S == pytest.approx(600, rel=0.01)
    assert values["checkpoint.every_minutes"] == pytest.approx(600 / 30 / 60, rel=0.01)


def test_a_limit_of_steps_sets_the_times_between_validations() -> None:
    """They follow from the time of these steps, not from the longer time of the budget."""
    values = found(36_000.0, most_steps=6000)
    assert values["train.max_steps"] == 6000
    count = 6000 / values["train.validate_every_steps"]
    assert count * VALIDATION_S == pytest.approx(0.06 * 6000 * STEP_S / 0.94, rel=0.1)
    assert values["checkpoint.every_minutes"] == pytest.approx(6000 * STEP_S / 0.94 / 30 / 60, 0.01)
    few = found(36_000.0, most_steps=9)
    assert few["train.max_steps"] == 9
    assert few["train.validate_every_steps"] == 3


def test_the_work_after_the_training_of_a_large_model_takes_as_long_as_it_did() -> None:
    """19.4 s on an H100 with two busy cores, of which 3 s are those of the smallest model."""
    settings = ["d_model=1024", "num_heads=16", "d_ffn=4096", "encoder_layers=6"]
    settings = [f"model.{setting}" for setting in (*settings, "decoder_layers=6")]
    large = load_recipe("demo", [*settings, "corpus.subword.vocab_size=4000"])
    assert weights_s(large) == pytest.approx(19.4 - 3.0, rel=0.2)
    assert weights_s(load_recipe("demo")) < 1.0
