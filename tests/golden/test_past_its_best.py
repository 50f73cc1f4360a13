"""A model whose dev loss is past its best is called that, whatever the shape of the rise."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.reporting.checks import BY_KEY
from dragoman.reporting.facts import Facts, RecordedValidation
from dragoman.reporting.reading import read_facts
from dragoman.reporting.verdict import Verdict
from recorded_runs import Recorded

STEPS = 8000
Curve = Callable[[float], float | None]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    run = Recorded(recipe=("corpus.subword.vocab_size=32768",), log_every=1000)
    return read_facts(run.write(tmp_path_factory.mktemp("runs") / "run"))


def judged(facts: Facts, dev: list[float], *, text: Curve, bleu: Curve) -> Verdict:
    count = len(dev)
    seen = tuple(
        RecordedValidation(
            step=round(STEPS * place / count),
            time=place,
            dev_loss=loss,
            train_slice_loss=text(place / count),
            bleu=bleu(place / count),
        )
        for place, loss in enumerate(dev, 1)
    )
    return BY_KEY["trained"].of(replace(facts, validations=seen))


def falls(share: float) -> float:
    return 1.9 - share


def rises(share: float) -> float:
    return 1.5 + 0.5 * share


def unknown(_share: float) -> None:
    return None


def good(_share: float) -> float:
    return 25.0


def chance(_share: float) -> float:
    return 1.5


SHAPES: dict[str, tuple[list[float], int]] = {
    "best first": ([2.0, 2.07, 2.15, 2.22, 2.3], 1),
    "best at a fifth of ten": ([2.4, 2.0, 2.04, 2.08, 2.11, 2.15, 2.19, 2.23, 2.26, 2.3], 2),
    "best second of four": ([2.6, 2.0, 2.15, 2.3], 2),
    "best third of five": ([2.6, 2.2, 2.0, 2.15, 2.3], 3),
    "it jumps, and stays": ([2.0, 2.3, 2.301, 2.299, 2.3], 1),
    "it jumps late, and stays": ([2.6, 2.3, 2.0, 2.25, 2.3, 2.301, 2.299, 2.3, 2.302, 2.3], 3),
    "it rises, and wavers": ([2.0, 2.29, 2.32, 2.27, 2.33, 2.28, 2.31, 2.3], 1),
}
"""Dev losses, and the number of the best one; all end 15% above it."""


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(
    ("text", "bleu", "answer", "named"),
    [
        (falls, good, "yes", "first"),
        (unknown, good, "yes", "first"),
        (falls, unknown, "yes", "lowest"),
        (falls, chance, "no", "first"),  # more steps do not make it translate
        (rises, good, "no", "lowest"),
        # by BLEU it still gets better
        (falls, lambda share: 10 + 10 * share, "cannot tell", "lowest"),
    ],
    ids=["text falls", "text unknown", "no BLEU", "low BLEU", "text rises", "BLEU rises"],
)
def test_a_model_past_its_best_is_called_that(
    name: str, text: Curve, bleu: Curve, answer: str, named: str, facts: Facts
) -> None:
    """`named`: the checkpoint of the remedy, of the lowest dev loss, or the one that every command
    takes: the first of those with the same best BLEU."""
    dev, best = SHAPES[name]
    found = judged(facts, dev, text=text, bleu=bleu)
    assert found.answer == answer, found.says
    assert "past its best" in found.says
    assert f"step {round(STEPS * best / len(dev)):,}" in found.says
    to_use = 1 if named == "first" else best
    assert f"step {round(STEPS * to_use / len(dev)):,}" in found.remedy
    assert "15.0%" in found.says


@pytest.mark.parametrize("noise", [0.01, 0.03])
@pytest.mark.parametrize("count", [5, 10, 20])
def test_a_noisy_rise_is_never_called_untrained_and_its_best_is_named(
    count: int, noise: float, facts: Facts
) -> None:
    chance_of = random.Random(count)
    answers = []
    for _ in range(100):
        dev = [
            2.0 * (1 + 0.15 * place / (count - 1)) * (1 + chance_of.gauss(0, noise))
            for place in range(count)
        ]
        found = judged(facts, dev, text=falls, bleu=good)
        answers.append(found.answer)
        if dev[-1] > 1.01 * min(dev) and found.answer != "no":
            assert "past its best" in found.says, found.says
    assert "no" not in answers
    assert answers.count("yes") >= (90 if noise == 0.01 or count == 20 else 40)


def test_a_loss_that_comes_back_from_a_jump_may_not_be_past_its_best(facts: Facts) -> None:
    dev = [2.2, 2.0, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4, 2.3, 2.25]
    found = judged(facts, dev, text=falls, bleu=good)
    assert found.answer == "no"
    assert "still falls" in found.says


def test_three_validations_tell_no_trend_but_name_the_best(facts: Facts) -> None:
    found = judged(facts, [2.0, 2.2, 2.3], text=falls, bleu=good)
    assert found.answer == "cannot tell"
    assert "may be past its best" in found.says
    assert "step 2,667" in found.says


def test_a_recorded_run_past_its_best_is_called_that() -> None:
    """A real run: dev loss best at step 200, 18% higher at step 400, which has the best BLEU."""
    found = BY_KEY["trained"].of(
        read_facts(Path(__file__).with_name("recorded") / "past_its_best", now=1.9e9)
    )
    assert found.answer != "cannot tell"
    assert "It is past its best" in found.says
    assert "step 200" in found.says
    assert "best BLEU, of step 400" in found.remedy
