"""The figures that a budget prints before it begins agree with each other."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.base import units
from dragoman.base.errors import DivergenceError
from dragoman.cli.budget_view import print_plan
from dragoman.recipe.budget import keys_set
from dragoman.recipe.recipe import Recipe
from dragoman.run import budget as budgets
from dragoman.run.budget import BudgetPlan, Place, budget_that_translates, half_and_twice
from dragoman.run.choose import SizeCandidate, at_other_budget, vocabulary
from dragoman.run.curves import Curve
from dragoman.run.expect import fit_law
from dragoman.run.pilots import Pilots
from dragoman.telemetry.host import HourlyPrice
from unit.test_choose import MINI, TEXT, chosen, curve, law_curves, own

SECONDS = 3600.0
TRAINING_S = 0.87 * SECONDS - 30


def plan_of(recipe: Recipe) -> BudgetPlan:
    """The plan of an hour at 30 USD an hour."""
    by_hand = keys_set(recipe)
    recipe, law = vocabulary(recipe, by_hand=by_hand), fit_law(law_curves())
    choice = chosen(recipe, TRAINING_S, by_hand=by_hand)
    half, twice = half_and_twice(choice, TEXT, law, training_s=TRAINING_S, seconds_s=SECONDS)
    place = Place(price=HourlyPrice(30.0, "USD"))
    return BudgetPlan(
        SECONDS,
        choice.best.recipe,
        TEXT,
        choice,
        TRAINING_S,
        half,
        twice,
        place,
        by_hand,
        start_s=4.0,
        translates_s=budget_that_translates(
            choice, TEXT, law, training_s=TRAINING_S, seconds_s=SECONDS
        ),
    )


def said(recipe: Recipe, capsys: pytest.CaptureFixture[str]) -> str:
    """The plan as it is printed."""
    print_plan(plan_of(recipe))
    return capsys.readouterr().out


@pytest.mark.parametrize("pairs", [10, 20_000, 3_000_000])
def test_the_vocabulary_is_the_root_that_its_reason_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pairs: int
) -> None:
    """The files' sizes are all that is known when it is chosen, whatever the text holds."""
    recipe = own(tmp_path)
    for side in ("en", "de"):
        with (tmp_path / f"a.{side}").open("wb") as file:
            file.truncate(75 * pairs)
    reason = re.search(
        r"vocabulary of ([\d,]*\d)(.*): 25 x the square root of about ([\d,]+) pairs, by the size",
        said(recipe, capsys),
    )
    assert reason is not None
    pieces, estimate = (int(reason[n].replace(",", "")) for n in (1, 3))
    assert estimate == pytest.approx(pairs, rel=0.01)
    limit = {200: ", at least that", 32_000: ", at most that"}.get(pieces, "")
    assert reason[2] == limit
    assert limit or pieces == pytest.approx(25 * math.sqrt(estimate), abs=51)


def test_each_value_that_was_chosen_has_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = said(own(tmp_path, "[optimizer]\nclip_norm = 0.5\n"), capsys)
    assert "optimizer.clip_norm is set" in printed
    assert "gradients clipped to a norm of 1" in said(own(tmp_path), capsys)
    assert "over all steps that fit" in said(own(tmp_path), capsys)
    scheduled = said(own(tmp_path, "[schedule]\ntotal_steps = 100\n"), capsys)
    assert "over all steps that fit" not in scheduled
    assert re.search(
        r"^schedule\.total_steps is set; about [\d,]+ steps are planned$", scheduled, re.M
    )
    sentences = said(own(tmp_path, "[data]\nbatch_sentences = 32\n"), capsys)
    assert "data.batch_sentences is set" in sentences
    assert "data.batch_tokens is set" not in sentences
    accumulated = own(tmp_path, "[data]\naccumulate = 4\n")
    lines = said(accumulated, capsys).splitlines()
    (row,) = (line for line in lines if line.rstrip().endswith(" chosen"))
    (reason,) = (line for line in lines if line.startswith("batch of "))
    assert reason.split()[2].rstrip(":") in row.split(), "the batch of the table"


def test_the_forecast_is_the_budget_or_the_time_of_the_steps_that_are_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    free = said(own(tmp_path), capsys)
    assert f"in {units.DURATION.text(SECONDS)} (30.00 USD), of which about" in free
    assert "all of it takes about" not in free
    few = said(own(tmp_path, f"{MINI}[train]\nmax_steps = 300\n"), capsys)
    takes = re.search(r"all of it takes about (.*) \(([\d.]+) USD\): the recipe sets 300 st", few)
    assert takes is not None
    seconds_s = units.DURATION.parse(takes[1])
    assert seconds_s < 0.5 * SECONDS
    assert float(takes[2]) == pytest.approx(30 * seconds_s / 3600, rel=0.02)
    none = said(own(tmp_path, "[train]\nmax_steps = 1000000000\n"), capsys)
    assert "all of it takes about" not in none


def test_a_pilot_that_diverges_loses_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, said = plan_of(own(tmp_path)), list[str]()
    best = plan.choice.best
    rival = next(one for one in plan.choice.candidates if one is not best and one.is_timed)
    folder = tmp_path / "pilots"

    def pilot(_plan: BudgetPlan, one: SizeCandidate, *_: object) -> Curve:
        folder.mkdir(exist_ok=True)
        if one.name == best.name:
            raise DivergenceError("training diverged: the loss is NaN", place="step 9")
        return curve(TEXT.digest, 3_000_000, 1_000_000, 20.0)

    monkeypatch.setattr(budgets, "_pilot", pilot)
    pilots = Pilots((best, rival), 60.0, 1.0, 0.1)
    found = budgets._with_pilots(
        replace(plan, pilots=pilots), tmp_path, folder=folder, print_line=said.append
    )
    assert found.choice.best.name == rival.name
    assert [one.found for one in found.piloted] == [0.0, 20.0]
    assert f"pilot: {best.name}: training diverged: the loss is NaN" in said
    assert not folder.exists()


def test_half_the_budget_has_all_of_the_preparation(tmp_path: Path) -> None:
    """2,000 s of preparation leave 1,130 of 3,600 s for training; half the budget leaves none."""
    recipe, law = own(tmp_path), fit_law(law_curves())
    choice = chosen(recipe, 1130.0)
    half, twice = half_and_twice(choice, TEXT, law, training_s=1130.0, seconds_s=3600.0)
    assert half is None
    as_long = at_other_budget(choice, TEXT, law, training_s=1130.0 + 0.87 * 3600)
    assert twice
    assert as_long
    assert twice[1].bleu == pytest.approx(as_long[1].bleu)
