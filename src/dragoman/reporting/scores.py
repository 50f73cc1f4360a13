"""Whether a run translates, by its loss and BLEU; and all scores as rows of evidence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from dragoman.base import units
from dragoman.base.printable import printable_line
from dragoman.reporting import measures
from dragoman.reporting.facts import (
    Facts,
    RecordedDirection,
    RecordedValidation,
    bleu_text,
)
from dragoman.reporting.trend import Trend, recent_trend
from dragoman.reporting.verdict import Evidence, Judgement, at_step, in_words
from dragoman.telemetry.events import PASSING_SHARE, Compared, StudentMeasured

NOT_LEARNT = 0.9
"""Of a uniform prediction's loss: untrained models have 106% to 111%, piece frequencies 78%."""
BEYOND_FREQUENCIES = 0.6
"""Of a uniform prediction's loss: a model below it knows more than the frequencies of pieces."""
NEEDS_SOURCE = 0.35
"""Of a uniform prediction's loss: without the source, n-grams reach 41%; the demo's model 26%."""
TRANSLATES = 5.0
"""BLEU of a model that translates: sentences scored against others of their set reach 2.0, and 12
if they are 16. The lower end of the confidence interval counts."""
LEAST_BLEU = 0.1
"""Points of BLEU that are worth 10% more steps: the last digit that papers print."""
MOST_BLEU_LOST = 0.2
"""If the last BLEU is this share below the best, the model is worse, whatever the dev loss."""
_METRICS = {"bleu": "BLEU", "chrf": "chrF", "comet": "COMET"}


def uniform_loss(facts: Facts) -> float | None:
    """The loss of a model that gives every piece the same probability; None without a recipe."""
    return None if facts.recipe is None else math.log(facts.recipe.corpus.subword.vocab_size)


def lowest_share(facts: Facts) -> float | None:
    """The lowest dev loss after the start, as a share of a uniform prediction's."""
    uniform = uniform_loss(facts)
    losses = [loss for step, loss in measures.points(facts.validations, "dev_loss") if step > 0]
    return min(losses) / uniform if uniform and losses else None


def _scored(facts: Facts) -> list[tuple[RecordedValidation, float]]:
    """Validations that have BLEU, without the one before the first step."""
    return [
        (validation, validation.bleu)
        for validation in facts.validations
        if validation.step > 0 and validation.bleu is not None
    ]


def best_bleu(facts: Facts) -> RecordedValidation | None:
    """The validation with the best BLEU; the first of equal ones."""
    best = max(_scored(facts), key=lambda pair: pair[1], default=None)
    return None if best is None else best[0]


def bleu_interval(measured: RecordedValidation) -> tuple[float, float]:
    """The ends of its confidence interval; BLEU itself, which must be measured, without one."""
    bleu = measured.bleu or 0.0
    low, high = measured.bleu_low, measured.bleu_high
    return (bleu if low is None else low), (bleu if high is None else high)


def _translates(facts: Facts) -> bool | None:
    """Whether the best BLEU is above what chance gives; None without BLEU."""
    lows = [bleu_interval(validation)[0] for validation, _ in _scored(facts)]
    return max(lows) >= TRANSLATES if lows else None


def may_not_translate(facts: Facts) -> Judgement | None:
    """Answer, the end of a sentence and remedy, unless a loss or BLEU shows that it translates."""
    share, best = lowest_share(facts), best_bleu(facts)
    if best is None and (share is None or share >= NEEDS_SOURCE):
        why = "but a model of frequent words may have learnt as much, whatever the source: no BLEU "
        return "cannot tell", f"{why}was measured.", "Set evaluate.bleu_pairs."
    if best is None or _translates(facts):
        return None
    why = f"but its best BLEU is {bleu_text(best)}, which may be chance"
    if share is None or share < BEYOND_FREQUENCIES:
        remedy = "Read the samples; check text, order of pairs and the tokenizer of the score."
        return "cannot tell", f"{why}.", f"{remedy} Raise evaluate.bleu_pairs if they are few."
    why += f", and its lowest dev loss is {units.SHARE.text(share)} of a uniform prediction's: it "
    remedy = "Look at the text: is there enough, and do its pairs belong together?"
    return "no", f"{why}has not learnt to translate.", remedy


def bleu_trend(facts: Facts) -> Trend | None:
    """The change of BLEU by 10% more steps, in points."""
    scored = _scored(facts)
    return recent_trend([validation.step for validation, _ in scored], [bleu for _, bleu in scored])


def bleu_rises(facts: Facts) -> bool:
    """Whether 10% more steps add over 0.1 points, with 95% confidence."""
    slope = bleu_trend(facts)
    return slope is not None and slope.low > LEAST_BLEU


def bleu_lost(facts: Facts) -> float | None:
    """The share of the best BLEU, that of the start included, that is surely lost by the last.

    It compares the ends of confidence intervals. None if BLEU may be chance.
    """
    if not _translates(facts):
        return None
    intervals = [
        bleu_interval(validation) for validation in facts.validations if validation.bleu is not None
    ]
    return max(1 - intervals[-1][1] / max(low for low, _ in intervals), 0.0)


def bleu_fell(facts: Facts) -> str:
    """When BLEU began to fall, from which value to which; "" if it does not fall or is not known.

    It falls if a fifth of the best is lost, or if 10% more steps take over 0.1 points, with 95%
    confidence. The fall begins after the last validation that lies in the interval of the best.
    """
    best, lost, slope = best_bleu(facts), bleu_lost(facts), bleu_trend(facts)
    if best is None or lost is None:
        return ""
    falls = slope is not None and slope.high < -LEAST_BLEU
    if not (falls or lost >= MOST_BLEU_LOST):
        return ""
    scored, least = _scored(facts), bleu_interval(best)[0]
    since, then = [(validation, bleu) for validation, bleu in scored if bleu >= least][-1]
    last, now = scored[-1]
    if since.step == last.step:
        return ""
    step = units.COUNT.text(since.step)
    return f"since step {step} from {units.SCORE.text(then)} to {units.SCORE.text(now)}"


def score_evidence(facts: Facts) -> Iterator[Evidence]:
    """BLEU on the dev set, the scores of directions and comparisons, and of a student's export."""
    best, slope = best_bleu(facts), bleu_trend(facts)
    if best is not None:
        yield Evidence("best BLEU", best.bleu, bleu_text(best) + at_step(best.step))
    if slope is not None:
        text = f"add {units.SCORE.text(slope.gain)} points"
        text += units.SCORE.interval(slope.low, slope.high)
        yield Evidence("10% more steps, BLEU", slope.gain, text)
    yield from _directions(facts)
    yield from _comparisons(facts)
    if facts.distillations:
        yield from _distillation(facts.distillations[-1])
    if facts.imported is not None and facts.imported_scores:
        ends = (facts.imported_scores[0], facts.imported_scores[-1])
        text = ", ".join(units.LOSS.text(score) + at_step(step) for step, score in ends)
        text += f": {facts.imported.score_method}; not looked at"
        yield Evidence(f"what {facts.imported.tool} calls Eval BLEU", ends[1][1], text)


def _directions(facts: Facts) -> Iterator[Evidence]:
    """The last BLEU of every direction on the dev set, then on each test set."""
    last: dict[tuple[str, str, str], RecordedDirection] = {}
    for score in facts.direction_scores:
        last[score.text, score.source, score.target] = score
    for score in sorted(last.values(), key=lambda score: score.text != "valid"):
        on_dev = score.text == "valid"
        name = f"BLEU on {'dev' if on_dev else score.text}, {score.source} to {score.target}"
        text = bleu_text(score) + (at_step(score.step) if on_dev and score.step is not None else "")
        text += "; zero-shot: no training text, not in the mean" if score.zero_shot else ""
        if score.bleu is not None:
            yield Evidence(printable_line(name), score.bleu, text)


def of_samples(facts: Facts) -> str:
    """Which model made the translations that a report shows."""
    step = facts.samples[0].step
    return "Dev sentences" + ("" if step is None else f", by the model{at_step(step)}")


EXAM: Final = "What people type"
"""The heading of the marks of an exam."""


def exam_rows(facts: Facts) -> Iterator[tuple[str, str]]:
    """The subjects of the last exam: shares of right translations, and the cures of weak ones."""
    for mark in {mark.subject: mark for mark in facts.exam}.values():
        share = mark.held / max(1, mark.texts)
        counts = f"{units.COUNT.text(mark.held)} of {units.COUNT.text(mark.texts)}"
        teaches = f"; {mark.cure} teaches it" if mark.cure and share < PASSING_SHARE else ""
        yield mark.subject, f"{units.SHARE.text(share)} ({counts}){teaches}"


def _comparisons(facts: Facts) -> Iterator[Evidence]:
    """The last comparison with each other system on each test set."""
    last: dict[tuple[str, str], dict[str, Compared]] = {}
    for score in facts.comparisons:
        by_metric = last.setdefault((score.other, score.name), {})
        if score.metric in by_metric:  # a later comparison has begun
            by_metric.clear()
        by_metric[score.metric] = score
    for (other, name), by_metric in last.items():
        place = printable_line(f"on {name}, beside {other}")
        for score in by_metric.values():
            yield _comparison(score, place)
        newest = next(reversed(by_metric.values()))
        equal = newest.pairs - newest.ahead - newest.behind
        text = f"{newest.ahead}; equal in {equal}, behind in {newest.behind}, by chrF"
        yield Evidence(f"sentences ahead {place}", newest.ahead, text)


def _comparison(score: Compared, place: str) -> Evidence:
    better = {"run": "this run", "other": "the other"}.get(score.better, "neither")
    text = (
        f"{score.value:.2f}, the other {score.other_value:.2f}, p {score.p_bootstrap:.4f} "
        f"(bootstrap), {score.p_randomisation:.4f} (randomisation); shown to be better: {better}"
    )
    metric = printable_line(_METRICS.get(score.metric, score.metric))
    return Evidence(f"{metric} {place}", score.value, text)


def _distillation(student: StudentMeasured) -> Iterator[Evidence]:
    """Size and speed of the exports of a student and its teacher."""
    pairs = units.COUNT.text(student.pairs)
    yield in_words("learnt from", printable_line(f"{pairs} translations of {student.teacher}"))
    size, others_size = student.size_bytes, student.teacher_size_bytes
    share = f", {size / others_size:.2f} x" if others_size else ""
    text = f"{units.SIZE.text(size)}, the teacher's {units.SIZE.text(others_size)}{share}"
    yield Evidence("size of the export", size, text)
    speed, others_speed = student.sentences_per_s, student.teacher_sentences_per_s
    share = f", {speed / others_speed:.2f} x" if others_speed else ""
    text = (
        f"{_rate(speed)} with beam {student.beam_size}, the teacher's {_rate(others_speed)} with "
        f"beam {student.teacher_beam_size}{share}"
    )
    yield Evidence("sentences/s of the export", speed, text)


def _rate(per_s: float) -> str:
    """A rate as text: whole from 10 on, else to three digits."""
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.3g}"
