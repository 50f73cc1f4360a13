"""What would another hour of training be worth, and what more text? From curves of this text alone.

Another hour: the dev loss of the later half of the validations is close to a straight line over the
logarithm of the step, which goes on. More text: the loss of models that were trained on n pairs is
close to a + b n^-c (Hestness et al. 2017), so each doubling gains a share r = 2^-c of what the one
before it gained. A quarter, a half and all of the text give two doublings, and so r.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dragoman.base import units
from dragoman.reporting import learning, measures, scores, trend
from dragoman.reporting.facts import Facts
from dragoman.reporting.record import Floats
from dragoman.reporting.verdict import Evidence, in_words
from dragoman.training.schedule import SCHEDULES

SHARES: Final = (0.25, 0.5, 1.0)
"""The parts of the text from which the worth of more text is told."""
MOST_DOUBLINGS: Final = 1.0
"""Nobody can tell what lies further ahead than twice the steps, or twice the text."""
_LOSS_NOISE: Final = 0.004
"""Standard deviation of the best dev loss of runs that differ in their seed alone, as a share."""
_RATIO_NOISE: Final = 0.2
"""Standard deviation of the logarithm of r from one doubling to the next."""
_RATIOS: Final = (0.3, 1.1)
"""The smallest and the largest r: more text gains less and less, and hardly ever more."""
_DRAWS: Final = 4000
_BOUNDS: Final = (5.0, 50.0, 95.0)
_SIGMAS_95: Final = 1.96


@dataclass(frozen=True, slots=True)
class Gain:
    """The expected gain and its interval: 90% for more text, 95% for more steps.

    A gain above 0 is an improvement.

    dev_loss: nats per target token by which it falls. bleu: points; None if it was not measured.
    """

    dev_loss: tuple[float, float, float]
    bleu: tuple[float, float, float] | None

    def __str__(self) -> str:
        """In words: expected (lowest to highest)."""
        expected, *bounds = map(units.LOSS.text, self.dev_loss)
        says = f"dev loss {expected} lower ({bounds[0]} to {bounds[1]})"
        if self.bleu is not None:
            expected, *bounds = map(units.SCORE.text, self.bleu)
            says += f", {expected} BLEU more ({bounds[0]} to {bounds[1]})"
        return says


def of_more_steps(facts: Facts, steps: float) -> Gain | str:
    """The gain of so many more steps of this run; a sentence if nobody can tell."""
    signals = learning.learning(facts)
    if learning.has_diverged(facts):
        return "It diverged: go on from the last good checkpoint."
    if signals.slope is None:
        return "Too few validations show where it goes."
    if signals.state is learning.State.TURNED:
        return "It is past its best dev loss: more steps make it worse."
    if facts.clock or _has_decayed(facts):
        return "Its learning rate ends here: a longer run is another run, with a longer schedule."
    doublings = math.log2(1 + steps / facts.last_step)
    if doublings > MOST_DOUBLINGS:
        return "That is more than all of its steps until now."
    stretches = math.log1p(steps / facts.last_step) / math.log1p(trend.STRETCH)
    slope, bleu = signals.slope, scores.bleu_trend(facts)
    loss = signals.last.loss * stretches
    return Gain(
        (-slope.gain * loss, -slope.high * loss, -slope.low * loss),
        None
        if bleu is None
        else (stretches * bleu.gain, stretches * bleu.low, stretches * bleu.high),
    )


def trained_evidence(facts: Facts) -> Iterator[Evidence]:
    """What shows whether a model is trained, and what another hour is worth."""
    yield from learning.trained_evidence(facts)
    steps = steps_in(facts, units.HOUR_S)
    if steps is not None and facts.last_step:
        yield in_words("another hour", str(of_more_steps(facts, steps)))


def _has_decayed(facts: Facts) -> bool:
    """Whether the schedule has an end, and the run has come to it."""
    recipe = facts.recipe
    ends = recipe is not None and SCHEDULES[recipe.schedule.kind].ends
    return ends and facts.max_steps is not None and facts.last_step >= facts.max_steps


def of_more_text(parts: Sequence[Facts], pairs: float, *, now: float) -> Gain | str:
    """The gain of so many more pairs of the same kind; a sentence if nobody can tell.

    parts: the records of the runs on the shares `SHARES` of the text, in their order.
    now: the pairs that the last of them has.
    """
    losses = [best for facts in parts if (best := _best_loss(facts)) is not None]
    if len(losses) < len(SHARES):
        return "Not every run has a dev loss."
    doublings = math.log2(1 + pairs / now)
    if doublings > MOST_DOUBLINGS:
        return "That is more than all of the text."
    at = np.array(losses)
    loss = _next(at, _LOSS_NOISE * at, doublings)
    scored = [one for facts in parts if (one := scores.best_bleu(facts)) is not None]
    if len(scored) < len(SHARES):
        return Gain(loss, None)
    bleus = np.array([one.bleu for one in scored], dtype=float)
    bounds = np.array([scores.bleu_interval(one) for one in scored])
    # The dev set is the same for all: half of what it lets a score vary is in common.
    noise = (bounds[:, 1] - bounds[:, 0]) / (2 * _SIGMAS_95) / 2
    return Gain(loss, _next(-bleus, noise, doublings))


def _best_loss(facts: Facts) -> float | None:
    points = measures.points(facts.validations, "dev_loss")
    return min((loss for _, loss in points), default=None)


def _next(values: Floats, noise: Floats, doublings: float) -> tuple[float, float, float]:
    """The fall of a value after so many more doublings: expected, and the bounds of 90%.

    values: at a quarter, a half and all of the text, lower is better. noise: their standard
    deviations.
    """
    random = np.random.default_rng(1)
    drawn = values + noise * random.standard_normal((_DRAWS, 3))
    before, latest = drawn[:, 0] - drawn[:, 1], np.maximum(drawn[:, 1] - drawn[:, 2], 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(before > 0, latest / before, _RATIOS[1])
    ratio = ratio * np.exp(_RATIO_NOISE * random.standard_normal(_DRAWS))
    ratio = np.clip(ratio, *_RATIOS)
    # The sum of a geometric series of fractions of a doubling.
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(ratio == 1.0, doublings, (1 - ratio**doublings) / (1 - ratio))
    low, middle, high = np.percentile(latest * ratio * part, _BOUNDS)
    return float(middle), float(low), float(high)


def steps_in(facts: Facts, seconds_s: float) -> float | None:
    """Steps in so much time, with their validations; None if nothing was timed."""
    step_s = measures.step_s(facts)
    if not step_s:
        return None
    steps = float(facts.intervals["steps"].sum())
    return seconds_s / (step_s + (measures.validate_s(facts) or 0.0) / steps)
