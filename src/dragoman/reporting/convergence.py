"""Is it fully trained? Is it overfitting? Questions 2 and 3."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, TypeVar

from dragoman.base import units
from dragoman.base.printable import printable_line
from dragoman.recipe.recipe import Recipe
from dragoman.reporting import measures
from dragoman.reporting.cost import cost_text
from dragoman.reporting.facts import (
    Facts,
    RecordedComparison,
    RecordedDirection,
    RecordedGroup,
    RecordedSentence,
    RecordedValidation,
)
from dragoman.reporting.periods import moment
from dragoman.reporting.trend import Trend, fit_curve, trend
from dragoman.reporting.verdict import (
    Answer,
    Evidence,
    Judgement,
    Verdict,
    at_step,
    evidence,
    in_words,
)
from dragoman.training.schedule import SCHEDULES

STRETCH = 0.1
"""How far the trend looks ahead: 10% more steps."""
LEAST_FALL = 0.003
"""If 10% more steps lower the dev loss by less than this share of it, they are not worth it.

At a loss of 2 this share is 0.006 nats, 0.6% of the perplexity.
"""
LEAST_BLEU = 0.1
"""Points of BLEU that are worth 10% more steps: the last digit that papers print."""
FEWEST = 4
"""Fewer validations after the start than this give no trend.

A line through three leaves one degree of freedom: its interval is +-12.7 standard errors.
"""
OVERFIT_RISE = 0.01
"""A dev loss this share above its best, twice in a row and not by chance, has turned.

On 1,000 sentences the validations of a healthy run differ by up to 1% (2% of the perplexity at a
loss of 2). On fewer sentences they differ by more, which `rises_by_chance` takes into account.
"""
FAR_RISE = 0.12
"""If all losses of the later half are this share above the best one, or the last one is and they
only rose since, it is not chance.

Validations of a run that stands still differ by up to 4% (one standard deviation), if the dev set
is tiny; then all tests together are wrong in 3% (4 losses) to 5% (40) of runs.
"""
_BY_CHANCE_AT_MOST = 0.05
_MOST_EXACT = 10
_OF_SECOND_DIFFERENCES = math.sqrt(6)
"""The standard deviation of a second difference over that of the numbers themselves."""
NOT_LEARNT = 0.9
"""A model whose lowest dev loss is at least this share of a uniform prediction's has learnt
nothing.

Untrained models of the recorded runs have 106% to 111% of it. The frequencies of the pieces alone
lower it to about 75%.
"""
BEYOND_FREQUENCIES = 0.6
"""Below this share of a uniform prediction's loss a model knows more than the piece frequencies.

The frequencies alone reach 78% on the demo's dev text (counted over its pieces).
"""
NEEDS_SOURCE = 0.35
"""Below this share of a uniform prediction's loss a model must use the source text.

Without the source, n-gram tables of order two to five reach 41% to 48% on the demo's dev text; the
demo's model reaches 26%. Without BLEU, nothing else separates a translation model from one that
ignores its source.
"""
BY_HEART = 0.5
"""If the loss on training text is below this share of the dev loss, the model memorised the text.

Recorded runs that do not overfit have 90% to 104%; a run that memorised 200 sentences has 3%.
"""
CLOSE = 0.8
"""From this share of the dev loss on, the loss on training text is close to it.

Between the two limits the difference may come from overfitting, or from a dev set of another,
harder kind of text; a record cannot distinguish the two.
"""
TRANSLATES = 5.0
"""BLEU from which a model surely translates; the lower end of its confidence interval counts.

Sentences of a test set scored against other sentences of the same set reach up to 2.0 (the demo's,
Multi30k, news; 500 to 2,000 sentences), and up to 12 if there are only 16 of them.
"""
MOST_BLEU_LOST = 0.2
"""If the last BLEU is this share below the best, the model is worse, whatever the dev loss."""
SMOOTHED = 9
"""The median of this many training losses is compared, so that one easy batch does not set the
lowest loss."""
_SPIKE = 1.2
_BY_CHANCE = 5
_OF_MEDIAN_DISTANCE = 1.048
"""Standard deviation of a normal distribution divided by the median distance of two draws."""
_MOST_DISTANCES = 2
_LOOK_AHEAD = 0.25
_DECAY_LEFT = 2
"""A learning rate that will still fall by this factor lowers the loss; halving is enough."""
_RISE_LEFT = 1.1
"""While the learning rate will still rise by this factor, a flat dev loss proves nothing."""
_MOST_SKIPPED = 0.5
_STRETCH_WORDS = "10% more steps "
T = TypeVar("T")


def losses(facts: Facts) -> list[tuple[RecordedValidation, float]]:
    """Validations that have a dev loss, without the one before the first step."""
    return [
        (one, one.dev_loss)
        for one in facts.validations
        if one.step > 0 and one.dev_loss is not None
    ]


def best_loss(seen: Sequence[tuple[RecordedValidation, float]]) -> tuple[RecordedValidation, float]:
    """The validation with the lowest of some dev losses; the first of equal ones."""
    return min(seen, key=lambda pair: pair[1])


def has_diverged(facts: Facts) -> bool:
    """Whether the run recorded that it diverged."""
    return bool(facts.segments) and facts.segments[-1].reason == "diverged"


def loss_trend(facts: Facts) -> Trend | None:
    """The change of the dev loss by 10% more steps, as a share of it (negative: it falls)."""
    points = [(one.step, loss) for one, loss in losses(facts)]
    found = _recent_trend(points)
    if found is None or not points[-1][1]:
        return None
    at = points[-1][1]
    return Trend(found.gain / at, found.low / at, found.high / at, found.points)


def bleu_trend(facts: Facts) -> Trend | None:
    """The change of BLEU by 10% more steps, in points."""
    return _recent_trend([(one.step, bleu) for one, bleu in scored(facts)])


def decay_left(facts: Facts) -> float:
    """The last learning rate divided by the final one of the schedule; 1 if that does not decay.

    If it is above 1, the dev loss will fall again, however flat it is now.
    """
    if facts.recipe is None or facts.max_steps is None:
        return 1.0
    if not SCHEDULES[facts.recipe.schedule.kind].ends:
        return 1.0
    now, end = _rates(facts.recipe, facts.max_steps, facts.last_step - 1, facts.max_steps - 1)
    return now / end if end > 0 else 1.0 if now == end else float("inf")


def is_warming_up(facts: Facts) -> bool:
    """Whether the learning rate is still well below the peak of its schedule."""
    if facts.recipe is None or facts.max_steps is None:
        return False
    warmup_steps = facts.recipe.schedule.warmup_steps
    if facts.last_step >= warmup_steps:
        return False
    now, peak = _rates(facts.recipe, facts.max_steps, facts.last_step - 1, warmup_steps)
    return peak > _RISE_LEFT * now


def _rates(recipe: Recipe, max_steps: int, *updates: int) -> list[float]:
    return [recipe.learning_rate(max(update, 0), max_steps=max_steps) for update in updates]


def stage_ahead(facts: Facts) -> int | None:
    """The number of updates before the next stage, which changes text or rate; None without one.

    A stage is ahead until a validation has followed its start.
    """
    starts, last = _stages(facts)
    return next((start for start in starts if last <= start < (facts.max_steps or 0)), None)


def stage_since(facts: Facts, step: int) -> int | None:
    """The updates before the first validated stage that began at this step or later."""
    starts, last = _stages(facts)
    return next((start for start in starts if step <= start < last), None)


def _stages(facts: Facts) -> tuple[Sequence[int], int]:
    """The updates before each later stage, and the step of the last validation."""
    starts = facts.recipe.stage_starts()[1:] if facts.recipe is not None else ()
    return starts, max((one.step for one, _ in losses(facts)), default=0)


def start_if_trained(facts: Facts) -> RecordedValidation | None:
    """The validation before the first step, if the run began with a model that had learnt."""
    start = next((one for one in facts.validations if one.step == 0), None)
    uniform = uniform_loss(facts)
    if start is None or start.dev_loss is None or uniform is None:
        return None
    return start if start.dev_loss < BEYOND_FREQUENCIES * uniform else None


def worse_than_start(facts: Facts) -> str:
    """How the last validation is worse than the trained model at the start; "" if not.

    The dev loss is over 1% higher, or the confidence interval of BLEU lies below that of the start.
    """
    start = start_if_trained(facts)
    if start is None or start.dev_loss is None or not losses(facts):
        return ""
    last, loss = losses(facts)[-1]
    if loss > start.dev_loss * (1 + OVERFIT_RISE):
        return f"dev loss {units.LOSS.text(start.dev_loss)} at step 0, now {units.LOSS.text(loss)}"
    if start.bleu is None or last.bleu is None:
        return ""
    if _bleu_bounds(last, last.bleu)[1] < _bleu_bounds(start, start.bleu)[0]:
        return f"BLEU {start.bleu_text} at step 0, now {last.bleu_text}"
    return ""


def uniform_loss(facts: Facts) -> float | None:
    """The loss of a model that gives every piece the same probability; None without a recipe.

    It is the logarithm of the size of the vocabulary; an untrained model is a little worse. The
    validation at step 0 cannot replace it, because a run may start from a trained model.
    """
    if facts.recipe is None:
        return None
    return math.log(facts.recipe.corpus.subword.vocab_size)


def is_beyond_uniform(facts: Facts, loss: float) -> bool:
    """Whether a loss is above that of a uniform prediction, which a sound model never is."""
    uniform = uniform_loss(facts)
    return uniform is not None and loss > uniform


def left_of_uniform(facts: Facts) -> float | None:
    """The lowest dev loss after the start, as a share of a uniform prediction's."""
    uniform, seen = uniform_loss(facts), [loss for _, loss in losses(facts)]
    return min(seen) / uniform if uniform and seen else None


def has_learnt(facts: Facts) -> bool | None:
    """Whether the model has learnt something; None if unclear.

    It has if the dev loss is clearly below a uniform prediction's. If the vocabulary is not known,
    the dev loss must be clearly below the run's first one, and BLEU must show that the model
    translates: the first loss may be that of a trained model or of a broken one.
    """
    left = left_of_uniform(facts)
    if left is not None:
        return left < NOT_LEARNT
    seen = [one.dev_loss for one in facts.validations if one.dev_loss is not None]
    fell = bool(seen) and min(seen) < NOT_LEARNT * seen[0]
    return True if fell and translates(facts) else None


def translates(facts: Facts) -> bool | None:
    """Whether the best BLEU is above what chance gives; None without BLEU."""
    surely = [_bleu_bounds(one, bleu)[0] for one, bleu in scored(facts)]
    return max(surely) >= TRANSLATES if surely else None


def _bleu_bounds(one: RecordedValidation, bleu: float) -> tuple[float, float]:
    """The ends of its confidence interval; BLEU itself if they were not recorded."""
    low, high = one.bleu_low, one.bleu_high
    return min(bleu, bleu if low is None else low), max(bleu, bleu if high is None else high)


def scored(facts: Facts) -> list[tuple[RecordedValidation, float]]:
    """Validations that have BLEU, without the one before the first step."""
    return [(one, one.bleu) for one in facts.validations if one.step > 0 and one.bleu is not None]


def best_bleu(facts: Facts) -> tuple[RecordedValidation, float] | None:
    """The validation with the best BLEU; the first of equal ones."""
    return max(scored(facts), key=lambda pair: pair[1], default=None)


def bleu_lost(facts: Facts) -> float | None:
    """The share of the best BLEU that is surely lost by the last; None if BLEU may be chance.

    It compares the ends of confidence intervals, because BLEU over few sentences varies a lot.
    """
    if not translates(facts):
        return None
    bounds = [_bleu_bounds(one, bleu) for one, bleu in scored(facts)]
    if (start := start_if_trained(facts)) is not None and start.bleu is not None:
        bounds.insert(0, _bleu_bounds(start, start.bleu))
    return max(1 - bounds[-1][1] / max(low for low, _ in bounds), 0.0)


def bleu_fell(facts: Facts) -> str:
    """When BLEU began to fall, from which value to which; "" if it does not fall or is not known.

    It falls if a fifth of the best is lost, or if the trend of the later half loses over 0.1 points
    in 10% more steps, with 95% confidence. The fall begins after the last validation that lies in
    the confidence interval of the best.
    """
    best, lost, moves = best_bleu(facts), bleu_lost(facts), bleu_trend(facts)
    if best is None or lost is None:
        return ""
    falls = moves is not None and moves.high < -LEAST_BLEU
    if not (falls or lost >= MOST_BLEU_LOST):
        return ""
    least = _bleu_bounds(*best)[0]
    since, then = [(one, bleu) for one, bleu in scored(facts) if bleu >= least][-1]
    last, now = scored(facts)[-1]
    if since.step == last.step:
        return ""
    step = units.COUNT.text(since.step)
    return f"since step {step} from {units.SCORE.text(then)} to {units.SCORE.text(now)}"


def steps_without_dev_loss(facts: Facts) -> int:
    """Steps at the end of the run without a validation; 0 if their number is usual.

    It is usual up to twice the median distance of two validations.
    """
    steps = [one.step for one, _ in losses(facts)]
    if len(steps) < 2:
        return 0
    if facts.validations[-1].dev_loss is None:  # the last one gave no number
        return facts.last_step - steps[-1]
    usual = statistics.median(two - one for one, two in pairwise(steps))
    without = facts.last_step - steps[-1]
    return without if without > _MOST_DISTANCES * max(usual, 1) else 0


def training_loss_since(facts: Facts, step: int) -> tuple[float, float] | None:
    """The training loss before and after a step, if it is far higher after it (see `far_above`).

    Both are medians of at most nine intervals.
    """
    logged = measures.points(facts.intervals, "train_loss")
    before = [loss for at, loss in logged if at <= step]
    after = [loss for at, loss in logged if at > step]
    if len(before) < FEWEST or not after:
        return None
    was, now = (statistics.median(some[-SMOOTHED:]) for some in (before, after))
    return (was, now) if now > far_above(was, by_chance(before)) else None


def by_chance(losses: Sequence[float]) -> float:
    """How far a training loss may be off by chance: five standard deviations.

    Estimated from the differences of neighbours, because a loss may be that of a single batch.
    """
    distance = statistics.median(abs(b - a) for a, b in pairwise(losses))
    return _BY_CHANCE * _OF_MEDIAN_DISTANCE * distance


def far_above(lowest: float, chance: float) -> float:
    """The limit above which a loss is far above `lowest`: 1.2 times as high, and not by chance."""
    return max(_SPIKE * lowest, lowest + chance)


def training_text_since(facts: Facts, step: int) -> Literal["falls", "rises"] | None:
    """How the loss on training text moved after a validation at `step`; None if unclear.

    The training slice decides, if it was measured then and at the last validation: it must move by
    more than 1%, as for the dev set. Otherwise the trend of the training loss decides, with 95%
    confidence.
    """
    sliced = dict(measures.points(facts.validations, "train_slice_loss"))
    last = losses(facts)[-1][0].step
    if step in sliced and last in sliced and last > step:
        before, after = sliced[step], sliced[last]
        if abs(after - before) <= OVERFIT_RISE * before:
            return None
        return "falls" if after < before else "rises"
    logged = [one for one in measures.points(facts.intervals, "train_loss") if one[0] >= step]
    found = trend([at for at, _ in logged], [loss for _, loss in logged], stretch=STRETCH)
    if found is None or found.low <= 0 <= found.high:
        return None
    return "falls" if found.high < 0 else "rises"


def has_turned(facts: Facts) -> bool:
    """Whether the dev loss is past its best: the last two losses are above it, and not by chance.

    One of four tests must show that: the order of the losses since the best one; the height of the
    last two, because a steep rise may take few validations; a far rise without a step back; or the
    height of all of the later half, because the loss may jump and then stay. If losses differ only
    by chance, the first two tests together are wrong in 0.5% (4 losses) to 4.0% (40) of runs; the
    order test needs four losses after the best.
    """
    values = [loss for _, loss in losses(facts)]
    if len(values) < FEWEST or not ends_above_best(facts):
        return False
    if min(values[-2:]) > highest_by_chance(values):
        return True
    far, since_best = min(values) * (1 + FAR_RISE), values[values.index(min(values)) + 1 :]
    if values[-1] >= far and since_best == sorted(since_best):
        return True
    if min(later(values)) >= far:
        moves = loss_trend(facts)
        return moves is None or -moves.high <= LEAST_FALL  # else it may come back to its best
    return rises_by_chance(since_best) <= _BY_CHANCE_AT_MOST


def highest_by_chance(values: Sequence[float]) -> float:
    """A height that the last two losses both exceed by chance in 1 of 200 runs, if nothing changes.

    The noise is estimated from second differences, which a smoothly falling or rising loss hardly
    has (Gasser, Sroka and Jennen-Steinmetz 1986). Any other movement makes the estimate larger and
    the bound safer. The bound is the lowest loss plus a factor times the noise. The factor is the
    99.5% quantile of (lower of the last two - lowest) / estimated noise for n independent normal
    numbers; its formula is within 4% of simulations with n from 4 to 80, 200,000 each.
    """
    bends = [
        one - 2 * two + three
        for one, two, three in zip(values[:-2], values[1:-1], values[2:], strict=True)
    ]
    noise = math.hypot(*bends) / math.sqrt(len(bends)) / _OF_SECOND_DIFFERENCES
    return min(values) + (4.4 + 27 / len(bends) ** 2) * noise


def may_have_turned(facts: Facts) -> bool:
    """True if the last dev loss is higher than chance explains and over 1% above the best, or if
    both of the last two are at least 1% above the best.

    The second sign alone does not count if two things hold: the 95% interval of the trend excludes
    a rise of 0.3% in 10% more steps, and some loss in the later half is within 1% of the best.
    """
    found = loss_trend(facts)
    if found is None:
        return False
    values = [loss for _, loss in losses(facts)]
    if values[-1] > max(highest_by_chance(values), min(values) * (1 + OVERFIT_RISE)):
        return True
    if not ends_above_best(facts):
        return False
    return found.high >= LEAST_FALL or stays_above_best(facts)


def stays_above_best(facts: Facts) -> bool:
    """Whether all losses of the later half, which gives the trend, are clearly above the best."""
    values = [loss for _, loss in losses(facts)]
    return min(later(values)) >= min(values) * (1 + OVERFIT_RISE)


def ends_above_best(facts: Facts) -> bool:
    """Whether the last two dev losses are clearly above the best, even if only by chance."""
    values = [loss for _, loss in losses(facts)]
    return bool(values) and min(values[-2:]) >= min(values) * (1 + OVERFIT_RISE)


def rises_by_chance(since_best: Sequence[float]) -> float:
    """The chance that losses after the lowest rise like this or more, though nothing changes any
    more.

    Losses that differ only by chance follow the lowest in any order with the same probability,
    however much they differ. So this is the share of orders in which no more pairs fall (Mann
    1945): exact up to ten losses, then by the normal distribution. Choosing the lowest does no
    harm, as it is not one of them. If the loss still falls, the chance is smaller.
    """
    seen: list[float] = []
    falls, count = 0, len(since_best)
    for loss in since_best:
        falls += len(seen) - bisect_left(seen, loss)
        insort(seen, loss)
    if count > _MOST_EXACT:
        mean, variance = count * (count - 1) / 4, count * (count - 1) * (2 * count + 5) / 72
        return statistics.NormalDist(mean, math.sqrt(variance)).cdf(falls + 0.5)
    orders = [1]  # how many orders of `size` losses have 0, 1, 2 ... falling pairs
    for size in range(2, count + 1):
        pairs = size * (size - 1) // 2
        orders = [sum(orders[max(n + 1 - size, 0) : n + 1]) for n in range(pairs + 1)]
    return sum(orders[: falls + 1]) / math.factorial(count)


def trained(facts: Facts) -> Verdict:
    """Is the model trained?"""
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
            "of it, with 95% confidence, and the learning rate has no rise or decay before it",
            f"yes: it is past its best: the dev loss is over {units.SHARE.text(OVERFIT_RISE)} above"
            " it, by more than chance, and the loss on training text does not rise as well",
            "no: more steps lower it by more, with 95% confidence",
            "no: since the last validation the training loss is above that of a uniform prediction",
            f"no: the run began with a trained model, whose dev loss was over "
            f"{units.SHARE.text(OVERFIT_RISE)} lower, or its BLEU surely higher",
            f"no: the lowest dev loss is {units.SHARE.text(NOT_LEARNT)} or more of that of a "
            f"uniform prediction, or {units.SHARE.text(BEYOND_FREQUENCIES)} with a BLEU that may "
            "be chance; it is past its best with such a BLEU; dev loss and loss on training text "
            "both rise; or the run diverged",
            f"cannot tell: under {FEWEST} validations after the start, none in the last steps, the "
            "interval includes both, BLEU moves, or nothing shows that the model translates: "
            "neither "
            f"a BLEU whose confidence interval begins at {units.SCORE.text(TRANSLATES)} or more, "
            f"nor, without BLEU, a dev loss under {units.SHARE.text(NEEDS_SOURCE)} of that of a "
            "uniform prediction",
        ),
        method="A straight line through the dev loss over the logarithm of the step, at the later "
        "half of the validations. The training loss is not used: a flat one proves nothing.",
        remedy=remedy,
    )


def overfitting(facts: Facts) -> Verdict:
    """Does the model overfit?"""
    answer, says, remedy = _is_overfitting(facts)
    return Verdict(
        key="overfitting",
        question="Is it overfitting?",
        answer=answer,
        says=says,
        evidence=tuple(_gap_evidence(facts)),
        thresholds=(
            f"yes: the last two dev losses are over {units.SHARE.text(OVERFIT_RISE)} above the "
            "best, by more than chance or after a rise (95% confidence), and the loss on the "
            "training slice went on falling",
            f"yes: the loss on the training slice is below {units.SHARE.text(BY_HEART)} of the dev "
            "loss, and the training text was seen more than once",
            f"no: the dev loss has not turned, and the loss on the training slice is at least "
            f"{units.SHARE.text(CLOSE)} of it; or both rise",
            "cannot tell: the dev loss may have turned, and differs by too much from one "
            "validation to the next",
        ),
        method="The same loss, without dropout and label smoothing, on a fixed slice of the "
        "training set and on the dev set.",
        remedy=remedy,
    )


def _is_trained(facts: Facts, found: Trend | None) -> Judgement:
    if has_diverged(facts):
        at = moment(facts.last_step, facts.segments[-1].ended)
        return (
            "no",
            f"It diverged at {at}.",
            "Go on from the last good checkpoint, with a lower peak rate.",
        )
    if found is None:
        say = f"{_validations(facts)} too few to tell a trend."
        remedy = "Train longer, or lower train.validate_every_steps."
        return "cannot tell", say + _was_lower(facts), remedy
    last = losses(facts)[-1][0].step
    if exploded := training_loss_since(facts, last):
        was, now = (units.LOSS.text(loss) for loss in exploded)
        at = f"step {units.COUNT.text(last)}"
        say = f"After the last validation, at {at}, the training loss has risen from {was} to {now}"
        if not is_beyond_uniform(facts, exploded[1]):
            say += ": the model has become worse, or the text harder; no dev loss shows which."
            return "cannot tell", say, _VALIDATE
        return "no", f"{say}.", f"Go on from the checkpoint of {at}, with a lower learning rate."
    if steps_without_dev_loss(facts):
        return "cannot tell", _no_dev_loss(facts), _VALIDATE
    left, learnt = left_of_uniform(facts), has_learnt(facts)
    if left is not None and not learnt:
        say = "It has learnt next to nothing that helps with dev text: the loss there is "
        say += f"{units.SHARE.text(left)} of that of a uniform prediction over the vocabulary."
        return "no", say, "Look at the learning rate, and at the text."
    fall = _fall_text(found)
    if (worse := worse_than_start(facts)) and -found.high <= LEAST_FALL:
        say = f"It began with a trained model and is worse now: {worse}."
        return "no", say, "Use the model it began with, or start again with a lower learning rate."
    if has_turned(facts):
        return _is_trained_if_turned(facts)
    if -found.low >= LEAST_FALL and (fell := bleu_fell(facts)):
        say = "still falls" if -found.high > LEAST_FALL else "may still fall"
        say = f"The dev loss {say} ({fall}), yet BLEU has fallen {fell}."
        return "cannot tell", say, _BEST_BLEU
    if -found.high > LEAST_FALL:
        return "no", f"The dev loss still falls: {fall}.", _go_on(facts)
    if found.low > 0 and found.high >= LEAST_FALL:
        say = f"The dev loss rises ({fall}), but it is not clear that it has turned."
        return "cannot tell", say + _was_lower(facts), _LARGER_DEV
    if -found.low >= LEAST_FALL or found.high >= LEAST_FALL:
        say = f"The trend is not clear enough: {fall}."
        return "cannot tell", say + _was_lower(facts), _LARGER_DEV
    return _is_trained_if_flat(facts, f"The dev loss is flat ({fall})")


def _is_trained_if_turned(facts: Facts) -> Judgement:
    """A model past its best is not made better by more steps, unless BLEU says otherwise."""
    best, lowest = best_loss(losses(facts))
    at = f"step {units.COUNT.text(best.step)}"
    higher = units.SHARE.text(losses(facts)[-1][1] / lowest - 1)
    say = f"It is past its best: the dev loss was lowest at {at} and has risen since, by {higher}"
    text_loss = training_text_since(facts, best.step)
    if text_loss == "rises":
        say += ", and so has the loss on training text: it gets worse, not better."
        if (start := stage_since(facts, best.step)) is not None:
            return "no", say, _look_at_stage(start)
        return "no", say, f"Go on from the checkpoint of {at}, with a lower learning rate."
    remedy = _best_is_used(facts, at)
    if doubt := _may_not_translate(facts):
        # More steps do not help, so with a BLEU that may be chance it is not trained, however long.
        answer: Answer = "no" if best_bleu(facts) else doubt[0]
        return answer, f"{say}, {doubt[1]}", f"{remedy} {doubt[2]}"
    moves = bleu_trend(facts)
    if moves is not None and moves.low > LEAST_BLEU:
        say += f"; yet BLEU still rises, to {losses(facts)[-1][0].bleu_text}."
        return "cannot tell", say, f"Score both checkpoints on the test set: {at} and the last."
    if text_loss is None:
        remedy += " Set evaluate.train_slice_pairs to see why it rises."
    return "yes", f"{say}.", remedy


def _best_is_used(facts: Facts, at: str) -> str:
    """Which checkpoint people get without asking for one: the best by BLEU if it was measured."""
    best = best_bleu(facts)
    if best is None:
        return f"Use the checkpoint of {at}, as translate, export and serve do."
    step = units.COUNT.text(best[0].step)
    return f"Nothing to choose: translate, export and serve use the best BLEU, of step {step}."


def _is_trained_if_flat(facts: Facts, say: str) -> Judgement:
    """A flat dev loss is that of a trained model only if nothing else made it flat."""
    values = {loss for _, loss in losses(facts)[-FEWEST:]}
    if len(values) == 1:
        say += ", to the last digit: the weights do not seem to change."
        return "cannot tell", say, "Look at the learning rate, and at skipped steps."
    if stays_above_best(facts):
        at = f"step {units.COUNT.text(best_loss(losses(facts))[0].step)}"
        return "cannot tell", f"{say}, but was lower at {at}.", _best_is_used(facts, at)
    if (skipped := _skipped_share(facts)) > _MOST_SKIPPED:
        say += f", but {units.SHARE.text(skipped)} of the later steps were skipped, as their "
        say += "gradients were not finite."
        return "cannot tell", say, "Set train.precision to bf16 or fp32."
    if has_learnt(facts) is None:
        say += (
            ", but it is also flat if nothing is learnt, and no recipe gives the vocabulary size."
        )
        return "cannot tell", say, "Bring recipe.toml with the events."
    if doubt := _may_not_translate(facts):
        return doubt[0], f"{say}, {doubt[1]}", doubt[2]
    moves = bleu_trend(facts)
    if moves is not None and moves.low > LEAST_BLEU:
        return "cannot tell", f"{say}, yet BLEU still rises.", _go_on(facts)
    if fell := bleu_fell(facts):
        return "cannot tell", f"{say}, yet BLEU has fallen {fell}.", _BEST_BLEU
    if is_warming_up(facts):
        say += ", but the learning rate has not reached its peak."
        return "cannot tell", say, "Train beyond the warm-up, or shorten schedule.warmup_steps."
    if decay_left(facts) > _DECAY_LEFT:
        say += ", but the learning rate is still to decay."
        return "cannot tell", say, "Let the schedule come to its end: its decay lowers the loss."
    if (start := stage_ahead(facts)) is not None:
        say += f", but a stage with other text or another learning rate begins with {_step(start)}."
        return "cannot tell", say, "Train on, and validate in that stage."
    return "yes", f"{say}.", ""


def _was_lower(facts: Facts) -> str:
    """A sentence that names the best checkpoint, if the run ends clearly above it."""
    seen = losses(facts)
    if not seen or seen[-1][1] < best_loss(seen)[1] * (1 + OVERFIT_RISE):
        return ""
    best, lowest = best_loss(seen)
    higher = units.SHARE.text(seen[-1][1] / lowest - 1)
    return f" It may be past its best: the dev loss is {higher} above that{at_step(best.step)}."


def _step(updates: int) -> str:
    """The first step after this many updates, in words."""
    return f"step {units.COUNT.text(updates + 1)}"


def _look_at_stage(start: int) -> str:
    return f"Look at the stage that begins with {_step(start)}: its text, its learning rate."


def _skipped_share(facts: Facts) -> float:
    """The share of steps that changed no weight, in the later half of the intervals."""
    later = facts.intervals[len(facts.intervals) // 2 :]
    steps = sum(one.steps for one in later)
    return sum(one.skipped_steps or 0 for one in later) / steps if steps else 0.0


def _may_not_translate(facts: Facts) -> Judgement | None:
    """Answer, the end of a sentence and remedy, unless a loss or BLEU shows that it translates."""
    can, left, best = translates(facts), left_of_uniform(facts), best_bleu(facts)
    if best is None:
        if left is not None and left < NEEDS_SOURCE:
            return None
        say = "but it is also flat if only frequent words are learnt, whatever the source: no BLEU "
        return "cannot tell", f"{say}was measured.", "Set evaluate.bleu_pairs."
    if can:
        return None
    say = f"but its best BLEU is {best[0].bleu_text}, which may be chance"
    if left is None or left < BEYOND_FREQUENCIES:
        remedy = "Read the samples; check text, order of pairs and the tokenizer of the score."
        return "cannot tell", f"{say}.", f"{remedy} Raise evaluate.bleu_pairs if they are few."
    say += (
        f", and its lowest dev loss is {units.SHARE.text(left)} of a uniform prediction's: it has "
    )
    say += "not learnt to translate."
    return "no", say, "Look at the text: is there enough, and do its pairs belong together?"


def _is_overfitting(facts: Facts) -> Judgement:
    seen = losses(facts)
    if len(seen) < FEWEST:
        say = f"{_validations(facts)} too few."
        return "cannot tell", say, "Train longer, or lower train.validate_every_steps."
    if steps_without_dev_loss(facts):
        return "cannot tell", _no_dev_loss(facts), _VALIDATE
    last, loss = seen[-1]
    if last.train_slice_loss is None:
        measured = [one.step for one, _ in seen if one.train_slice_loss is not None]
        say = "The loss without dropout on training text was not measured"
        say += f" after step {units.COUNT.text(measured[-1])}." if measured else "."
        return "cannot tell", say, "Set evaluate.train_slice_pairs."
    share = last.train_slice_loss / loss if loss else 1.0
    of = f"the loss on training text is {units.SHARE.text(share)} of the dev loss"
    recipe = facts.recipe
    is_easier = recipe is not None and recipe.corpus.learns_from_a_model
    by_heart = share < BY_HEART and not is_easier
    best = best_loss(seen)[0].step
    at = f"step {units.COUNT.text(best)}"
    remedy = "Take more data, more dropout or fewer steps next time."
    if has_turned(facts):
        text_loss = training_text_since(facts, best) if last.step > best else None
        if text_loss == "falls":
            say = f"Since {at} the dev loss rises while the loss on training text falls."
            return "yes", say, remedy
        if by_heart:
            say = f"It knows the training text by heart: {of}, which has risen since {at}."
            return "yes", say, remedy
        if text_loss == "rises":
            say = "The dev loss has risen, and so has the loss on training text: "
            start = stage_since(facts, best)
            look = "Look at the learning rate." if start is None else _look_at_stage(start)
            return "no", f"{say}that is not overfitting.", look
        say = "The dev loss has turned; the trend of the loss on training text is not clear."
        return "cannot tell", say, "Set evaluate.train_slice_pairs, and train longer."
    may_have = may_have_turned(facts)
    turned = f"may have risen since {at}" if may_have else "has not turned"
    if by_heart and recipe and (any(recipe.weights()) or recipe.corpus.temperature):
        say = f"The dev loss {turned}, but {of}. Entries of text are drawn by weights, so "
        say += "epochs do not tell how often the text was seen: the dev text may be harder."
        return "cannot tell", say, "Take dev text from the same source as the training text."
    if by_heart and facts.intervals and facts.intervals[-1].epoch == 0:
        say = f"The dev loss {turned}, but {of}. No training text was seen twice yet, so it "
        say += "cannot be known by heart: the dev text is of another kind, or is harder."
        return "cannot tell", say, "Take dev text from the same source as the training text."
    if by_heart:
        say = f"It knows the training text by heart: {of}, which {turned}."
        return "yes", say, remedy.capitalize()
    if share < CLOSE and is_easier and not may_have:
        say = f"The dev loss has not turned, and {of}: the targets of the training text are a "
        return "no", f"{say}model's translations, easier to predict than the dev text.", ""
    if share < CLOSE and not may_have:
        say = f"The dev loss has not turned, but {of}: the dev text may be of another kind, too."
        return "cannot tell", say, "Take dev text from the same source as the training text."
    if may_have:
        say = f"The dev loss ends above that of {at}, perhaps by chance, and {of}."
        return "cannot tell", say, _LARGER_DEV
    return "no", f"The dev loss has not turned, and {of}.", ""


def _trend_evidence(facts: Facts, found: Trend | None) -> Iterator[Evidence]:
    seen = losses(facts)
    yield evidence("validations after the start", units.COUNT, len(seen))
    start = next((one.dev_loss for one in facts.validations if one.step == 0), None)
    yield evidence("dev loss at step 0", units.LOSS, start)
    yield evidence("loss of a uniform prediction", units.LOSS, uniform_loss(facts))
    if seen:
        yield evidence("last dev loss", units.LOSS, seen[-1][1])
        best, loss = best_loss(seen)
        yield evidence("best dev loss", units.LOSS, loss, at_step(best.step))
    if found is not None:
        text = _fall_text(found).removeprefix(_STRETCH_WORDS)
        yield Evidence("10% more steps, dev loss", found.gain, text)
    if (highest := best_bleu(facts)) is not None:
        text = highest[0].bleu_text + at_step(highest[0].step)
        yield Evidence("best BLEU", highest[1], text)
    yield from _direction_evidence(facts)
    yield from _comparison_evidence(facts)
    yield from _distillation_evidence(facts)
    rising = bleu_trend(facts)
    if rising is not None:
        text = f"add {units.SCORE.text(rising.gain)} points"
        text += units.SCORE.interval(rising.low, rising.high)
        yield Evidence("10% more steps, BLEU", rising.gain, text)
    if facts.max_steps:
        left = max(facts.max_steps - facts.last_step, 0) / facts.max_steps
        yield evidence("schedule that is left", units.SHARE, left)
    yield from _ahead(facts)
    if facts.imported is not None and facts.imported_scores:
        ends = (facts.imported_scores[0], facts.imported_scores[-1])
        text = ", ".join(units.LOSS.text(score) + at_step(step) for step, score in ends)
        text += f": {facts.imported.score_method}; not looked at"
        yield Evidence(f"what {facts.imported.tool} calls Eval BLEU", ends[1][1], text)


def _direction_evidence(facts: Facts) -> Iterator[Evidence]:
    """The last BLEU of every direction on the dev set, then on each test set."""
    last: dict[tuple[str, str, str], RecordedDirection] = {}
    for one in facts.direction_scores:
        last[one.text, one.source, one.target] = one
    for one in sorted(last.values(), key=lambda one: one.text != "valid"):
        on_dev = one.text == "valid"
        name = f"BLEU on {'dev' if on_dev else one.text}, {one.source} to {one.target}"
        text = one.bleu_text + (at_step(one.step) if on_dev and one.step is not None else "")
        text += "; zero-shot: no training text, not in the mean" if one.zero_shot else ""
        if one.bleu is not None:
            yield Evidence(printable_line(name), one.bleu, text)


def _comparison_evidence(facts: Facts) -> Iterator[Evidence]:
    """The last comparison with each other system on each test set: scores, and where they differ.

    Groups and sentences are written after all scores of their comparison.
    """
    last: dict[tuple[str, str], dict[str, RecordedComparison]] = {}
    for one in facts.comparisons:
        by_metric = last.setdefault((one.other, one.name), {})
        if one.metric in by_metric:  # a later comparison has begun
            by_metric.clear()
        by_metric[one.metric] = one
    groups: dict[tuple[str, str], list[RecordedGroup]] = {}
    sentences: dict[tuple[str, str], list[RecordedSentence]] = {}
    for group in facts.compared_groups:
        groups.setdefault((group.other, group.name), []).append(group)
    for sentence in facts.compared_sentences:
        sentences.setdefault((sentence.other, sentence.name), []).append(sentence)
    for (other, name), by_metric in last.items():
        place = printable_line(f"on {name}, beside {other}")
        for metric, one in by_metric.items():
            label = {"bleu": "BLEU", "chrf": "chrF", "comet": "COMET"}.get(metric, metric)
            better = {"run": "this run", "other": "the other"}.get(one.better, "neither")
            text = (
                f"{one.value:.2f}, the other {one.other_value:.2f}, p {one.p_bootstrap:.4f} "
                f"(bootstrap), {one.p_randomisation:.4f} (randomisation); "
                f"shown to be better: {better}"
            )
            yield Evidence(f"{printable_line(label)} {place}", one.value, text)
        latest = max(by_metric.values(), key=lambda one: one.time)
        if latest.pairs is not None and latest.ahead is not None and latest.behind is not None:
            equal = latest.pairs - latest.ahead - latest.behind
            text = f"{latest.ahead}; equal in {equal}, behind in {latest.behind}, by chrF"
            yield Evidence(f"sentences ahead {place}", latest.ahead, text)
        own = [group for group in groups.get((other, name), ()) if group.time >= latest.time]
        counted = next((group.counted_pairs for group in own if group.counted_pairs), None)
        text = "training text" if counted is None else f"{units.COUNT.text(counted)} training pairs"
        for by, label, unit in (
            ("length", "BLEU by words of the reference", "sentences"),
            ("frequency", f"F1 of words by occurrences in {text}", "words"),
        ):
            texts = [
                f"{group.group}: {group.value:.1f}, the other {group.other_value:.1f} "
                f"({units.COUNT.text(group.size)} {unit})"
                for group in own
                if group.by == by
            ]
            if texts:
                yield in_words(f"{label} {place}", printable_line("; ".join(texts)))
        for sentence in sentences.get((other, name), ()):
            if sentence.time >= latest.time:
                text = (
                    f"{sentence.source} | reference: {sentence.reference} | "
                    f"this run, chrF {sentence.chrf:.0f}: {sentence.translation} | "
                    f"the other, chrF {sentence.other_chrf:.0f}: {sentence.other_translation}"
                )
                yield in_words(f"line {sentence.line} {place}", printable_line(text))


def _distillation_evidence(facts: Facts) -> Iterator[Evidence]:
    """Size and speed of the exports of a student and its teacher, as measured last."""
    if not facts.distillations:
        return
    last = facts.distillations[-1]
    pairs = units.COUNT.text(last.pairs)
    yield in_words("learnt from", printable_line(f"{pairs} translations of {last.teacher}"))
    size, others = last.size_bytes, last.teacher_size_bytes
    share = f", {size / others:.2f} x" if others else ""
    text = f"{units.SIZE.text(size)}, the teacher's {units.SIZE.text(others)}{share}"
    yield Evidence("size of the export", size, text)
    speed, others_speed = last.sentences_per_s, last.teacher_sentences_per_s
    share = f", {speed / others_speed:.2f} x" if others_speed else ""
    text = (
        f"{_rate(speed)} with beam {last.beam_size}, the teacher's {_rate(others_speed)} with beam "
        f"{last.teacher_beam_size}{share}"
    )
    yield Evidence("sentences/s of the export", speed, text)


def _rate(value: float) -> str:
    """A rate as text: whole from 10 on, else to three digits."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def _ahead(facts: Facts) -> Iterator[Evidence]:
    """The gain of 25% more training, by the fitted curve."""
    seen = losses(facts)
    curve = fit_curve([one.step for one, _ in seen], [loss for _, loss in seen])
    seconds_s = measures.step_s(facts)
    if curve is None or seconds_s is None or has_turned(facts):
        return
    more = round(facts.last_step * _LOOK_AHEAD)
    now = seen[-1][0].step
    price = cost_text(facts, more * seconds_s)
    text = (
        f" less dev loss in {units.DURATION.text(more * seconds_s)}"
        f"{f' for {price}' if price else ''} (curve {units.LOSS.text(curve.floor)} + "
        f"{curve.height:.3g} / step^{curve.power:.2f})"
    )
    name = f"{units.COUNT.text(more)} more steps, by the fitted curve"
    yield evidence(name, units.LOSS, curve.at(now) - curve.at(now + more), text)


def _gap_evidence(facts: Facts) -> Iterator[Evidence]:
    seen = losses(facts)
    if not seen:
        return
    last, loss = seen[-1]
    yield evidence("dev loss", units.LOSS, loss)
    yield evidence("loss on the training slice", units.LOSS, last.train_slice_loss)
    if last.train_slice_loss is not None:
        yield evidence("gap", units.LOSS, loss - last.train_slice_loss)
    best, lowest = best_loss(seen)
    yield evidence("dev loss above its best", units.SHARE, loss / lowest - 1 if lowest else None)
    yield in_words("step of the best", units.COUNT.text(best.step))
    since_best = [one for validation, one in seen if validation.step > best.step]
    if since_best:
        yield evidence("chance of such a rise since then", units.SHARE, rises_by_chance(since_best))
    if last.dev_pairs is not None:
        yield evidence("pairs of the dev set", units.COUNT, last.dev_pairs)


_LARGER_DEV = "A larger dev set, or more validations, make it clearer."
_BEST_BLEU = "Read the samples; until then, use the checkpoint of the best BLEU."
_VALIDATE = "Bring the events of rank 0, or lower train.validate_every_steps."


def _no_dev_loss(facts: Facts) -> str:
    last, without = losses(facts)[-1][0].step, units.COUNT.text(steps_without_dev_loss(facts))
    return (
        f"No dev loss is known for the last {without} steps, after step {units.COUNT.text(last)}."
    )


def _validations(facts: Facts) -> str:
    count = len(losses(facts))
    counted = "1 validation" if count == 1 else f"{count} validations"
    return f"{counted} after the start {'is' if count == 1 else 'are'}"


def later(points: Sequence[T]) -> Sequence[T]:
    """The later half, which gives the trend, at least four."""
    return points[-max(FEWEST, len(points) // 2) :]


def _recent_trend(points: Sequence[tuple[int, float]]) -> Trend | None:
    """The trend of the later half of the points, at least four."""
    if len(points) < FEWEST:
        return None
    last = later(points)
    return trend([step for step, _ in last], [value for _, value in last], stretch=STRETCH)


def _fall_text(found: Trend) -> str:
    fall = units.SHARE.text(-found.gain) + units.SHARE.interval(-found.high, -found.low)
    return f"{_STRETCH_WORDS}lower the dev loss by {fall}"


def _go_on(facts: Facts) -> str:
    if facts.max_steps and facts.last_step < facts.max_steps:
        left = units.COUNT.text(facts.max_steps - facts.last_step)
        return f"Let it go on: {left} steps of the schedule are left."
    return "Train longer: raise train.max_steps."
