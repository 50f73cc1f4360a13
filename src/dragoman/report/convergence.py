"""Is it fully trained? Is it overfitting? Questions 2 and 3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from dragoman import units
from dragoman.report.cost import cost_text
from dragoman.report.facts import Facts, Validation
from dragoman.report.measures import step_s
from dragoman.report.trend import Trend, fit_curve, trend
from dragoman.report.verdict import Answer, Evidence, Verdict, evidence, in_words
from dragoman.train.schedule import learning_rate

STRETCH = 0.1
"""The stretch of training that is looked ahead: 10% more steps."""
LEAST_FALL = 0.003
"""A stretch that lowers the dev loss by less than this share of it is not worth waiting for."""
LEAST_BLEU = 0.1
"""Points of BLEU that are worth a stretch."""
FEWEST = 4
"""Validations after the start below which no trend is told."""
OVERFIT_RISE = 0.01
"""A dev loss this share above its best, twice in a row and rising, has turned."""
NOT_LEARNT = 0.9
"""A lowest dev loss of at least this share of the untrained model's: next to nothing is learnt."""
_LOOK_AHEAD = 0.25
_STRETCH_WORDS = "10% more steps "
_DECAYS = ("cosine", "linear", "wsd")


def losses(facts: Facts) -> list[tuple[Validation, float]]:
    """Validations with their dev loss, the untrained model's left out."""
    return [
        (one, one.dev_loss)
        for one in facts.validations
        if one.step > 0 and one.dev_loss is not None
    ]


def has_diverged(facts: Facts) -> bool:
    """Whether the run itself said so."""
    return bool(facts.segments) and facts.segments[-1].reason == "diverged"


def loss_trend(facts: Facts) -> Trend | None:
    """What 10% more steps add to the dev loss (negative: it falls), as a share of it."""
    points = [(one.step, loss) for one, loss in losses(facts)]
    found = _recent_trend(points)
    if found is None or not points[-1][1]:
        return None
    at = points[-1][1]
    return Trend(found.gain / at, found.low / at, found.high / at, found.points)


def bleu_trend(facts: Facts) -> Trend | None:
    """What 10% more steps add to BLEU, in points."""
    scored = [one for one in facts.validations if one.step > 0 and one.bleu is not None]
    return _recent_trend([(one.step, one.bleu or 0.0) for one in scored])


def decay_left(facts: Facts) -> float:
    """The last learning rate over the one that the schedule ends with; 1 where it does not decay.

    Over 1 the dev loss will fall once more, however flat it is.
    """
    if facts.recipe is None or facts.max_steps is None:
        return 1.0
    config, width = facts.recipe.schedule, facts.recipe.model.d_model
    if config.kind not in _DECAYS:
        return 1.0
    now, end = (
        learning_rate(max(step, 0), config, d_model=width, max_steps=facts.max_steps)
        for step in (facts.last_step - 1, facts.max_steps - 1)
    )
    return now / end if end > 0 else 1.0 if now == end else float("inf")


def left_of_untrained(facts: Facts) -> float | None:
    """The lowest dev loss over that of the untrained model."""
    start = next((one.dev_loss for one in facts.validations if one.step == 0), None)
    seen = [loss for _, loss in losses(facts)]
    return min(seen) / start if start and seen else None


def has_turned(facts: Facts) -> bool:
    """Whether the dev loss rises: the last two clearly above the best, and not by chance.

    Not by chance: each of the last three is above the one before, or the line through all since
    the best rises with 95% confidence.
    """
    points = [(one.step, loss) for one, loss in losses(facts)]
    if len(points) < FEWEST:
        return False
    values = [loss for _, loss in points]
    best = values.index(min(values))
    if min(values[-2:]) < values[best] * (1 + OVERFIT_RISE):
        return False
    since = trend([step for step, _ in points[best:]], values[best:], stretch=STRETCH)
    rises = all(two > one for one, two in pairwise(values[-4:]))
    return rises or (since is not None and since.low > 0)


def trained(facts: Facts) -> Verdict:
    """Question 2."""
    found = loss_trend(facts)
    answer, says, remedy = _is_trained(facts, found)
    return Verdict(
        key="trained",
        question="Is it fully trained? How can you tell?",
        answer=answer,
        says=says,
        evidence=tuple(_trend_evidence(facts, found)),
        thresholds=(
            f"yes: 10% more steps lower the dev loss by less than {units.SHARE.text(LEAST_FALL)} "
            "of it, with 95% confidence, and the learning rate has no decay before it",
            "no: by more, with 95% confidence",
            f"no: the lowest dev loss is {units.SHARE.text(NOT_LEARNT)} or more of that of the "
            "untrained model, or the run diverged",
            f"cannot tell: under {FEWEST} validations after the start, or the interval holds both",
        ),
        method="A straight line through the dev loss over the logarithm of the step, at the later "
        "half of the validations. The training loss is not looked at: flat, it proves nothing.",
        remedy=remedy,
    )


def overfitting(facts: Facts) -> Verdict:
    """Question 3."""
    answer, says, remedy = _is_overfitting(facts)
    return Verdict(
        key="overfitting",
        question="Is it overfitting?",
        answer=answer,
        says=says,
        evidence=tuple(_gap_evidence(facts)),
        thresholds=(
            f"yes: the last two dev losses are over {units.SHARE.text(OVERFIT_RISE)} above the "
            "best and rising, while the loss on the training slice went on falling",
        ),
        method="The same loss, without dropout and label smoothing, on a fixed slice of the "
        "training set and on the dev set.",
        remedy=remedy,
    )


def _is_trained(facts: Facts, found: Trend | None) -> tuple[Answer, str, str]:
    if has_diverged(facts):
        return "no", "It diverged.", "Go on from the last good checkpoint, with a lower peak rate."
    if found is None:
        say = f"{_validations(facts)} too few to tell a trend."
        return "cannot tell", say, "Train longer, or lower train.validate_every_steps."
    left = left_of_untrained(facts)
    if left is not None and left >= NOT_LEARNT:
        say = f"It has learnt next to nothing: the dev loss is {units.SHARE.text(left)} of the "
        return "no", f"{say}untrained model's.", "Look at the learning rate, and at the text."
    if has_turned(facts):
        best = min(losses(facts), key=lambda pair: pair[1])[0].step
        say = f"The dev loss was lowest at step {units.COUNT.text(best)} and has risen since."
        return "yes", say, f"Use the checkpoint of step {units.COUNT.text(best)}."
    fall = _fall_text(found)
    if -found.high > LEAST_FALL:
        return "no", f"The dev loss still falls: {fall}.", _go_on(facts)
    if -found.low >= LEAST_FALL:
        say = f"The trend is not clear enough: {fall}."
        return "cannot tell", say, "More validations make it clearer."
    rising = bleu_trend(facts)
    if rising is not None and rising.low > LEAST_BLEU:
        say = f"The dev loss is flat ({fall}), yet BLEU still rises."
        return "cannot tell", say, _go_on(facts)
    if decay_left(facts) > 2:
        say = f"The dev loss is flat ({fall}), but the learning rate is still to decay."
        return "cannot tell", say, "Let the schedule come to its end: its decay lowers the loss."
    return "yes", f"The dev loss is flat: {fall}.", ""


def _is_overfitting(facts: Facts) -> tuple[Answer, str, str]:
    seen = losses(facts)
    sliced = [one for one, _ in seen if one.train_slice_loss is not None]
    if len(seen) < FEWEST:
        say = f"{_validations(facts)} too few."
        return "cannot tell", say, "Train longer, or lower train.validate_every_steps."
    if not sliced:
        say = "The loss without dropout on training text was not measured."
        return "cannot tell", say, "Set evaluate.train_slice_pairs."
    if not has_turned(facts):
        return "no", "The dev loss has not turned.", ""
    best = min(seen, key=lambda pair: pair[1])[0]
    before, after = best.train_slice_loss, sliced[-1].train_slice_loss
    if before is None or after is None:
        say = "The dev loss has turned; the training slice was not measured there."
        return "cannot tell", say, "Set evaluate.train_slice_pairs."
    if after < before:
        say = (
            f"Since step {units.COUNT.text(best.step)} the dev loss rises while the loss on "
            "training text falls."
        )
        return "yes", say, "Use that checkpoint; next time more data, more dropout or fewer steps."
    say = "The dev loss has risen, and so has the loss on training text: that is not overfitting."
    return "no", say, "Look at the learning rate."


def _trend_evidence(facts: Facts, found: Trend | None) -> Iterator[Evidence]:
    seen = losses(facts)
    yield evidence("validations after the start", units.COUNT, len(seen))
    start = next((one.dev_loss for one in facts.validations if one.step == 0), None)
    yield evidence("dev loss of the untrained model", units.LOSS, start)
    if seen:
        yield evidence("last dev loss", units.LOSS, seen[-1][1])
        best, loss = min(seen, key=lambda pair: pair[1])
        text = f"{units.LOSS.text(loss)} at step {units.COUNT.text(best.step)}"
        yield Evidence("best dev loss", loss, text)
    if found is not None:
        text = _fall_text(found).removeprefix(_STRETCH_WORDS)
        yield Evidence("10% more steps, dev loss", found.gain, text)
    rising = bleu_trend(facts)
    if rising is not None:
        low, high = units.SCORE.text(rising.low), units.SCORE.text(rising.high)
        text = f"add {units.SCORE.text(rising.gain)} points ({low} to {high})"
        yield Evidence("10% more steps, BLEU", rising.gain, text)
    if facts.max_steps:
        left = max(facts.max_steps - facts.last_step, 0) / facts.max_steps
        yield evidence("schedule that is left", units.SHARE, left)
    yield from _ahead(facts)
    if facts.imported is not None and facts.imported_scores:
        first, last = facts.imported_scores[0], facts.imported_scores[-1]
        text = (
            f"{units.LOSS.text(first[1])} at step {units.COUNT.text(first[0])}, "
            f"{units.LOSS.text(last[1])} at step {units.COUNT.text(last[0])}: "
            f"{facts.imported.score_method}; not looked at"
        )
        yield Evidence(f"what {facts.imported.tool} calls Eval BLEU", last[1], text)


def _ahead(facts: Facts) -> Iterator[Evidence]:
    """What a quarter more of this training would bring, by the fitted curve."""
    points = [(one.step, loss) for one, loss in losses(facts)]
    curve = fit_curve([step for step, _ in points], [loss for _, loss in points])
    seconds_s = step_s(facts)
    if curve is None or seconds_s is None or has_turned(facts):
        return
    more = round(facts.last_step * _LOOK_AHEAD)
    now = points[-1][0]
    fall = curve.at(now) - curve.at(now + more)
    price = cost_text(facts, more * seconds_s)
    text = (
        f"{units.LOSS.text(fall)} less dev loss in {units.DURATION.text(more * seconds_s)}"
        f"{f' for {price}' if price else ''} (curve {units.LOSS.text(curve.floor)} + "
        f"{curve.height:.3g} / step^{curve.power:.2f})"
    )
    yield Evidence(f"{units.COUNT.text(more)} more steps, by the fitted curve", fall, text)


def _gap_evidence(facts: Facts) -> Iterator[Evidence]:
    seen = losses(facts)
    if not seen:
        return
    last, loss = seen[-1]
    yield evidence("dev loss", units.LOSS, loss)
    yield evidence("loss on the training slice", units.LOSS, last.train_slice_loss)
    if last.train_slice_loss is not None:
        yield evidence("gap", units.LOSS, loss - last.train_slice_loss)
    best, lowest = min(seen, key=lambda pair: pair[1])
    yield evidence("dev loss above its best", units.SHARE, loss / lowest - 1 if lowest else None)
    yield in_words("step of the best", units.COUNT.text(best.step))


def _validations(facts: Facts) -> str:
    count = len(losses(facts))
    counted = "1 validation" if count == 1 else f"{count} validations"
    return f"{counted} after the start {'is' if count == 1 else 'are'}"


def _recent_trend(points: Sequence[tuple[int, float]]) -> Trend | None:
    """Told from the later half of the points, at least four."""
    if len(points) < FEWEST:
        return None
    last = points[-max(FEWEST, len(points) // 2) :]
    return trend([step for step, _ in last], [value for _, value in last], stretch=STRETCH)


def _fall_text(found: Trend) -> str:
    low, high = units.SHARE.text(-found.high), units.SHARE.text(-found.low)
    return (
        f"{_STRETCH_WORDS}lower the dev loss by {units.SHARE.text(-found.gain)} ({low} to {high})"
    )


def _go_on(facts: Facts) -> str:
    if facts.max_steps and facts.last_step < facts.max_steps:
        left = units.COUNT.text(facts.max_steps - facts.last_step)
        return f"Let it go on: {left} steps of the schedule are left."
    return "Train longer: raise train.max_steps."
