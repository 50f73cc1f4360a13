"""What more training or more text is worth, against curves that are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dragoman.reporting.facts import Facts, RecordedValidation
from dragoman.reporting.record import IntervalRows, Intervals
from dragoman.reporting.worth import Gain, of_more_steps, of_more_text
from dragoman.telemetry.events import TrainInterval, as_values

PAIRS = 29_000


def trained(steps: int) -> Intervals:
    """One interval of so many steps."""
    rows = IntervalRows()
    rows.add(as_values(TrainInterval(steps=steps, train_loss=2.0)), step=steps, time=1.0, life=0)
    return rows.intervals()


def facts_with(losses: Sequence[float], *, bleus: Sequence[float | None] = ()) -> Facts:
    """A run of 1,000 steps for each dev loss."""
    seen = tuple(
        RecordedValidation(
            step=1000 * place,
            time=place,
            dev_loss=loss,
            bleu=bleu,
            bleu_low=None if bleu is None else bleu - 1.0,
            bleu_high=None if bleu is None else bleu + 1.0,
        )
        for place, (loss, bleu) in enumerate(
            zip(losses, bleus or (None,) * len(losses), strict=True), 1
        )
    )
    return Facts(name="run", read_at=0.0, validations=seen, intervals=trained(1000 * len(losses)))


def of_parts(*best: float, bleus: Sequence[float] = ()) -> list[Facts]:
    """Runs on a quarter, a half and all of the text, with these lowest dev losses."""
    scores: Sequence[float | None] = bleus or (None,) * len(best)
    return [
        facts_with([9.0, loss], bleus=[10.0, bleu] if bleu else ())
        for loss, bleu in zip(best, scores, strict=True)
    ]


def gain(told: Gain | str) -> Gain:
    assert isinstance(told, Gain), told
    return told


@pytest.mark.parametrize("exponent", [0.1, 0.3, 0.6])
def test_twice_the_text_is_worth_what_the_power_law_says(exponent: float) -> None:
    """a + b n^-c is the law of Hestness et al. 2017."""
    random, held = np.random.default_rng(2), 0
    for _ in range(40):
        at = [1.2 + 0.9 * share**-exponent for share in (0.25, 0.5, 1.0, 2.0)]
        truth = at[2] - at[3]
        noisy = [loss * (1 + 0.003 * random.standard_normal()) for loss in at]
        told = gain(of_more_text(of_parts(*noisy[:3]), PAIRS, now=PAIRS))
        _, low, high = told.dev_loss
        held += low <= truth <= high
    assert held >= 32


def test_less_than_a_doubling_is_worth_its_part_of_it() -> None:
    parts = of_parts(2.6, 2.3, 2.1)
    twice, some = (
        gain(of_more_text(parts, pairs, now=PAIRS)).dev_loss[0] for pairs in (PAIRS, 10_000)
    )
    assert 0.3 * twice < some < 0.6 * twice


def test_text_that_did_not_help_is_worth_nothing_much() -> None:
    expected, low, high = gain(of_more_text(of_parts(2.1, 2.1, 2.1), PAIRS, now=PAIRS)).dev_loss
    assert low == 0.0
    assert expected < 0.01
    assert high < 0.05


def test_bleu_is_told_if_it_was_measured() -> None:
    told = gain(of_more_text(of_parts(2.6, 2.3, 2.1, bleus=[20.0, 27.0, 32.0]), PAIRS, now=PAIRS))
    assert told.bleu is not None
    expected, low, high = told.bleu
    assert 1.0 < low < expected < high < 6.0
    assert "BLEU more" in str(told)
    assert gain(of_more_text(of_parts(2.6, 2.3, 2.1), PAIRS, now=PAIRS)).bleu is None


def test_another_hour_goes_on_as_the_curve_does() -> None:
    """A straight line over the logarithm of the step."""
    losses = [3.0 - 0.3 * np.log(step) for step in range(1, 11)]
    told = gain(of_more_steps(facts_with(losses), 5000)).dev_loss
    assert told[0] == pytest.approx(0.3 * np.log(1.5), rel=0.01)
    assert told[1] <= told[0] <= told[2]


@pytest.mark.parametrize(
    ("losses", "steps", "why"),
    [
        ([3.0, 2.0], 100, "Too few"),
        ([3.0, 2.4, 2.1, 2.0, 2.01, 2.02, 2.04, 2.06], 100, "past its best"),
        ([3.0, 2.5, 2.2, 2.0, 1.9, 1.82, 1.76, 1.71], 9000, "more than all of its steps"),
    ],
)
def test_a_curve_that_tells_nothing_says_why(losses: Sequence[float], steps: int, why: str) -> None:
    told = of_more_steps(facts_with(losses), steps)
    assert isinstance(told, str)
    assert why in told


def test_more_than_twice_the_text_is_not_told() -> None:
    told = of_more_text(of_parts(2.6, 2.3, 2.1), 2 * PAIRS, now=PAIRS)
    assert told == "That is more than all of the text."
