"""The learning rate's formula over what was logged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dragoman.recipe.recipe import load_recipe
from dragoman.reporting.checks import BY_KEY
from dragoman.reporting.facts import Facts
from dragoman.reporting.learning_rate import rates_of
from dragoman.reporting.log import RunLog
from dragoman.reporting.reading import read_facts
from dragoman.telemetry.events import ClockRead
from example_events import RUN_STARTED, changed, event
from recorded_runs import Recorded


def _facts(directory: Path, *overrides: str) -> Facts:
    facts = read_facts(Recorded(steps=1000, max_steps=1000).write(directory / "run"))
    recipe = load_recipe("demo", ["train.max_steps=1000", *overrides])
    return replace(facts, recipe=recipe)


def _logged(facts: Facts, scale: float) -> Facts:
    """The facts with the rates that the formula gives, times a factor, in the log."""
    rates = rates_of(facts)
    assert rates is not None
    steps = facts.intervals["step"].astype(int).tolist()
    logged = np.array([rates.at(step - 1) * scale for step in steps])
    return replace(facts, intervals=facts.intervals.changed({"learning_rate": logged}))


@pytest.mark.parametrize("kind", ["noam", "inverse_sqrt", "cosine", "linear", "wsd", "constant"])
def test_every_schedule_has_its_formula_and_its_peak(kind: str, tmp_path: Path) -> None:
    facts = _facts(tmp_path, f"schedule.kind={kind}", "schedule.decay_steps=100")
    rates = rates_of(facts)
    assert rates is not None
    verdict = BY_KEY["learning_rate"].of(_logged(facts, 1.0))
    assert verdict.answer == "measured"
    assert verdict.remedy == ""
    assert "warmup = 200" in verdict.says
    assert rates.peak[1] == max(map(rates.at, range(1000)))
    rows = {row.name: row.value for row in verdict.evidence}
    assert rows["at the first step"] == rates.at(0)
    assert rows["peak"] == rates.peak[1]
    assert rows["last"] == rates.at(999)
    assert next(row.text for row in verdict.evidence if row.name == "last").endswith("step 1,000")
    assert ("d_model = 192" in verdict.says) == (kind == "noam")
    assert ("then falls" in verdict.says) == (kind != "constant")


@pytest.mark.parametrize("warmup", [0, 1, 200])
@pytest.mark.parametrize("kind", ["noam", "inverse_sqrt"])
def test_the_printed_formula_gives_the_rates(kind: str, warmup: int, tmp_path: Path) -> None:
    rates = rates_of(_facts(tmp_path, f"schedule.kind={kind}", f"schedule.warmup_steps={warmup}"))
    assert rates is not None
    formula = rates.formula.split(", d_model =")[0].split(", warmup =")[0]
    assert ("which counts as 1" in rates.formula) == (warmup == 0)
    code = formula.replace("^", "**")
    for step in (0, 1, 150, 199, 200, 900):
        names = {"step": step, "warmup": max(warmup, 1), "d_model": rates.d_model, "min": min}
        assert rates.at(step) == pytest.approx(eval(code, names), rel=1e-5)


def test_a_run_with_a_budget_has_the_rates_of_its_clock(tmp_path: Path) -> None:
    clock = ((100, 0.05), (500, 0.75), (600, 1.0))
    facts = replace(_facts(tmp_path), max_steps=600, clock=clock)
    assert facts.recipe is not None
    rates = rates_of(facts)
    assert rates is not None
    expected = facts.recipe.train.max_steps
    for step, share in ((100, 0.05), (300, 0.4), (500, 0.75), (600, 1.0)):
        assert rates.at(step - 1) == pytest.approx(facts.recipe.learning_rate(share * expected))
    verdict = BY_KEY["learning_rate"].of(_logged(facts, 1.0))
    assert verdict.remedy == ""
    assert "by the clock of the budget" in verdict.says


def test_readings_of_the_clock_that_a_kill_has_lost_do_not_count() -> None:
    log = RunLog()
    read = ClockRead(progress=0.1, left_s=90.0)
    for step, payload in (
        (0, changed(RUN_STARTED, max_steps=1000)),
        (100, read),
        (300, changed(read, progress=0.3)),
        (200, changed(RUN_STARTED, max_steps=900, resumed_from_step=200)),
        (400, changed(read, progress=0.8)),
    ):
        log.see(event(payload, step=step))
    assert log.clock == [(100, 0.1), (400, 0.8)]
    assert log.max_steps == 500


def test_a_run_that_ends_in_its_warmup_never_falls(tmp_path: Path) -> None:
    verdict = BY_KEY["learning_rate"].of(_facts(tmp_path, "schedule.warmup_steps=5000"))
    assert "at step 1,000." in verdict.says


def test_a_log_that_differs_from_the_formula_is_reported(tmp_path: Path) -> None:
    verdict = BY_KEY["learning_rate"].of(_logged(_facts(tmp_path), 1.01))
    assert "the logged rate differs from this formula" in verdict.remedy
    rows = {row.name: row.value for row in verdict.evidence}
    assert rows["largest deviation of the log"] == pytest.approx(0.01)


def test_the_logged_rates_are_shown_if_the_schedule_is_not_known(tmp_path: Path) -> None:
    facts = replace(_logged(_facts(tmp_path), 1.0), recipe=None)
    logged = facts.intervals["learning_rate"]
    verdict = BY_KEY["learning_rate"].of(facts)
    assert (verdict.key, verdict.answer) == ("learning_rate", "measured")
    rows = {row.name: row.value for row in verdict.evidence}
    assert rows["highest logged"] == logged.max()
    assert rows["last logged"] == logged[-1]
    highest, last = (row.text for row in verdict.evidence[:2])
    assert highest != last
    assert verdict.says.endswith(f"is {highest}, the last {last}.")
    silent = facts.intervals.changed({"learning_rate": np.full(len(logged), np.nan)})
    verdict = BY_KEY["learning_rate"].of(replace(facts, intervals=silent))
    assert (verdict.key, verdict.answer) == ("learning_rate", "cannot tell")
    assert verdict.says == "The schedule of this run is not known."


def test_the_gradient_noise_scale_stands_beside_the_batch(tmp_path: Path) -> None:
    facts = _facts(tmp_path)
    steps = facts.intervals["steps"]
    measured = {"gradient_signal": 0.5 + 0 * steps, "gradient_noise": 6000.0 + 0 * steps}
    measured["target_tokens"] = 4000 * steps
    verdict = BY_KEY["learning_rate"].of(
        replace(facts, intervals=facts.intervals.changed(measured))
    )
    (row,) = (row for row in verdict.evidence if row.name == "gradient noise scale")
    assert row.value == pytest.approx(6000 / 0.5)  # McCandlish et al. 2018: tr(noise) / signal
    assert row.text == "12k target tokens; a batch has 4k"
