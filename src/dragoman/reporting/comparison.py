"""Compare runs by their use of samples, tokens, time and money, never by steps alone.

A step of one run may hold four times the tokens of another's step, so "after 10,000 steps" compares
nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from dragoman.base import units
from dragoman.corpus.manifest import Manifest
from dragoman.reporting import measures
from dragoman.reporting.cost import (
    currency_of,
    energy_text,
    is_priced,
    lived_s,
    machine_hours,
    spent,
)
from dragoman.reporting.facts import Facts, RecordedValidation, bleu_text
from dragoman.reporting.learning import LEAST_FALL
from dragoman.reporting.verdict import Answer

NAMES: Final = "ABCDEFGH"


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource that a run uses up: its name, and how an amount of it is written."""

    key: str
    name: str
    text: Callable[[float], str]
    unit: str = ""


PAIRS: Final = Resource("pairs", "samples (pairs)", units.SHORT_COUNT.text, "pairs")
TOKENS: Final = Resource("tokens", "source + target tokens", units.SHORT_COUNT.text, "tokens")
WALL: Final = Resource("wall_s", "wall clock", units.DURATION.text)
MACHINES: Final = Resource("machine_s", "machine time", units.DURATION.text, "of machines")


@dataclass(frozen=True, slots=True)
class ValidationPoint:
    """A validation, and the amounts that the run had used by then."""

    validation: RecordedValidation
    used: dict[str, float]


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One of the compared runs, with the letter that it has in tables and plots."""

    letter: str
    facts: Facts
    validations: tuple[ValidationPoint, ...]

    def losses(self, budget: Resource) -> list[tuple[float, float]]:
        """(amount used, dev loss) of every validation that has both."""
        return [
            (point.used[budget.key], point.validation.dev_loss)
            for point in self.validations
            if point.validation.dev_loss is not None and budget.key in point.used
        ]

    def last_used(self, budget: Resource) -> float | None:
        """The amount used by the last validation that says something; None without one."""
        amounts = [used for used, _ in (*self.losses(budget), *self.bleus(budget))]
        return max(amounts, default=None)

    def bleus(self, budget: Resource) -> list[tuple[float, RecordedValidation]]:
        """Every validation that translated, as (amount used, validation)."""
        return [
            (point.used[budget.key], point.validation)
            for point in self.validations
            if point.validation.bleu is not None and budget.key in point.used
        ]


@dataclass(frozen=True, slots=True)
class Level:
    """All runs at the same budget: dev loss and BLEU by letter."""

    budget: Resource
    amount: float
    losses: dict[str, float]
    bleus: dict[str, RecordedValidation]
    answer: Answer
    says: str


@dataclass(frozen=True, slots=True)
class Target:
    """The amounts that each run used until it reached a dev loss that all of them reached."""

    loss: float
    used: dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class RunComparison:
    """The runs, notes for the reader, and the scores of the runs at equal budgets."""

    compared: tuple[ComparedRun, ...]
    budgets: tuple[Resource, ...]
    notes: tuple[str, ...]
    levels: tuple[Level, ...]
    target: Target | None


def compare(runs: Sequence[Facts]) -> RunComparison:
    """The comparison of two to eight runs, in the order given."""
    compared = tuple(
        ComparedRun(letter, facts, tuple(_points(facts)))
        for letter, facts in zip(NAMES, runs, strict=False)
    )
    budgets = (PAIRS, TOKENS, WALL, MACHINES, *_money(runs))
    incomparable, notes = _incomparable(compared)
    # A note says why, and nothing shows them beside each other.
    compared = tuple(_without(run, incomparable) for run in compared)
    same_loss = "dev_loss" not in incomparable
    levels = tuple(
        level
        for budget in budgets
        if (level := _level(compared, budget, same_loss=same_loss)) is not None
    )
    target = _target(compared, budgets) if same_loss else None
    return RunComparison(compared, budgets, tuple(notes), levels, target)


def _without(run: ComparedRun, scores: Set[str]) -> ComparedRun:
    gone = dict.fromkeys(scores - {"test"})
    without = (
        replace(point, validation=point.validation.model_copy(update=gone))
        for point in run.validations
    )
    facts = run.facts
    if "test" in scores:
        others = tuple(score for score in facts.test_scores if score.name != "test")
        facts = replace(facts, test_scores=others)
    return replace(run, facts=facts, validations=tuple(without))


def totals(run: ComparedRun, budgets: Sequence[Resource]) -> Iterator[tuple[str, str]]:
    """The amounts that one run used and the scores that it reached, as (name, value)."""
    facts, used = run.facts, _used(run.facts)
    yield "steps", units.COUNT.text(facts.last_step)
    if "tokens" in used and facts.last_step:
        yield "tokens a step", units.COUNT.text(round(used["tokens"] / facts.last_step))
    for budget in budgets:
        amount = used.get(budget.key)
        yield budget.name, "not measured" if amount is None else budget.text(amount)
    if energy := energy_text(facts):
        yield "energy", energy
    yield "speed", units.TOKEN_RATE.optional_text(measures.tokens_per_s(facts))
    losses = [loss for _, loss in run.losses(WALL)]
    if losses:
        yield "lowest dev loss", units.LOSS.text(min(losses))
    scores = [validation.bleu or 0.0 for _, validation in run.bleus(WALL)]
    if scores:
        yield "best dev BLEU", units.SCORE.text(max(scores))
    # A score with another search, or of another checkpoint, has a row of its own.
    for label, score in {test_score.label: test_score for test_score in facts.test_scores}.items():
        yield f"BLEU on {label}", bleu_text(score)


def _money(runs: Sequence[Facts]) -> Iterator[Resource]:
    """Money is a budget if the price of every life of every run is known, in one currency."""
    currencies = {currency_of(facts) if is_priced(facts) else None for facts in runs}
    (currency, *others) = currencies
    if currency is not None and not others:
        yield Resource("money", "money", partial(units.money, currency=currency))


def _points(facts: Facts) -> Iterator[ValidationPoint]:
    for validation in facts.validations:
        used = _used(facts, step=validation.step, until=validation.time)
        yield ValidationPoint(validation, used)


def _used(facts: Facts, *, step: float = math.inf, until: float | None = None) -> dict[str, float]:
    """The amounts that a run had used by a step and a moment, or in all, if they were measured.

    The time between two lives is not counted.
    """
    made = facts.intervals.where(facts.intervals["step"] <= step)
    used = {
        name: sum(float(np.nansum(made[count])) for count in counts)
        for name, counts in (("pairs", ("pairs",)), ("tokens", ("source_tokens", "target_tokens")))
        if any(np.nansum(facts.intervals[count]) for count in counts)
    }
    if facts.lives:
        used["wall_s"] = sum(lived_s(life, until) for life in facts.lives)
    if (hours := machine_hours(facts, until=until)) is not None:
        used["machine_s"] = hours * units.HOUR_S
    if is_priced(facts):
        used["money"] = spent(facts, until=until)
    return used


def _incomparable(compared: Sequence[ComparedRun]) -> tuple[Set[str], list[str]]:
    """The scores of validations, and "test" for those of the test set, that must not be compared,
    and notes for the reader."""
    notes = []
    incomparable: Set[str] = frozenset()
    manifests = [run.facts.manifest for run in compared]
    manifests_found = [manifest for manifest in manifests if manifest is not None]
    if len(manifests_found) < len(manifests):
        missing = ", ".join(c.letter for c in compared if c.facts.manifest is None)
        notes.append(f"No manifest of {missing}: the dev sets may differ.")
    texts = _texts(manifests_found, "valid")
    models = {m.files["target.model"].sha256 for m in manifests_found if "target.model" in m.files}
    if len(texts) > 1:
        incomparable = {"dev_loss", "bleu"}
        notes.append("The dev sets differ: neither loss nor BLEU can be compared.")
    elif len(models) > 1:
        incomparable = {"dev_loss"}
        notes.append("The subword models differ, so tokens differ: losses cannot be compared.")
    per_step = {
        round(measures.per_step(run.facts.intervals, "target_tokens") or 0) for run in compared
    }
    if len(per_step) > 1 and max(per_step) > 1.02 * min(per_step):
        notes.append("Steps are not the same in these runs, so steps are not compared.")
    signatures = {
        validation.bleu_signature
        for run in compared
        for validation in run.facts.validations
        if validation.bleu_signature
    }
    if len(signatures) > 1 and "bleu" not in incomparable:
        notes.append("BLEU was computed in different ways: its signatures differ.")
    if len(_texts(manifests_found, "test")) > 1:
        incomparable = {*incomparable, "test"}
        notes.append("The test sets differ: their BLEU cannot be compared.")
    return incomparable, notes


def _texts(manifests: Sequence[Manifest], split: str) -> Set[tuple[str, ...]]:
    """The digests of both sides of each dev or test set."""
    names = [f"{split}/{side}.txt" for side in ("source", "target")]
    return {
        tuple(manifest.files[name].sha256 for name in names)
        for manifest in manifests
        if manifest.files.keys() >= {*names}
    }


def _level(compared: Sequence[ComparedRun], budget: Resource, *, same_loss: bool) -> Level | None:
    """All runs at the largest amount that each of them has used."""
    ends = [end for run in compared if (end := run.last_used(budget)) is not None]
    if len(ends) < len(compared) or min(ends) <= 0:
        return None
    amount = min(ends)
    losses = {
        run.letter: loss
        for run in compared
        if (loss := _at(run.losses(budget), amount)) is not None
    }
    bleus = {
        run.letter: reached[-1]
        for run in compared
        if (reached := [validation for used, validation in run.bleus(budget) if used <= amount])
    }
    around = {run.letter: _around(run.losses(budget), amount) for run in compared}
    answer: Answer = "cannot tell"
    says = ""
    if same_loss:
        answer, says = _better(losses, around)
    if answer == "measured" and any(run.facts.manifest is None for run in compared):
        answer, says = "cannot tell", f"{says[:-1]}, if their dev sets are the same."
    return Level(budget, amount, losses, bleus, answer, says)


def _better(losses: dict[str, float], around: dict[str, tuple[float, ...]]) -> tuple[Answer, str]:
    """Which run has the lower loss. around: the losses measured just before and just after."""
    if len(losses) < 2:
        return "cannot tell", "Too few validations."
    first, second = sorted(losses, key=lambda letter: losses[letter])[:2]
    lead = 1 - losses[first] / losses[second] if losses[second] > 0 else 0.0
    if lead < LEAST_FALL:
        return "cannot tell", f"{first} and {second} are level: {units.SHARE.text(lead)} apart."
    if max(around[first]) >= min(around[second]):
        return "cannot tell", f"{first} may be ahead: validations are too far apart to tell."
    return "measured", f"{first} is ahead, its dev loss is {units.SHARE.text(lead)} lower."


def _at(points: Sequence[tuple[float, float]], amount: float) -> float | None:
    """The loss at an amount, on a straight line between the validations around it."""
    if not points or amount < points[0][0]:
        return None
    used, losses = zip(*points, strict=True)
    return float(np.interp(amount, used, losses))


def _around(points: Sequence[tuple[float, float]], amount: float) -> tuple[float, ...]:
    """The losses that were measured at an amount, or next to it on both sides."""
    place = bisect_right([used for used, _ in points], amount)
    if place and points[place - 1][0] == amount:
        return (points[place - 1][1],)
    return tuple(loss for _, loss in points[max(place - 1, 0) : place + 1])


def _target(compared: Sequence[ComparedRun], budgets: Sequence[Resource]) -> Target | None:
    """The lowest loss that every run reached, and the resources each had used by then."""
    lowest = [min((loss for _, loss in c.losses(WALL)), default=None) for c in compared]
    losses = [loss for loss in lowest if loss is not None]
    if len(losses) < len(compared):
        return None
    loss = max(losses)
    used = {
        run.letter: {
            budget.key: amount
            for budget in budgets
            if (amount := _first_at(run.losses(budget), loss)) is not None
        }
        for run in compared
    }
    return Target(loss, used)


def _first_at(points: Sequence[tuple[float, float]], loss: float) -> float | None:
    """The amount used when the loss was first reached, on a line between validations."""
    place = next((place for place, (_, low) in enumerate(points) if low <= loss), None)
    if place is None:
        return None
    (before, high), (after, low) = points[max(place - 1, 0)], points[place]
    return float(np.interp(-loss, [-high, -low], [before, after]))
