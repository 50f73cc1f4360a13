"""The state of a dev loss, and what stands beside it: the training loss at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dragoman.reporting.checks import judge
from dragoman.reporting.facts import Facts, RecordedValidation
from dragoman.reporting.learning import State, learning, training_loss_jump
from dragoman.reporting.reading import read_facts
from dragoman.reporting.record import IntervalRows, Intervals
from dragoman.telemetry.events import TrainInterval, as_values
from recorded_runs import Recorded

STATES: dict[str, tuple[Sequence[float], State]] = {
    "none": ([], State.UNKNOWN),
    "it reaches 0": ([3.0, 0.5, 0.1, 0.0, 0.0], State.UNKNOWN),
    "it stays at 0": ([0.0, 0.0, 0.0, 0.0, 0.0], State.FLAT),
    "it was 0": ([0.5, 0.0, 0.0, 0.1, 0.2], State.TURNED),
    "three": ([3.0, 2.0, 1.0], State.UNKNOWN),
    "it falls": ([3.0, 2.5, 2.2, 2.0, 1.9, 1.82, 1.76, 1.71], State.FALLING),
    "flat after a fall": ([3.0, 2.2, 2.02, 2.001, 2.0, 2.0005, 2.0, 2.0002], State.FLAT),
    "flat, a little below its noise": ([2.0, 2.004, 2.0, 2.003, 2.001, 2.002], State.FLAT),
    "a fall, then a slow rise": ([3.0, 2.4, 2.1, 2.0, 2.01, 2.02, 2.04, 2.06], State.TURNED),
    "a fall, then two far higher": ([2.4, 2.2, 2.1, 2.05, 2.0, 1.99, 2.3, 2.5], State.TURNED),
    "the best of four is the second": ([2.6, 2.0, 2.15, 2.3], State.TURNED),
    "a jump, and it stays": ([2.0, 2.3, 2.301, 2.299, 2.3], State.TURNED),
    "a jump, and it comes back": (
        [2.2, 2.0, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4, 2.3, 2.25],
        State.FALLING,
    ),
    "one high at the end": ([2.0, 1.8, 1.7, 1.65, 1.62, 1.61, 1.6, 2.0], State.UNKNOWN),
    "one far higher, after one a little above": (
        [2.02, 1.97, 1.94, 2.0, 1.9, 1.96, 1.98, 1.92, 2.01, 2.02, 1.95, 1.99, 1.97, 2.8],
        State.UNKNOWN,
    ),
    "a jump, of which half is gone": ([2.0, 1.98, 2.9, 2.34], State.UNKNOWN),
    "noise": ([2.0, 2.05, 1.95, 2.06, 1.93, 1.97, 2.0, 2.04], State.UNKNOWN),
    "flat, but lower before": (
        [2.5, 2.0, 2.03, 2.031, 2.029, 2.03, 2.0305, 2.0295],
        State.UNKNOWN,
    ),
}


def logged(losses: dict[int, float]) -> Intervals:
    """Intervals of 100 steps with these training losses."""
    rows = IntervalRows()
    for step, loss in losses.items():
        values = as_values(TrainInterval(steps=100, train_loss=loss))
        rows.add(values, step=step, time=step, life=0)
    return rows.intervals()


def validated(losses: Sequence[float]) -> Facts:
    seen = tuple(
        RecordedValidation(step=1000 * place, time=place, dev_loss=loss)
        for place, loss in enumerate(losses, 1)
    )
    return Facts(name="run", read_at=0.0, validations=seen)


@pytest.mark.parametrize("name", STATES)
def test_the_state_of_a_dev_loss(name: str) -> None:
    losses, state = STATES[name]
    assert learning(validated(losses)).state is state


def test_the_validation_before_the_first_step_does_not_count() -> None:
    facts = validated([2.0, 2.1, 2.2, 2.3, 2.4])
    started = facts.validations[0].model_copy(update={"step": 0})
    signals = learning(replace(facts, validations=(started, *facts.validations[1:])))
    assert (signals.best, signals.last) == ((2000, 2.1), (5000, 2.4))
    assert signals.rise == pytest.approx(2.4 / 2.1 - 1)


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.04])
@pytest.mark.parametrize("count", [4, 8, 20, 40])
def test_a_loss_that_stands_still_seldom_counts_as_turned(count: int, noise: float) -> None:
    """At most 5%, 7% at the most noise, and what 1,000 trials add by chance."""
    random, turned = np.random.default_rng(count), 0
    for _ in range(1000):
        losses = 2 * (1 + noise * random.normal(size=count))
        turned += learning(validated(losses.tolist())).state is State.TURNED
    assert turned <= 1000 * (0.07 if noise == 0.04 else 0.05) + 15


@pytest.mark.parametrize(("falls", "text"), [(0.02, "falls"), (-0.02, "rises")])
def test_the_training_slice_decides_before_the_training_loss(falls: float, text: str) -> None:
    losses = [2.4, 2.2, 2.0, 2.1, 2.2, 2.3]
    seen = tuple(
        one.model_copy(update={"train_slice_loss": 2.0 - falls * place})
        for place, one in enumerate(validated(losses).validations)
    )
    rising = logged({step: 1.0 + step / 1e4 * falls for step in range(100, 6001, 100)})
    facts = replace(validated(losses), validations=seen, intervals=rising)  # the other way
    assert learning(facts).text == text
    unsliced = tuple(one.model_copy(update={"train_slice_loss": None}) for one in seen)
    assert learning(replace(facts, validations=unsliced)).text != text


@pytest.mark.parametrize(("after", "jumps"), [(2.3, False), (2.5, True), (50.0, True)])
def test_a_training_loss_jumps_if_it_is_a_fifth_higher(after: float, jumps: bool) -> None:
    losses = {
        step: (2.0 if step <= 4000 else after) + 0.01 * math.sin(step)
        for step in range(100, 5001, 100)
    }
    facts = replace(validated([2.0] * 4), intervals=logged(losses))
    assert (training_loss_jump(facts, 4000) is not None) is jumps
    assert training_loss_jump(facts, 100) is None  # nothing before it to compare with


def test_losses_of_0_are_judged(tmp_path: Path) -> None:
    run = Recorded(dev_loss=lambda _: 0.0, train_slice_loss=lambda _: 0.0).write(tmp_path / "run")
    _, trained, overfitting, *_ = judge(read_facts(run))
    assert (trained.answer, overfitting.answer) == ("cannot tell", "yes")
    assert "the same to the last digit" in trained.says


def test_dev_losses_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    run = Recorded(dev_loss=lambda step: None if step else 9.0).write(tmp_path / "run")
    for verdict in judge(read_facts(run))[1:3]:
        assert verdict.answer == "cannot tell"
        assert verdict.says == "The dev loss was not a number in 8 of 8 validations."
        assert verdict.remedy == "Look at the learning rate, and at train.precision."


def test_the_signals_are_computed_once_for_the_same_facts(tmp_path: Path) -> None:
    facts = read_facts(Recorded().write(tmp_path / "run"))
    assert learning(facts) is learning(facts)
    others = replace(facts, validations=facts.validations[:3])
    assert learning(others) is not learning(facts)
    assert len(learning(others).validations) == 2
