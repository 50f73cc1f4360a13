"""Batch and learning rate: each rule against what its paper says, and what a plan says of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import dragoman
from dragoman.cluster.batch_rules import UpdateSettings, batch_rules
from dragoman.cluster.plan_request import PlanRequest, plan_recipe
from dragoman.cluster.plan_view import larger_batches, plan_as_json
from dragoman.recipe.recipe import Recipe, load_recipe
from dragoman.telemetry.events import EventWriter
from dragoman.training.schedule import learning_rate
from example_events import RUN_STARTED, TRAIN_INTERVAL


def settings(recipe: Recipe, factor: float) -> dict[str, dict[str, float]]:
    """By rule: what it sets."""
    rules = batch_rules(UpdateSettings.of(recipe), factor=factor)
    return {
        rule.name: {key: float(value) for key, value in (one.split("=") for one in rule.settings)}
        for rule in rules
    }


def test_goyal_s_eight_times_256_images_have_eight_times_the_rate() -> None:
    """A batch of 256 at 0.1 becomes 2,048 at 0.8, with an eighth of the steps."""
    recipe = load_recipe(
        "demo",
        ["schedule.peak_learning_rate=0.1", "train.max_steps=8000", "schedule.warmup_steps=400"],
    )
    assert settings(recipe, 8)["linear"] == {
        "train.max_steps": 1000,
        "schedule.warmup_steps": 50,
        "schedule.peak_learning_rate": pytest.approx(0.8),
    }


def test_malladi_s_rule_for_adam() -> None:
    """Definition 5.2 (square root scaling rule): k = 4 of (1e-3, 0.9, 0.98, 1e-8)."""
    recipe = load_recipe(
        "demo",
        [
            "schedule.peak_learning_rate=1e-3",
            "optimizer.beta1=0.9",
            "optimizer.beta2=0.98",
            "optimizer.epsilon=1e-8",
        ],
    )
    found = settings(recipe, 4)["square root"]
    assert found["schedule.peak_learning_rate"] == pytest.approx(2e-3)
    assert found["optimizer.beta1"] == pytest.approx(0.6)
    assert found["optimizer.beta2"] == pytest.approx(0.92)
    assert found["optimizer.epsilon"] == pytest.approx(5e-9)
    (rule, _linear) = batch_rules(UpdateSettings.of(recipe), factor=16)
    assert rule.beyond == "beta1 would be negative: the rule does not reach so far"
    assert not any("beta" in one for one in rule.settings)


def test_the_noise_of_an_update_stays_with_the_root_of_the_batch() -> None:
    """Krizhevsky 2014: an update's variance is rate^2 x that of a gradient over its batch."""
    torch.manual_seed(5)
    gradients = torch.randn(3200, 64)
    rate, factor = 0.1, 4
    small = rate * gradients.reshape(-1, 8, 64).mean(1)
    large = rate * factor**0.5 * gradients.reshape(-1, 32, 64).mean(1)
    assert large.var().item() == pytest.approx(small.var().item(), rel=0.1)


def rate_at(step: int, recipe: Recipe) -> float:
    return learning_rate(
        step, recipe.schedule, d_model=recipe.model.d_model, max_steps=recipe.train.max_steps
    )


@pytest.mark.parametrize("kind", ["noam", "inverse_sqrt", "cosine", "linear", "wsd"])
def test_the_rate_at_the_same_place_of_the_text(kind: str) -> None:
    """Halfway through the text, and in the warm-up, it is sqrt(4) and 4 times what it was."""
    changes = [f"schedule.kind={kind}", "schedule.warmup_steps=400", "train.max_steps=4000"]
    recipe = load_recipe("demo", [*changes, "schedule.decay_steps=800"])
    for rule, times in zip(batch_rules(UpdateSettings.of(recipe), factor=4), (2, 4), strict=True):
        known = [one for one in rule.settings if not one.startswith("optimizer")]
        changed = load_recipe("demo", [*changes, "schedule.decay_steps=800", *known])
        for step in (199, 1999, 3799):
            before = rate_at(step, recipe)
            after = rate_at((step + 1) // 4 - 1, changed)
            assert after == pytest.approx(times * before, rel=0.03), (rule.name, step)


def test_a_plan_advises_and_changes_nothing() -> None:
    recipe = load_recipe("demo")
    made = plan_recipe(recipe, PlanRequest(ranks="4", link="10Gbit", gpu="cpu"))
    head, root, linear = larger_batches(made)
    assert "with any number of ranks, so the learning rate stays" in head
    assert "data.batch_tokens=8192" in head
    assert "nothing is changed" in head
    assert root.startswith("  square root (Krizhevsky 2014; for Adam Malladi et al. 2022): ")
    assert f"train.max_steps={recipe.train.max_steps // 4}" in root
    assert f"schedule.peak_learning_rate={recipe.schedule.peak_learning_rate * 4:.3g}" in linear
    assert json.loads(plan_as_json(made))["larger_batch"]["factor"] == 4
    alone = plan_recipe(recipe, PlanRequest(ranks="1", gpu="cpu"))
    assert larger_batches(alone) == []


def test_an_update_of_several_batches_is_described_as_one() -> None:
    made = plan_recipe(
        load_recipe("wmt16-ende-reference"),
        PlanRequest(ranks="2", link="3Gbit", gpu="v100", compute="0.45s"),
    )
    assert made.choice.prediction.strategy == "accum"
    every = made.choice.prediction.every
    assert larger_batches(made)[0].startswith(f"An update of {every} batches has ")
    vast = plan_recipe(
        load_recipe("wmt16-ende-big"), PlanRequest(ranks="8x8", link="400Gbit", gpu="a100")
    )
    assert "beyond 402k target tokens" in larger_batches(vast)[-1]


def test_the_noise_scale_s_rule_is_that_of_its_papers() -> None:
    """At the noise scale twice the steps of the fewest are needed; Adam's rate is highest there."""
    recipe = load_recipe("demo", ["schedule.peak_learning_rate=1e-3", "train.max_steps=6000"])

    def found(tokens: float, factor: float) -> dict[str, float]:
        rule, *others = batch_rules(
            UpdateSettings.of(recipe, tokens=tokens, noise_tokens=8000.0), factor=factor
        )
        assert rule.name == "noise scale"
        assert [one.name for one in others] == ["square root", "linear"]
        return {key: float(value) for key, value in (one.split("=") for one in rule.settings)}

    at_noise = found(8000, 1)
    assert at_noise["train.max_steps"] == 6000
    vast = found(8000, 1e6)
    assert vast["train.max_steps"] == pytest.approx(3000, rel=0.01)
    # Far below the noise scale it is the square root, and steps fall as the batch grows.
    small = found(8, 4)
    assert small["train.max_steps"] == pytest.approx(1500, rel=0.01)
    assert small["schedule.peak_learning_rate"] == pytest.approx(2e-3, rel=0.01)
    # As far above it as below, the rate is the same.
    assert found(4000, 4)["schedule.peak_learning_rate"] == pytest.approx(1e-3)


def write_noisy_run(path: Path, *, intervals: int) -> Path:
    """The record of a run whose gradient noise scale was 400 first, and 5,000 in the later half."""
    with EventWriter(path / "events") as events:
        events.write(RUN_STARTED, step=0)
        for number in range(1, intervals + 1):
            noise = 2.0 if number <= intervals // 2 else 25.0 + number % 2
            measured = replace(TRAIN_INTERVAL, gradient_signal=0.0051, gradient_noise=noise)
            events.write(measured, step=100 * number)
    return path


def test_a_plan_like_a_run_says_its_noise_scale(tmp_path: Path) -> None:
    run = write_noisy_run(tmp_path / "run", intervals=12)
    recipe = load_recipe("demo")
    made = dragoman.plan(recipe, ranks="4", link="10Gbit", gpu="cpu", like=run)
    lines = larger_batches(made)
    assert "The gradient noise scale is 5k target tokens" in lines[1]
    assert lines[2].startswith("  noise scale (McCandlish et al. 2018; for Adam Li et al. 2024): ")
    assert lines[2].endswith("times the text")
    few = write_noisy_run(tmp_path / "few", intervals=4)
    with pytest.raises(dragoman.ConfigError, match="has not measured its gradient noise"):
        dragoman.plan(recipe, ranks="4", gpu="cpu", like=few)
    answers = dragoman.report(run).answers
    (answer,) = [one for one in answers if one.question == "What does the learning rate do?"]
    assert "5k target tokens; a batch has 2.10k" in str(answer)
