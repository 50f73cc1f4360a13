"""Batch and learning rate: each rule against what its paper says, and what a plan says of it."""

from __future__ import annotations

import json

import pytest
import torch

from dragoman.cluster.batch_rules import UpdateSettings, batch_rules
from dragoman.cluster.plan_request import PlanRequest, plan_recipe
from dragoman.cluster.plan_view import larger_batches, plan_as_json
from dragoman.recipe.recipe import Recipe, load_recipe
from dragoman.training.schedule import learning_rate


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
    assert "with any number of ranks, so that the learning rate stays" in head
    assert "data.batch_tokens=8192" in head
    assert "nothing is changed" in head
    assert root.startswith("  square root (Krizhevsky 2014; for Adam Malladi et al. 2022): ")
    assert f"train.max_steps={recipe.train.max_steps // 4}" in root
    assert f"schedule.peak_learning_rate={recipe.schedule.peak_learning_rate * 4:.3g}" in linear
    assert json.loads(plan_as_json(made))["larger_batch"]["factor"] == 4
    alone = plan_recipe(recipe, PlanRequest(ranks="1", gpu="cpu"))
    assert larger_batches(alone) == []


def test_an_update_of_several_batches_is_told_as_one() -> None:
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
