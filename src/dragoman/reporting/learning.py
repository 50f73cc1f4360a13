"""Is it fully trained? Is it overfitting? Questions 2 and 3, by three signals.

The slope of the dev loss, its rise since the best and its gap to the loss on training text give a
state: the dev loss falls, is flat, has turned, or nobody can tell. The answers add what a state
leaves open: whether the model translates at all, and whether the schedule is at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

import numpy as np

from dragoman.base import units
from dragoman.reporting import learning_rate, measures, scores, trend
from dragoman.reporting.facts import Facts, RecordedValidation, bleu_text, once
from dragoman.reporting.periods import moment
from dragoman.reporting.record import Floats
from dragoman.reporting.verdict import Evidence, Judgement, at_step, evidence, in_words

LEAST_FALL = 0.003
"""If 10% more steps lower the dev loss by a smaller share, they are not worth it.

At a loss of 2 this share is 0.6% of the perplexity.
"""
LEAST_RISE = 0.01
"""Dev losses of a healthy run on 1,000 sentences differ by up to this share."""
MOST_CHANCE = 0.05
"""Losses after the best rise if such an order is less likely than this by chance."""
BY_HEART = 0.5
"""If the loss on training text is below this share of the dev loss, the text is known by heart.

Healthy runs have 90% to 104%; a run that memorised 200 sentences has 3%.
"""
CLOSE = 0.8
"""If the loss on training text is below this share of the dev loss, the model knows that text too
well, or the dev text is harder."""
_LEAST_LOSS = 1e-6
"""fp32 rounds smaller losses to 0, of which nothing is a share."""
_MOST_SKIPPED = 0.5


class State(StrEnum):
    """How the dev loss moves at the end of a run."""

    FALLING = "falling"
    FLAT = "flat"
    TURNED = "turned"
    UNKNOWN = "unknown"


class Point(NamedTuple):
    """A dev loss, in nats per target token, and its step."""

    step: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """The dev losses of a run and their signals.

    validations: those after the start that measured a dev loss.
    losses: their dev losses, each above 0.
    slope: the change of the dev loss by 10% more steps, as a share of it; None below four losses.
    text: how the loss on training text moved since the best dev loss; None if that is not clear.
    """

    validations: Sequence[RecordedValidation]
    losses: Floats
    slope: trend.Trend | None
    state: State
    text: Literal["falls", "rises"] | None

    @property
    def best(self) -> Point:
        """The lowest loss; the first of equal ones."""
        place = int(self.losses.argmin())
        return Point(self.validations[place].step, float(self.losses[place]))

    @property
    def last(self) -> Point:
        """The last loss."""
        return Point(self.validations[-1].step, float(self.losses[-1]))

    @property
    def rise(self) -> float:
        """How far the last loss is above the lowest, as a share of it."""
        return self.last.loss / self.best.loss - 1

    @property
    def may_have_turned(self) -> bool:
        """Whether it ends clearly above its best, perhaps by chance."""
        return self.state is State.UNKNOWN and self.losses.size > 0 and self.rise >= LEAST_RISE


@once
def learning(facts: Facts) -> Learning:
    """The signals of the dev loss of a run."""
    validations = [
        validation
        for validation in facts.validations
        if validation.step > 0 and validation.dev_loss is not None
    ]
    steps = [validation.step for validation in validations]
    measured = np.array([validation.dev_loss for validation in validations], dtype=float)
    losses = np.maximum(measured, _LEAST_LOSS)
    slope = trend.recent_trend(steps, losses)
    if slope is not None:
        slope = slope.over(float(losses[-1]))
    text = _training_text(facts, steps[losses.argmin()], steps[-1]) if steps else None
    state = _state(losses, slope)
    return Learning(validations=validations, losses=losses, slope=slope, state=state, text=text)


def _state(losses: Floats, slope: trend.Trend | None) -> State:
    """The state of the dev loss.

    A loss that stands still counts as turned in at most 1 of 20 runs, in 1 of 15 if it differs by
    4% from one validation to the next.
    """
    if slope is None:
        return State.UNKNOWN
    lowest, falls = float(losses.min()), slope.high < -LEAST_FALL
    before, last = losses[-2:]
    if min(before, last) >= lowest * (1 + LEAST_RISE):
        chance = trend.largest_rise_by_chance(losses)
        # One high loss proves nothing, and one that falls may come back from a jump to its best.
        is_far = (before + last) / 2 > lowest + chance and min(before, last) > lowest + chance / 2
        comes_back = falls or last < before - chance
        is_in_order = trend.chance_of_rise(losses[losses.argmin() + 1 :]) <= MOST_CHANCE
        if is_in_order or (is_far and not comes_back):
            return State.TURNED
    if falls:
        return State.FALLING
    is_level = max(-slope.low, slope.high) < LEAST_FALL
    is_near_best = losses[trend.later_half(len(losses))].min() < lowest * (1 + LEAST_RISE)
    return State.FLAT if is_level and is_near_best else State.UNKNOWN


def _training_text(facts: Facts, best: int, last: int) -> Literal["falls", "rises"] | None:
    """How the loss on training text moved between two steps.

    The training slice decides if it was measured at both, by more than 1%, as for the dev set; or
    else the trend of the training loss, with 95% confidence.
    """
    sliced = dict(measures.points(facts.validations, "train_slice_loss"))
    if best in sliced and last in sliced:
        change = sliced[last] / max(sliced[best], _LEAST_LOSS) - 1
        low, high = change - LEAST_RISE, change + LEAST_RISE
    else:
        logged = [point for point in facts.intervals.points("train_loss") if point[0] >= best]
        slope = trend.trend([step for step, _ in logged], [loss for _, loss in logged])
        low, high = (slope.low, slope.high) if slope is not None else (0.0, 0.0)
    return "falls" if high < 0 else "rises" if low > 0 else None


def has_diverged(facts: Facts) -> bool:
    """Whether the run recorded that it diverged."""
    return bool(facts.lives) and facts.lives[-1].reason == "diverged"


def training_loss_jump(facts: Facts, step: int) -> tuple[float, float] | None:
    """The training loss before and after a step (medians of nine intervals at most), if it is
    `far_above` after it."""
    logged = facts.intervals.points("train_loss")
    before = [loss for at, loss in logged if at <= step]
    after = [loss for at, loss in logged if at > step]
    if len(before) < trend.FEWEST or not after:
        return None
    was, now = (float(np.median(part[-trend.SMOOTHED :])) for part in (before, after))
    return (was, now) if now > trend.far_above(was, before) else None


def is_trained(facts: Facts) -> Judgement:
    """Is the model trained?"""
    signals = learning(facts)
    if has_diverged(facts):
        says = f"It diverged at {moment(facts.last_step, facts.lives[-1].ended)}."
        begin = "Go on from the last good checkpoint" if facts.checkpoints else "Start again"
        return "no", says, f"{begin}, with a lower peak rate."
    if signals.slope is None:
        says, remedy = _too_few(facts, signals)
        return "cannot tell", says + _may_be_past_best(signals), remedy
    if (jump := training_loss_jump(facts, signals.last.step)) is not None:
        return _is_trained_after_jump(facts, at_step(signals.last.step), *jump)
    if unseen := _end_without_dev_loss(facts, signals):
        return "cannot tell", unseen, _VALIDATE
    if (share := scores.lowest_share(facts)) is not None and share >= scores.NOT_LEARNT:
        says = "It has learnt next to nothing that helps with dev text: the loss there is "
        says += f"{units.SHARE.text(share)} of that of a uniform prediction over the vocabulary."
        return "no", says, "Look at the learning rate, and at the text."
    if signals.state is not State.FALLING and (worse := _worse_than_start(facts, signals)):
        says = f"It began with a trained model and is worse now: {worse}."
        return "no", says, "Use the model it began with, or start again with a lower learning rate."
    if signals.state is State.TURNED:
        return _is_trained_if_turned(facts, signals)
    says = f"{_MOVES[signals.state]}: 10% more steps {_slope_text(signals.slope)}"
    if fell := scores.bleu_fell(facts):
        remedy = "Read the samples; until then, use the checkpoint of the best BLEU."
        return "cannot tell", f"{says}, yet BLEU has fallen {fell}.", remedy
    if signals.state is State.FALLING:
        return "no", f"{says}.", _go_on(facts)
    if signals.state is State.UNKNOWN:
        return "cannot tell", f"{says}.{_may_be_past_best(signals)}", _LARGER_DEV
    return _is_trained_if_flat(facts, signals, says)


def _is_trained_after_jump(facts: Facts, at: str, was: float, now: float) -> Judgement:
    """The answer if the training loss rose far after the last validation."""
    says = f"After the last validation,{at}, the training loss has risen from "
    says += f"{units.LOSS.text(was)} to {units.LOSS.text(now)}"
    uniform = scores.uniform_loss(facts)
    if uniform is None or now <= uniform:
        says += ": the model has become worse, or the text harder; no dev loss shows which."
        return "cannot tell", says, _VALIDATE
    return "no", f"{says}.", f"Go on from the checkpoint{at}, with a lower learning rate."


def _is_trained_if_turned(facts: Facts, signals: Learning) -> Judgement:
    """A model past its best is not made better by more steps, unless BLEU says otherwise."""
    best = f"step {units.COUNT.text(signals.best.step)}"
    says = f"It is past its best: the dev loss was lowest at {best} and has risen since, by "
    says += units.SHARE.text(signals.rise)
    if signals.text == "rises":
        says += ", and so has the loss on training text: it gets worse, not better."
        remedy = f"Go on from the checkpoint of {best}, with a lower learning rate."
        return "no", says, _look_at_stage(facts, signals) or remedy
    remedy = f"Use the checkpoint of {best}, as translate, export and serve do."
    scored = scores.best_bleu(facts)
    if scored is not None:
        remedy = "Nothing to choose: translate, export and serve use the best BLEU, of step "
        remedy += f"{units.COUNT.text(scored.step)}."
    if doubt := scores.may_not_translate(facts):
        answer, why, look = doubt
        # More steps do not help, so with a BLEU that may be chance it is not trained.
        return answer if scored is None else "no", f"{says}, {why}", f"{remedy} {look}"
    if scores.bleu_rises(facts):
        says += f"; yet BLEU still rises, to {bleu_text(signals.validations[-1])}."
        return "cannot tell", says, f"Score both checkpoints on the test set: {best} and the last."
    if signals.text is None:
        remedy += " Set evaluate.train_slice_pairs to see why it rises."
    return "yes", f"{says}.", remedy


def _is_trained_if_flat(facts: Facts, signals: Learning, says: str) -> Judgement:
    """A flat dev loss is that of a trained model only if nothing else made it flat."""
    later = facts.intervals.where(slice(len(facts.intervals) // 2, None))
    skipped, steps = float(np.nansum(later["skipped_steps"])), float(later["steps"].sum())
    if skipped > _MOST_SKIPPED * steps:
        says += f", but {units.SHARE.text(skipped / steps)} of the later steps were skipped: their "
        return "cannot tell", f"{says}gradients were not finite.", "Set train.precision to bf16."
    if np.ptp(signals.losses[-trend.FEWEST :]) == 0:
        says += ", and the same to the last digit: the weights do not seem to change."
        return "cannot tell", says, "Look at the learning rate."
    _, first = measures.points(facts.validations, "dev_loss")[0]
    if facts.recipe is None and signals.best.loss >= scores.NOT_LEARNT * first:
        says += ", as if nothing were learnt, and no recipe gives the vocabulary size."
        return "cannot tell", says, "Bring recipe.toml with the events."
    if doubt := scores.may_not_translate(facts):
        answer, why, look = doubt
        return answer, f"{says}, {why}", look
    if scores.bleu_rises(facts):
        return "cannot tell", f"{says}, yet BLEU still rises.", _go_on(facts)
    if ahead := learning_rate.rate_ahead(facts, signals.last.step):
        return "cannot tell", f"{says}, but {ahead[0]}.", ahead[1]
    return "yes", f"{says}.", ""


def _worse_than_start(facts: Facts, signals: Learning) -> str:
    """How the last validation is worse than a trained model at the start; "" if it is not."""
    start, now, uniform = facts.validations[0], signals.validations[-1], scores.uniform_loss(facts)
    began = start.dev_loss if start.step == 0 else None
    if began is None or uniform is None or began >= scores.BEYOND_FREQUENCIES * uniform:
        return ""
    if signals.last.loss > began * (1 + LEAST_RISE):
        losses = units.LOSS.text(began), units.LOSS.text(signals.last.loss)
        return f"dev loss {losses[0]} at step 0, now {losses[1]}"
    if start.bleu is None or now.bleu is None:
        return ""
    is_worse = scores.bleu_interval(now)[1] < scores.bleu_interval(start)[0]
    return f"BLEU {bleu_text(start)} at step 0, now {bleu_text(now)}" if is_worse else ""


def _end_without_dev_loss(facts: Facts, signals: Learning) -> str:
    """A sentence, if the last dev loss is older than two usual distances of validations, or if the
    last validation gave no number; "" if not."""
    steps = [validation.step for validation in signals.validations]
    without_steps = facts.last_step - steps[-1]
    is_usual = without_steps <= 2 * max(float(np.median(np.diff(steps))), 1.0)
    if not without_steps or (is_usual and facts.validations[-1].dev_loss is not None):
        return ""
    step, without = units.COUNT.text(steps[-1]), units.COUNT.text(without_steps)
    return f"No dev loss is known for the last {without} steps, after step {step}."


def is_overfitting(facts: Facts) -> Judgement:
    """Does the model overfit?"""
    signals = learning(facts)
    if signals.slope is None:
        return "cannot tell", *_too_few(facts, signals)
    if unseen := _end_without_dev_loss(facts, signals):
        return "cannot tell", unseen, _VALIDATE
    sliced = signals.validations[-1].train_slice_loss
    if sliced is None:
        measured = measures.points(signals.validations, "train_slice_loss")
        says = "The loss without dropout on training text was not measured"
        says += f" after step {units.COUNT.text(measured[-1][0])}." if measured else "."
        return "cannot tell", says, "Set evaluate.train_slice_pairs."
    has_turned, share = signals.state is State.TURNED, sliced / signals.last.loss
    is_easier = facts.recipe is not None and facts.recipe.corpus.learns_from_a_model
    since = f"since step {units.COUNT.text(signals.best.step)}"
    moves = f"has risen {since}" if has_turned else "has not turned"
    if signals.may_have_turned:
        moves = f"may have risen {since}"
    gap = f"the loss on training text is {units.SHARE.text(share)} of the dev loss"
    if has_turned and signals.text == "falls":
        says = f"{since.capitalize()} the dev loss rises while the loss on training text falls."
        return "yes", says, _LEARN_LESS
    if share < BY_HEART and not is_easier:
        if has_turned or _is_seen_twice(facts):
            says = f"It knows the training text by heart: {gap}, which {moves}."
            return "yes", says, _LEARN_LESS
        says = f"The dev loss {moves}, but {gap}. Nothing shows that training text was seen twice: "
        return "cannot tell", f"{says}the dev text may be of another kind, or harder.", _SAME_KIND
    if has_turned and signals.text == "rises":
        says = f"The dev loss {moves}, and so has the loss on training text: that is not "
        look = _look_at_stage(facts, signals) or "Look at the learning rate."
        return "no", f"{says}overfitting.", look
    if has_turned:
        says = f"The dev loss {moves}; the trend of the loss on training text is not clear."
        return "cannot tell", says, "Set evaluate.train_slice_pairs, and train longer."
    if signals.may_have_turned:
        return "cannot tell", f"The dev loss {moves}, perhaps by chance, and {gap}.", _LARGER_DEV
    if share >= CLOSE:
        return "no", f"The dev loss {moves}, and {gap}.", ""
    if is_easier:
        says = f"The dev loss {moves}, and {gap}: the targets of the training text are a model's "
        return "no", f"{says}translations, easier to predict than the dev text.", ""
    if facts.recipe is not None and not facts.recipe.corpus.valid:  # dev text of the same source
        usual = "it knows the training text better, which is usual."
        return "no", f"The dev loss {moves}, and {gap}: {usual}", ""
    says = f"The dev loss {moves}, but {gap}: the dev text may be of another kind, too."
    return "cannot tell", says, _SAME_KIND


def _is_seen_twice(facts: Facts) -> bool:
    """Whether training text was surely seen twice: epochs do not tell if entries have weights."""
    recipe = facts.recipe
    if recipe is not None and (any(recipe.weights()) or recipe.corpus.temperature):
        return False
    return facts.intervals.last("epoch") != 0


_MOVES = {
    State.FALLING: "The dev loss still falls",
    State.FLAT: "The dev loss is flat",
    State.UNKNOWN: "It is not clear how the dev loss moves",
}
_MORE_VALIDATIONS = "Train longer, or lower train.validate_every_steps."
_VALIDATE = "Lower train.validate_every_steps."
_LARGER_DEV = "A larger dev set, or more validations, make it clearer."
_LEARN_LESS = "Take more text, raise model.dropout, or train for less time."
_SAME_KIND = "Take dev text from the same source as the training text."


def _slope_text(slope: trend.Trend) -> str:
    fall = units.SHARE.text(-slope.gain) + units.SHARE.interval(-slope.high, -slope.low)
    return f"lower the dev loss by {fall}"


def _too_few(facts: Facts, signals: Learning) -> tuple[str, str]:
    """How many dev losses there are, and what would give more."""
    after_start = sum(validation.step > 0 for validation in facts.validations)
    if without := after_start - len(signals.validations):
        says = f"The dev loss was not a number in {without} of {after_start} validations."
        return says, "Look at the learning rate, and at train.precision."
    return f"Too few validations after the start: {after_start}.", _MORE_VALIDATIONS


def _may_be_past_best(signals: Learning) -> str:
    """A sentence that names the best checkpoint, if the run ends clearly above it."""
    if not signals.may_have_turned:
        return ""
    higher = units.SHARE.text(signals.rise) + " above that" + at_step(signals.best.step)
    return f" It may be past its best: the dev loss is {higher}."


def _look_at_stage(facts: Facts, signals: Learning) -> str:
    """What to look at if a stage began since the best dev loss; "" if none did."""
    start = learning_rate.stage_between(facts, signals.best.step, signals.last.step)
    if start is None:
        return ""
    begin = learning_rate.first_step(start)
    return f"Look at the stage that begins with {begin}: its text, its learning rate."


def _go_on(facts: Facts) -> str:
    if facts.max_steps and facts.last_step < facts.max_steps:
        left = units.COUNT.text(facts.max_steps - facts.last_step)
        return f"Let it go on: {left} steps of the schedule are left."
    if facts.clock:
        return "Train longer: a larger budget, which trains a new model from the start."
    return "Train longer: raise train.max_steps."


def trained_evidence(facts: Facts) -> Iterator[Evidence]:
    """Losses, trends and scores."""
    signals = learning(facts)
    yield evidence("validations after the start", units.COUNT, len(signals.validations))
    start = dict(measures.points(facts.validations, "dev_loss")).get(0)
    yield evidence("dev loss at step 0", units.LOSS, start)
    yield evidence("loss of a uniform prediction", units.LOSS, scores.uniform_loss(facts))
    if signals.validations:
        yield evidence("last dev loss", units.LOSS, signals.last.loss)
        yield evidence("best dev loss", units.LOSS, signals.best.loss, at_step(signals.best.step))
        yield in_words("state of the dev loss", signals.state.value)
    if signals.slope is not None:
        yield Evidence("10% more steps, dev loss", signals.slope.gain, _slope_text(signals.slope))
    yield from scores.score_evidence(facts)
    if facts.max_steps:
        left = max(facts.max_steps - facts.last_step, 0) / facts.max_steps
        yield evidence("schedule that is left", units.SHARE, left)


def overfitting_evidence(facts: Facts) -> Iterator[Evidence]:
    """The gap between dev and training text, and the rise since the best."""
    signals = learning(facts)
    if not signals.validations:
        return
    last, loss = signals.validations[-1], signals.last.loss
    yield evidence("dev loss", units.LOSS, loss)
    yield evidence("loss on the training slice", units.LOSS, last.train_slice_loss)
    if last.train_slice_loss is not None:
        yield evidence("gap", units.LOSS, loss - last.train_slice_loss)
    yield evidence("dev loss above its best", units.SHARE, signals.rise)
    yield in_words("step of the best", units.COUNT.text(signals.best.step))
    since_best = signals.losses[signals.losses.argmin() + 1 :]
    if since_best.size:
        chance = trend.chance_of_rise(since_best)
        yield evidence("chance of such a rise since then", units.SHARE, chance)
    if last.dev_pairs is not None:
        yield evidence("pairs of the dev set", units.COUNT, last.dev_pairs)
