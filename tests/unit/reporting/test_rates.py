"""The learning rate's formula over what was logged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.recipe.recipe import load_recipe
from dragoman.reporting.facts import Facts
from dragoman.reporting.rates import rate, rates_of
from dragoman.reporting.reading import read_facts
from recorded_runs import Recorded


def _facts(directory: Path, *overrides: str) -> Facts:
    facts = read_facts(Recorded(steps=1000, max_steps=1000).write(directory / "run"))
    recipe = load_recipe("demo", ["train.max_steps=1000", *overrides])
    return replace(facts, recipe=recipe)


def _logged(facts: Facts, scale: float) -> Facts:
    """The facts with the rates that the formula gives, times a factor, in the log."""
    rates = rates_of(facts)
    assert rates is not None
    main = facts.ranks[0]
    intervals = tuple(
        replace(one, learning_rate=rates.at(one.step - 1) * scale) for one in main.intervals
    )
    return replace(facts, ranks=(replace(main, intervals=intervals),))


@pytest.mark.parametrize("kind", ["noam", "inverse_sqrt", "cosine", "linear", "wsd", "constant"])
def test_every_schedule_has_its_formula_and_its_peak(kind: str, tmp_path: Path) -> None:
    facts = _facts(tmp_path, f"schedule.kind={kind}", "schedule.decay_steps=100")
    rates = rates_of(facts)
    assert rates is not None
    verdict = rate(_logged(facts, 1.0))
    assert verdict.answer == "measured"
    assert verdict.remedy == ""
    assert "warmup = 200" in verdict.says
    assert rates.peak()[1] == max(map(rates.at, range(1000)))
    assert ("then falls" in verdict.says) == (kind != "constant")


def test_a_run_that_ends_in_its_warmup_never_falls(tmp_path: Path) -> None:
    verdict = rate(_facts(tmp_path, "schedule.warmup_steps=5000"))
    assert "at step 1,000." in verdict.says


def test_a_log_that_is_not_the_formula_is_told(tmp_path: Path) -> None:
    verdict = rate(_logged(_facts(tmp_path), 1.01))
    assert "not this formula" in verdict.remedy
    rows = {row.name: row.value for row in verdict.evidence}
    assert rows["largest deviation of the log"] == pytest.approx(0.01)
