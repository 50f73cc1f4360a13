"""Pilots on real text, inside a budget."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

import dragoman
from budget_text import write_budget_text
from dragoman.run import budget as budgets
from dragoman.run import choose
from dragoman.run.budget import BudgetPlan, Place, run_in_budget
from dragoman.run.curves import known_curves
from dragoman.run.pilots import Pilots

PILOT_S = 8.0


class PlannedError(Exception):
    """Ends the command when the pilots are done: the training is tested elsewhere."""


@pytest.mark.timeout(600)
def test_two_models_are_tried_and_their_time_comes_off_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_budget_text(tmp_path, "two")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_CURVES", "on")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(choose, "SIZES", {"mini": (32, 4, 64, 1, 1), "tiny": (48, 4, 128, 1, 1)})
    text = {
        split: [{"source": f"{split}.en", "target": f"{split}.de"}]
        for split in ("train", "valid", "test")
    }
    recipe = dragoman.load_recipe({"name": "two", "corpus": text})

    before: list[tuple[float, float]] = []

    def always(choice: choose.Choice, *_: object, training_s: float) -> Pilots:
        best = choice.best
        before.append((training_s + best.after_s, time.monotonic()))
        (other,) = (one for one in choice.candidates if one is not best)
        return Pilots((best, replace(other, is_timed=True)), PILOT_S, 1.0, 0.1)

    monkeypatch.setattr(budgets, "plan_pilots", always)
    said: list[str] = []

    def planned() -> BudgetPlan:
        """The plan of a budget of two hours."""
        found: list[BudgetPlan] = []

        def show_plan(plan: BudgetPlan) -> None:
            found.append(plan)
            raise PlannedError

        with pytest.raises(PlannedError):
            run_in_budget(
                recipe,
                7200.0,
                Place(ranks=1),
                runs=tmp_path / "runs",
                workers=1,
                show_plan=show_plan,
                print_line=said.append,
            )
        return found[0]

    plan = planned()
    (left_s, began) = before[0]  # with the time after the training, which the size decides
    passed_s = time.monotonic() - began
    assert {one.name for one in plan.piloted} == {"mini", "tiny"}
    assert all(one.tokens > 0 for one in plan.piloted)
    assert [line.split(",")[0] for line in said] == [f"pilot: {one.name}" for one in plan.piloted]
    # Their time is that of the budget, and nothing of them is left but their curves.
    assert PILOT_S < left_s - plan.training_s - plan.choice.best.after_s <= passed_s
    assert plan.choice.best.name in {"mini", "tiny"}
    assert not [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    own = [one for one in known_curves() if one.source.startswith("a run on this machine: two-")]
    assert len(own) == 2
    assert all(one.text == plan.text.digest and one.ended for one in own)
    # A kill in the middle leaves their folder.
    (record,) = (tmp_path / "runs").iterdir()
    left = record.with_suffix(".pilots")
    left.mkdir()
    (left / "half").write_text("a run")
    again = planned()
    assert again.piloted == ()
    assert again.pilots is not None
    assert again.pilots.why_not == "a kill ended them"
    assert not left.exists()
