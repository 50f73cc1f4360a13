"""Runs whose recipe has stages: stages decide the rate, the text and the future of the run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from dragoman.recipe.recipe import load_recipe
from dragoman.reporting.checks import examine, judge
from dragoman.reporting.reading import read_facts
from golden.test_logs_that_fool import edit
from recorded_runs import Recorded
from well_said import assert_well_said

RECIPE = (
    "corpus.subword.vocab_size=32768",
    "train.max_steps=8000",
    "schedule.peak_learning_rate=0.003",
    "schedule.warmup_steps=400",
)


def judged(folder: Path, stages: str, *, kind: str = "constant", **run: Any) -> dict[str, Any]:
    """The verdicts of a recorded run to whose recipe stages are added, by their keys."""
    recorded = Recorded(recipe=(*RECIPE, f"schedule.kind={kind}"), **run).write(folder)
    path = recorded / "recipe.toml"
    path.write_text(path.read_text() + stages)
    recipe = load_recipe(path)

    def logged(event: dict[str, Any]) -> None:
        event["learning_rate"] = recipe.learning_rate(event["step"] - 1)

    for rank in (0, 1):
        edit(recorded, rank, "train_interval", logged)
    facts = read_facts(recorded)
    found = {one.key: one for one in [*judge(facts), *examine(facts)]}
    for verdict in found.values():
        assert_well_said(verdict)
    return found


def flat(step: int) -> float:
    return 1.5 + 6 * math.exp(-step / 300) + 1e-4 * math.sin(step)


def two_stages(steps: int, first: float, second: float) -> str:
    return (
        f"\n[[stages]]\nsteps = {steps}\nlearning_rate_factor = {first}\n"
        f"[[stages]]\nlearning_rate_factor = {second}\n"
    )


@pytest.mark.parametrize("factors", [(1.0, 0.1), (0.01, 1.0)])
@pytest.mark.parametrize("stopped", [5000, 6000])
def test_a_flat_loss_before_a_stage_proves_nothing(
    tmp_path: Path, factors: tuple[float, float], stopped: int
) -> None:
    stages = two_stages(6000, *factors)
    found = judged(tmp_path, stages, steps=stopped, reason="signal", dev_loss=flat)
    assert found["trained"].answer == "cannot tell"
    assert "begins with step 6,001" in found["trained"].says
    assert found["plateau"].answer == "no"
    done = judged(tmp_path / "done", stages, dev_loss=flat)
    assert done["trained"].answer == "yes"


def test_the_learning_rate_follows_the_stages(tmp_path: Path) -> None:
    found = judged(tmp_path, two_stages(5003, 0.1, 1.0), kind="inverse_sqrt")["learning_rate"]
    assert "times 0.1 from step 1 on; times 1 from step 5,004 on" in found.says
    assert "rises to 8.482e-4 at step 5,004; the stages change it." in found.says
    assert found.remedy == ""
    plain = judged(tmp_path / "plain", two_stages(5003, 1.0, 1.0), kind="inverse_sqrt")
    assert plain["learning_rate"].says.endswith("then falls with the step alone.")


def test_a_stage_is_named_before_the_rate_is_blamed(tmp_path: Path) -> None:
    def worse(step: int) -> float:
        return 1.6 + 6 * math.exp(-step / 400) + max(0, step - 4000) / 4000 * 0.1

    def harder(step: int) -> float:
        return (1.6 if step <= 4000 else 2.6) + 4 * math.exp(-step / 400)

    found = judged(
        tmp_path,
        two_stages(4000, 1.0, 0.5),
        train_loss=harder,
        dev_loss=worse,
        train_slice_loss=worse,
    )
    for key in ("trained", "overfitting"):
        assert "stage that begins with step 4,001" in found[key].remedy
    assert found["rate_too_high"].answer == "cannot tell"


@pytest.mark.parametrize("weight", ["", ", weight = 1"])
def test_with_weights_text_may_repeat_in_the_first_epoch(tmp_path: Path, weight: str) -> None:
    recorded = Recorded(
        recipe=(*RECIPE, f'corpus.train=[{{tsv = "a.tsv"{weight}}}]'),
        dev_loss=flat,
        train_slice_loss=lambda step: 0.2 * flat(step),
    ).write(tmp_path)
    for rank in (0, 1):
        edit(recorded, rank, "train_interval", lambda event: event.update(epoch=0))
    (found,) = [one for one in judge(read_facts(recorded)) if one.key == "overfitting"]
    assert_well_said(found)
    assert found.answer == "cannot tell"
    assert "20.0% of the dev loss" in found.says
