"""Dev losses that differ by chance: of a tiny dev set, of a model that wanders. Fixed seeds."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dragoman.reporting.checks import BY_KEY
from dragoman.reporting.facts import Facts, RecordedValidation
from dragoman.reporting.reading import read_facts
from dragoman.reporting.trend import chance_of_rise
from dragoman.reporting.verdict import Verdict
from recorded_runs import Recorded

TRIALS = 250
STEPS = 8000


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    run = Recorded(recipe=("corpus.subword.vocab_size=32768",), log_every=1000)
    return read_facts(run.write(tmp_path_factory.mktemp("runs") / "run"))


def _judged(
    facts: Facts,
    count: int,
    dev_loss: Callable[[float], float],
    *,
    train_slice_loss: Callable[[float], float] = lambda share: 1.95 - 0.1 * share,
) -> tuple[Verdict, Verdict]:
    """Questions 2 and 3 after this many losses, by the share of the run that is done."""
    shares = [place / count for place in range(1, count + 1)]
    seen = tuple(
        RecordedValidation(
            step=round(STEPS * share),
            time=share,
            dev_loss=dev_loss(share),
            train_slice_loss=train_slice_loss(share),
            bleu=25.0,
        )
        for share in shares
    )
    run = replace(facts, validations=seen)
    return BY_KEY["trained"].of(run), BY_KEY["overfitting"].of(run)


def test_a_falling_loss_counts_as_turned_even_less_often(facts: Facts) -> None:
    chance = random.Random(1)
    answers = [
        _judged(facts, 16, lambda s: 2.0 * (1 - 0.05 * math.log(s)) * (1 + chance.gauss(0, 0.02)))
        for _ in range(TRIALS)
    ]
    assert sum(three.answer == "yes" for _, three in answers) <= 0.05 * TRIALS


def test_a_loss_that_turns_is_found_in_the_noise(facts: Facts) -> None:
    """It rises by 9% from 40% of the run on; one loss differs from the next by 1%."""
    chance = random.Random(2)
    answers = [
        _judged(facts, 20, lambda s: 2.0 * (1 + 0.15 * abs(s - 0.4)) * (1 + chance.gauss(0, 0.01)))
        for _ in range(TRIALS)
    ]
    assert sum(three.answer == "yes" for _, three in answers) >= 0.9 * TRIALS
    assert not any(three.answer == "no" for _, three in answers)


def test_a_chance_rise_on_ten_pairs_is_neither_reported_nor_ruled_out(facts: Facts) -> None:
    seen = iter([2.0, 2.05, 1.95, 2.06, 1.93, 1.97, 2.0, 2.04])
    _, three = _judged(facts, 8, lambda _: next(seen))
    assert three.answer == "cannot tell"
    assert "since step 5,000, perhaps by chance" in three.says


def test_a_run_whose_loss_jumped_a_little_is_not_called_trained(facts: Facts) -> None:
    chance = random.Random(94)
    two, three = _judged(
        facts, 40, lambda s: (2.0 if s < 0.3 else 2.03) * (1 + chance.gauss(0, 7e-3))
    )
    assert two.answer == three.answer == "cannot tell"
    assert "may be past its best" in two.says


def test_a_loss_that_jumped_far_has_turned(facts: Facts) -> None:
    chance = random.Random(3)
    two, three = _judged(
        facts, 16, lambda s: (2.0 if s < 0.3 else 2.5) * (1 + chance.gauss(0, 1e-3))
    )
    assert two.answer == three.answer == "yes"
    assert "translate, export and serve use the best BLEU" in two.remedy


STEEP = {
    "25 fall, three rise by 5% each": (
        [1.6 + 0.4 * math.exp(-n / 5) for n in range(25)] + [1.68, 1.76, 1.85],
        25,
    ),
    "three rise by 36%": ([2.0, 1.8, 1.7, 1.65, 1.62, 1.75, 1.95, 2.2], 5),
    "two rise to twice the best": ([2.0, 1.8, 1.7, 1.65, 1.62, 1.6, 2.4, 3.2], 6),
}


@pytest.mark.parametrize("share", [1.0, 0.7, 0.4])
@pytest.mark.parametrize("name", STEEP)
def test_a_steep_rise_of_a_few_validations_is_found(name: str, share: float, facts: Facts) -> None:
    """share: the last loss on training text, of the dev loss."""
    seen, best = STEEP[name]
    rest, end = iter(seen), share * seen[-1]
    two, three = _judged(
        facts,
        len(seen),
        lambda _: next(rest),
        train_slice_loss=lambda done: end * (1.5 - 0.5 * done),
    )
    step = f"step {round(STEPS * best / len(seen)):,}"
    assert two.answer == three.answer == "yes"
    assert "translate, export and serve use the best BLEU" in two.remedy
    assert f"Since {step} the dev loss rises" in three.says


@pytest.mark.parametrize("share", [0.95, 0.7, 0.4])
@pytest.mark.parametrize("end", [[1.6, 2.0], [1.74, 1.69]])
def test_a_rise_that_may_be_chance_is_not_ruled_out(
    end: list[float], share: float, facts: Facts
) -> None:
    """share: the loss on training text, of the last dev loss."""
    rest = iter([2.0, 1.8, 1.7, 1.65, 1.62, 1.61, *end])
    two, three = _judged(facts, 8, lambda _: next(rest), train_slice_loss=lambda _: share * end[-1])
    assert two.answer == "cannot tell"
    assert three.answer == ("yes" if share < 0.5 else "cannot tell")
    assert "has not turned" not in three.says
    assert "may have risen" in three.says or "above that of step" in three.says


def test_the_chance_of_a_rise_is_its_share_of_all_orders() -> None:
    for count in range(1, 7):
        orders = list(itertools.permutations(range(count)))
        falls = [
            sum(two < one for one, two in itertools.combinations(order, 2)) for order in orders
        ]
        share = {most: sum(own <= most for own in falls) / len(orders) for most in set(falls)}
        for order, own in zip(orders, falls, strict=True):
            assert chance_of_rise(np.array(order)) == pytest.approx(share[own], abs=0.03)
    assert chance_of_rise(np.array([])) == 1.0
    eleven = np.arange(11.0)
    assert chance_of_rise(eleven) < 1e-4 < 0.99 < chance_of_rise(eleven[::-1])


def test_the_size_of_the_dev_set_is_reported(tmp_path: Path) -> None:
    found = read_facts(Recorded().write(tmp_path / "run"))
    rows = {row.name: row.value for row in BY_KEY["overfitting"].of(found).evidence}
    assert rows["pairs of the dev set"] == 1014
