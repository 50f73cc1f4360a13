"""Short trainings on the real text that decide between the last two or three models of a budget.

They are made only if they pay for themselves. Their worth is the expected gain of a choice with
more knowledge (the value of sample information, Raiffa and Schlaifer 1961): the law is unsure of
the difference between two models, and a pilot measures it, with the error of a run. Their price is
the BLEU that the rest of the budget loses, by the same law.

Successive halving (Jamieson and Talwalkar 2016): of three, the worst is dropped, and the others are
trained for twice the time. A pilot is not judged by its BLEU, which favours small models, but by
how far that is from the law's forecast for so short a training: a model that beats its forecast
will do so at full length, too, except for chance. This module is our own, because the pruners of
Optuna and others compare scores of the same length, without such a law.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dragoman.run.choose import Choice, SizeCandidate, TextFacts
from dragoman.run.curves import inner_weights
from dragoman.run.expect import LEAST_BLEU, LEAST_ERROR, Law

SHARE: Final = 0.06
"""The share of the training time that all pilots together take."""
_MOST: Final = 3
_LEAST_GAIN: Final = 0.001
"""In ln BLEU; a smaller gain is not worth a pilot."""
_NO_BLEU: Final = 0.1
"""BLEU of a model that does not translate."""
_NORMAL: Final = statistics.NormalDist()


@dataclass(frozen=True, slots=True)
class Pilots:
    """Pilots that may decide.

    candidates: the one that is expected to be best, and others that may be better. first_s: the
    time of each pilot in the first round; each later round doubles it. gain, price: expected, in
    BLEU. why_not: why they are not worth it; "" if they are.
    """

    candidates: tuple[SizeCandidate, ...]
    first_s: float
    gain: float
    price: float
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Piloted:
    """A finished pilot. expected: the law's BLEU for so short a training. found: the BLEU on the
    dev text."""

    name: str
    seconds_s: float
    tokens: float
    expected: float
    found: float


def plan_pilots(choice: Choice, text: TextFacts, law: Law, *, training_s: float) -> Pilots | None:
    """The pilots of a choice, or why there are none; None if there is nothing to decide."""
    best = choice.best
    gains = {
        one.name: _gain(best, one, text, law)
        for one in choice.candidates
        if one is not best and one.is_timed and one.fits and one.has_enough_steps
    }
    names = sorted(gains, key=lambda name: gains[name], reverse=True)[: _MOST - 1]
    rivals = [
        one for one in choice.candidates if one.name in names and gains[one.name] > _LEAST_GAIN
    ]
    if not rivals:
        return None
    gain = sum(gains[one.name] for one in rivals)
    lacking = [
        law.lacking(text.digest, inner_weights(best.recipe), share * best.tokens, text.epoch_tokens)
        for share in (1.0, 1.0 - SHARE)
    ]
    price = lacking[1] - lacking[0]
    # Two of three go on for twice the time.
    first_s = SHARE * training_s / (2 if len(rivals) == 1 else 3 + 2 * 2)
    shortest = min(_bleu(one, text, law, one.tokens_per_s * first_s) for one in (best, *rivals))
    why_not = ""
    if shortest < LEAST_BLEU:
        why_not = "they would be too short to translate"
    elif price >= gain:
        why_not = "they would cost more than they gain"
    bleu = best.expected.bleu
    return Pilots((best, *rivals), first_s, gain * bleu, price * bleu, why_not)


def decide(
    pilots: Pilots,
    text: TextFacts,
    law: Law,
    train: Callable[[SizeCandidate, float], tuple[float, float]],
) -> tuple[SizeCandidate, list[Piloted]]:
    """Train the pilots, and drop the worst after each round; returns the last candidate, and all
    finished pilots.

    train: trains a candidate for this many seconds; gives target tokens and the BLEU on the dev
        text.
    """
    left, seconds_s = list(pilots.candidates), pilots.first_s
    made: list[Piloted] = []
    while len(left) > 1:
        surplus = {}
        for one in left:
            tokens, found = train(one, seconds_s)
            expected = _bleu(one, text, law, tokens)
            made.append(Piloted(one.name, seconds_s, tokens, expected, found))
            surplus[one.name] = math.log(max(found, _NO_BLEU) / max(expected, _NO_BLEU))
        first = left[0]

        def score(
            one: SizeCandidate, first: SizeCandidate = first, of: dict[str, float] = surplus
        ) -> float:
            """ln BLEU at full length, with the part of the surplus that is not chance."""
            doubt = _doubt(first, one, text, law) ** 2
            known = doubt / (doubt + 2 * LEAST_ERROR**2)
            return math.log(one.expected.bleu) + known * (of[one.name] - of[first.name])

        left.remove(min(left, key=score))
        left.sort(key=score, reverse=True)
        seconds_s *= 2
    return left[0], made


def _bleu(one: SizeCandidate, text: TextFacts, law: Law, tokens: float) -> float:
    return law.expect(
        text=text.digest,
        weights=inner_weights(one.recipe),
        tokens=max(tokens, 1.0),
        epoch_tokens=text.epoch_tokens,
    ).bleu


def _doubt(one: SizeCandidate, other: SizeCandidate, text: TextFacts, law: Law) -> float:
    """The error of the difference between two models, in ln BLEU, by the law."""
    mine, its = (
        law.row(text.digest, inner_weights(two.recipe), two.tokens, text.epoch_tokens)
        for two in (one, other)
    )
    row = mine - its
    return law.error * math.sqrt(float(row @ law.spread @ row))


def _gain(best: SizeCandidate, rival: SizeCandidate, text: TextFacts, law: Law) -> float:
    """The expected gain, in ln BLEU, of a choice that is made after the pilots of both models."""
    doubt = _doubt(best, rival, text, law)
    if not doubt:
        return 0.0
    # The standard deviation of the change that the pilots make to the expected difference.
    moves = doubt**2 / math.sqrt(doubt**2 + 2 * LEAST_ERROR**2)
    behind = math.log(best.expected.bleu / rival.expected.bleu) / moves
    return moves * (_NORMAL.pdf(behind) - abs(behind) * _NORMAL.cdf(-abs(behind)))
