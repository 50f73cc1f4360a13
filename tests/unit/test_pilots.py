"""Which models of a budget get pilots, and what these decide."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dragoman.run.choose import Choice, SizeCandidate, TextFacts, after_pilots
from dragoman.run.curves import inner_weights
from dragoman.run.expect import Law, fit_law
from dragoman.run.pilots import SHARE, Pilots, decide, plan_pilots
from unit.test_choose import TEXT as CAPTIONS
from unit.test_choose import chosen, law_curves, own

TEXT = TextFacts("help", 29_000, 450_000_000, False)
LONG_S = 48 * 3600.0


def near(tmp_path: Path, *factors: float) -> Choice:
    """Three sizes whose expected BLEU is so many times that of the best."""
    choice = chosen(own(tmp_path), 2e4)
    found = [
        replace(one, expected=replace(one.expected, bleu=40.0 * factor), is_timed=True)
        for one, factor in zip(choice.candidates, factors, strict=False)
    ]
    return Choice(tuple(found), max(found, key=lambda one: one.expected.bleu))


def doubtful() -> Law:
    """A law that is uncertain about the gain of a larger size."""
    law = fit_law(law_curves())
    return replace(law, error=0.2, spread=law.spread + np.diag([4.0, *[0.0] * 7]))


def test_models_that_are_surely_worse_get_no_pilot(tmp_path: Path) -> None:
    sure = replace(fit_law(law_curves()), error=1e-6)
    assert plan_pilots(near(tmp_path, 1.0, 0.9, 0.8), TEXT, sure, training_s=LONG_S) is None
    far = near(tmp_path, 1.0, 0.2, 0.1)
    assert plan_pilots(far, TEXT, doubtful(), training_s=LONG_S) is None


def test_models_that_may_be_better_get_pilots_if_these_pay(tmp_path: Path) -> None:
    choice = near(tmp_path, 0.99, 1.0, 0.98)
    found = plan_pilots(choice, TEXT, doubtful(), training_s=LONG_S)
    assert found is not None
    assert found.why_not == ""
    assert found.candidates[0] is choice.best
    assert len(found.candidates) == 3
    assert found.gain > found.price > 0
    assert 7 * found.first_s == pytest.approx(SHARE * LONG_S)
    two = plan_pilots(near(tmp_path, 0.99, 1.0), TEXT, doubtful(), training_s=LONG_S)
    assert two is not None
    assert 2 * two.first_s == pytest.approx(SHARE * LONG_S)
    # In a short budget none would translate, or the time is worth more.
    short = plan_pilots(choice, TEXT, doubtful(), training_s=100.0)
    assert short is not None
    assert short.why_not == "they would be too short to translate"
    hardly = replace(doubtful(), error=0.01)
    dear = plan_pilots(near(tmp_path, 0.999, 1.0), TEXT, hardly, training_s=LONG_S)
    assert dear is None or dear.why_not == "they would cost more than they gain"


def expected_of(one: SizeCandidate, law: Law, tokens: float) -> float:
    return law.expect(
        text=TEXT.digest,
        weights=inner_weights(one.recipe),
        tokens=tokens,
        epoch_tokens=TEXT.epoch_tokens,
    ).bleu


@pytest.mark.parametrize("better", [0, 1, 2])
def test_the_candidate_that_does_better_than_expected_is_taken(tmp_path: Path, better: int) -> None:
    law, choice = doubtful(), near(tmp_path, 0.99, 1.0, 0.98)
    pilots = plan_pilots(choice, TEXT, law, training_s=LONG_S)
    assert pilots is not None
    winner = choice.candidates[better]
    asked: list[tuple[str, float]] = []

    def train(one: SizeCandidate, seconds_s: float) -> tuple[float, float]:
        asked.append((one.name, seconds_s))
        tokens = one.tokens_per_s * seconds_s
        return tokens, expected_of(one, law, tokens) * (1.4 if one is winner else 0.9)

    best, made = decide(pilots, TEXT, law, train)
    assert best is winner
    first_s = pilots.first_s
    assert [seconds_s for _, seconds_s in asked] == [*[first_s] * 3, *[2 * first_s] * 2]
    assert [(one.name, one.seconds_s) for one in made] == asked
    assert sum(one.seconds_s for one in made) == pytest.approx(SHARE * LONG_S)
    names = {one.name for one in made}
    final = after_pilots(choice, best.name, TEXT, law, piloted=names, time_share=0.9)
    assert final.best.name == winner.name
    assert final.best.steps == int(0.9 * winner.steps)
    assert all(one.why_not for one in final.candidates if one is not final.best)


def test_small_models_gain_nothing_by_being_fast_in_short_pilots(tmp_path: Path) -> None:
    """Each does what the law expects of so short a training: the choice stays."""
    law, choice = doubtful(), near(tmp_path, 0.97, 1.0)
    pilots = Pilots((choice.best, choice.candidates[0]), 60.0, 1.0, 0.1)

    def train(one: SizeCandidate, seconds_s: float) -> tuple[float, float]:
        tokens = one.tokens_per_s * seconds_s
        return tokens, expected_of(one, law, tokens)

    best, made = decide(pilots, TEXT, law, train)
    assert best is choice.best
    small, large = sorted(made, key=lambda one: -one.tokens)
    assert math.isclose(small.expected, small.found)
    assert small.found > large.found


def test_a_model_without_any_translation_loses(tmp_path: Path) -> None:
    law, choice = doubtful(), near(tmp_path, 0.99, 1.0)
    pilots = Pilots((choice.best, choice.candidates[0]), 60.0, 1.0, 0.1)
    best, _ = decide(pilots, TEXT, law, lambda one, _: (1e6, 0.0 if one is choice.best else 20.0))
    assert best is choice.candidates[0]


def test_a_larger_model_that_lost_its_pilot_says_so(tmp_path: Path) -> None:
    law, choice = fit_law(law_curves()), chosen(own(tmp_path), 2e4)
    first, *_ = choice.candidates
    final = after_pilots(
        choice, first.name, CAPTIONS, law, piloted={first.name, choice.best.name}, time_share=0.9
    )
    (lost,) = (one for one in final.candidates if one.name == choice.best.name)
    assert lost.expected.bleu > final.best.expected.bleu, "by the law it is better"
    assert lost.why_not == "its pilot was worse"
