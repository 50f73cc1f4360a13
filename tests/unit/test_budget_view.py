"""What a budget prints before it begins, and when it is done."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from dragoman.recipe.budget import keys_set
from dragoman.recipe.recipe import Recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.reporting.reading import read_facts
from dragoman.run import budget_view
from dragoman.run.budget_plan import BudgetPlan, Place
from dragoman.run.budget_view import print_outcome, print_plan
from dragoman.run.earlier import EarlierRun
from dragoman.telemetry.events import EventWriter, TestScored
from dragoman.telemetry.host import HourlyPrice
from dragoman.training.clock import Budget
from example_events import RUN_STARTED, TEST_SCORED, VALIDATED
from small_run import small_run
from unit.test_sizes import LARGE_TEXT, chosen, own

BUDGET = Budget(
    asked="",
    started=1000.0,
    seconds_s=3600.0,
    validation_s=6.0,
    search_s=5.0,
    after_s=4.0,
    after_searches=2.0,
    price_per_hour=36.0,
    currency="USD",
)


def plan_of(recipe: Recipe, **changes: object) -> BudgetPlan:
    """The plan of an hour at 30 USD an hour."""
    best, sizes = chosen(recipe, 3300.0)
    place = Place(price=HourlyPrice(30.0, "USD"))
    plan = BudgetPlan(LARGE_TEXT, best, tuple(sizes), BUDGET, place, keys_set(recipe))
    return replace(plan, **changes)  # type: ignore[arg-type]


def said(recipe: Recipe, capsys: pytest.CaptureFixture[str], **changes: object) -> str:
    print_plan(plan_of(recipe, **changes))
    return capsys.readouterr().out


def test_the_choice_stands_between_its_neighbours_with_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = said(own(tmp_path), capsys)
    plan = plan_of(own(tmp_path))
    assert len(plan.sizes) == 3
    assert "1 h 00 min (30.00 USD)" in printed
    for one in plan.sizes:
        assert one.why in printed
    assert "nobody knows how well it will translate" in printed
    assert "BLEU" not in printed


def test_an_earlier_run_on_the_text_is_the_forecast(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = own(tmp_path)
    tokens = plan_of(recipe).chosen.tokens
    points = ((int(tokens / 2), 12.5), (int(2 * tokens), 20.25))
    earlier = EarlierRun(Path("runs/own-1"), 1_000_000, points)
    printed = said(recipe, capsys, earlier=earlier)
    assert "12.5" in printed
    assert "20.2" in printed
    assert "nobody knows" not in printed

    shorter = EarlierRun(Path("runs/own-1"), 1_000_000, ((int(tokens / 4), 11.5),))
    printed = said(recipe, capsys, earlier=shorter)
    assert printed.count("11.5") == 1  # it never saw as much text as this plan has


def test_what_is_set_by_hand_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = said(own(tmp_path, "[optimizer]\nclip_norm = 0.5\n"), capsys)
    assert "optimizer.clip_norm is set" in printed
    sentences = said(own(tmp_path, "[data]\nbatch_sentences = 32\n"), capsys)
    assert "data.batch_sentences is set" in sentences
    limited = said(own(tmp_path, "[train]\nmax_steps = 10\n"), capsys)
    assert "the recipe sets 10 steps" in limited


@pytest.mark.parametrize("width", [80, 120])
def test_no_cell_of_the_table_is_cut_or_wrapped(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.StringIO()
    terminal = Console(file=file, width=width)
    monkeypatch.setattr(budget_view, "open_console", lambda: terminal)
    plan = plan_of(own(tmp_path))
    print_plan(plan)
    rows = [line.split() for line in file.getvalue().splitlines()]
    for one in plan.sizes:
        (row,) = [row for row in rows if row[:1] == [one.name]]
        assert f"{one.steps:,}" in row


def scored(**changes: object) -> TestScored:
    """A score of the run's own test set."""
    return TEST_SCORED.model_copy(update={"name": "test", "checkpoint": "best", **changes})


def test_a_finished_budget_shows_its_own_scores_not_those_of_a_later_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with EventWriter(tmp_path / "events") as events:
        events.write(RUN_STARTED, step=0)
        events.write(VALIDATED.model_copy(update={"bleu": 17.5}), step=10)
        events.write(scored(bleu=21.5, settings=""))
        events.write(scored(bleu=22.5, settings="search.beam_size=9"))
    run = RunDirectory(tmp_path)
    budget = BUDGET.model_copy(update={"seconds_s": 100.0})
    budget.save(tmp_path)
    print_outcome(run)
    assert capsys.readouterr().out == ""
    budget.model_copy(update={"finished": 1097.0}).save(tmp_path)
    print_outcome(run)
    printed = capsys.readouterr().out
    for figure in ("done at", "dev 17.5", "test 21.5", "97.0%", "0.97 USD of 1.00 USD"):
        assert figure in printed
    assert "22.5" not in printed


def test_a_run_that_was_stopped_for_long_says_what_that_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(small_run().path, tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    ended = read_facts(run.path).lives[-1].ended
    times = {"started": ended - 60, "seconds_s": 600.0, "finished": ended + 560}
    BUDGET.model_copy(update=times).save(run.path)
    print_outcome(run)
    assert "training was stopped" not in capsys.readouterr().out, "it ended by itself"
    log = run.events / "log.jsonl"
    log.write_text(log.read_text().replace('"reason": "max_steps"', '"reason": "signal"'))
    print_outcome(run)
    printed = capsys.readouterr().out
    assert "warning: the training was stopped for 8 min 45 s" in printed
    planned = run.recipe().train.max_steps
    assert f"made {planned} of about {planned} planned steps" in printed
    assert "start again (fresh)" in printed
