"""The learning rate: its formula over the logged curve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dragoman.base import units
from dragoman.recipe.recipe import Recipe
from dragoman.reporting import measures
from dragoman.reporting.facts import Facts, once
from dragoman.reporting.verdict import Evidence, Judgement, at_step, evidence, in_words
from dragoman.training import schedule
from dragoman.training.schedule import SCHEDULES, ScheduleConfig

LARGEST_DEVIATION = 1e-6
"""A log that deviates by more (relative) does not follow the formula."""
_DECAY_AHEAD, _RISE_AHEAD = 2.0, 1.1
"""While the rate will still change by such a factor, a flat dev loss proves nothing."""


@dataclass(frozen=True)
class Rates:
    """A schedule and all that it depends on."""

    config: ScheduleConfig
    d_model: int
    max_steps: int
    recipe: Recipe | None = None
    clock: tuple[tuple[int, float], ...] = ()
    """With a budget, which sets the rate by the clock; see `Facts.clock`."""

    def at(self, update: int) -> float:
        """The rate of update number `update`, counted from 0."""
        if self.recipe is None:
            return schedule.learning_rate(
                update, self.config, d_model=self.d_model, max_steps=self.max_steps
            )
        if not self.clock:
            return self.recipe.learning_rate(update, max_steps=self.max_steps)
        steps, shares = zip((0, 0.0), *self.clock, strict=True)
        gone = float(np.interp(update + 1, steps, shares))
        return self.recipe.learning_rate(gone * self.recipe.train.max_steps)

    @property
    def formula(self) -> str:
        """The formula with its numbers."""
        config = self.config
        formula = SCHEDULES[config.kind].formula
        text = formula.format(
            **(config.model_dump() | config.added),
            scale=config.noam_scale,
            peak=config.peak_learning_rate,
            final=config.peak_learning_rate * config.final_ratio,
            total=units.COUNT.text(config.total_steps or self._expected_steps),
            decay=units.COUNT.text(config.decay_steps),
            warmup=units.COUNT.text(config.warmup_steps),
        )
        if "d_model" in formula:
            text += f", d_model = {self.d_model}"
        if "warmup" in formula.lower():
            text += f", warmup = {units.COUNT.text(config.warmup_steps)}"
            if not config.warmup_steps and "warmup" in formula:
                text += ", which counts as 1"  # the formula divides by it
        if self.clock:
            expected = units.COUNT.text(self._expected_steps)
            text += f"; steps by the clock of the budget, which stand for shares of {expected}"
        for factor, start in self.factors:
            text += f"; times {factor:g} from step {units.COUNT.text(start + 1)} on"
        return text

    @property
    def _expected_steps(self) -> int:
        return self.recipe.train.max_steps if self.clock and self.recipe else self.max_steps

    @property
    def factors(self) -> list[tuple[float, int]]:
        """Each stage as (factor, updates before it); empty if all factors are 1."""
        if self.recipe is None:
            return []
        stages = zip(self.recipe.stages, self.recipe.stage_starts(), strict=False)
        of_stages = [(stage.learning_rate_factor, start) for stage, start in stages]
        return of_stages if any(factor != 1.0 for factor, _ in of_stages) else []

    @cached_property
    def peak(self) -> tuple[int, float]:
        """The first update with the highest rate, and that rate.

        Candidates are the end of the warmup, the end of the run, the starts of stages, and a
        thousand updates spread over the run.
        """
        warmup, last = self.config.warmup_steps, self.max_steps - 1
        near = range(max(warmup - 2, 0), min(warmup + 2, self.max_steps))
        between = range(0, self.max_steps, max(self.max_steps // 1000, 1))
        stages = {start for _, start in self.factors}
        read = {max(step - 1, 0) for step, _ in self.clock}
        updates = sorted({*near, *between, *stages, *read, last})
        return max(((update, self.at(update)) for update in updates), key=lambda point: point[1])


@once
def rates_of(facts: Facts) -> Rates | None:
    """The schedule of a run; None if neither a recipe nor another tool's log gives it, or the
    length of the run is not known."""
    if facts.max_steps is None:
        return None
    if facts.recipe is not None:
        recipe = facts.recipe
        width = recipe.model.d_model
        return Rates(recipe.schedule, width, facts.max_steps, recipe, facts.clock)
    imported = facts.imported
    if imported is None or not (
        imported.schedule_scale and imported.schedule_width and imported.schedule_warmup
    ):
        return None
    config = ScheduleConfig(
        kind="noam", noam_scale=imported.schedule_scale, warmup_steps=imported.schedule_warmup
    )
    return Rates(config, imported.schedule_width, facts.max_steps)


def learning_rate(facts: Facts) -> Judgement:
    """What does the learning rate do?"""
    rates = rates_of(facts)
    if rates is None:
        says, logged = "The schedule of this run is not known.", _logged(facts)
        if not logged:
            return "cannot tell", says, ""
        says += f" The highest that was logged is {logged[0].text}, the last {logged[1].text}."
        return "measured", says, ""
    deviation = largest_deviation(facts, rates)
    step, peak = rates.peak
    rises = f"it rises to {units.LEARNING_RATE.text(peak)} at step {units.COUNT.text(step + 1)}"
    if not step:
        rises = f"it begins with {units.LEARNING_RATE.text(peak)}"
    says = f"{rates.formula}: {rises}"
    falls = rates.at(rates.max_steps - 1) < peak
    if rates.factors:
        says += "; the stages change it."
    else:
        says += ", then falls with the step alone." if falls else "."
    remedy = ""
    if deviation is not None and deviation > LARGEST_DEVIATION:
        first = next(step for step, apart in _deviations(facts, rates) if apart > LARGEST_DEVIATION)
        remedy = f"From {at_step(first).removeprefix(' at ')} on the logged rate differs from this "
        remedy += "formula: was the recipe changed during the run?"
    return "measured", says, remedy


def _logged(facts: Facts) -> list[Evidence]:
    """The highest and the last logged rate, if this version does not know the schedule."""
    points = facts.intervals.points("learning_rate")
    rates = [(value, step) for step, value in points if value]
    if not rates:
        return []
    return [
        evidence(name, units.LEARNING_RATE, value, at_step(step))
        for name, (value, step) in (("highest logged", max(rates)), ("last logged", rates[-1]))
    ]


def largest_deviation(facts: Facts, rates: Rates) -> float | None:
    """Largest relative deviation of a logged rate from the formula; None if none was logged."""
    return max((apart for _, apart in _deviations(facts, rates)), default=None)


def _deviations(facts: Facts, rates: Rates) -> Iterator[tuple[int, float]]:
    """The step of each logged rate, and its relative deviation."""
    for step, logged in facts.intervals.points("learning_rate"):
        if step > 0 and (want := rates.at(step - 1)):
            yield step, abs(logged / want - 1)


def learning_rate_evidence(facts: Facts) -> Iterator[Evidence]:
    """The formula and some of its values, or the logged rates if it is not known."""
    rates = rates_of(facts)
    if rates is None:
        yield from _logged(facts)
    else:
        step, peak = rates.peak
        yield in_words("formula", rates.formula)
        yield evidence("at the first step", units.LEARNING_RATE, rates.at(0))
        yield evidence("peak", units.LEARNING_RATE, peak, at_step(step + 1))
        if facts.last_step:
            now = rates.at(facts.last_step - 1)
            yield evidence("last", units.LEARNING_RATE, now, at_step(facts.last_step))
        deviation = largest_deviation(facts, rates)
        text = "no rate was logged" if deviation is None else f"{deviation:.1e} of the value"
        text = "none" if deviation == 0 else text
        yield Evidence("largest deviation of the log", deviation, text)
    yield from _noise(facts)


def _noise(facts: Facts) -> Iterator[Evidence]:
    noise_tokens = measures.gradient_noise_tokens(facts)
    batch_tokens = measures.per_step(facts.intervals, "target_tokens")
    if noise_tokens is not None and batch_tokens is not None:
        words = units.SHORT_COUNT.text
        text = f"{words(noise_tokens)} target tokens; a batch has {words(batch_tokens)}"
        yield Evidence("gradient noise scale", noise_tokens, text)


def stage_between(facts: Facts, since: int, until: int) -> int | None:
    """The updates before the first later stage that begins at `since` or later, before `until`."""
    starts = facts.recipe.stage_starts()[1:] if facts.recipe is not None else ()
    return next((start for start in starts if since <= start < until), None)


def first_step(updates: int) -> str:
    """The first step after this many updates, in words."""
    return f"step {units.COUNT.text(updates + 1)}"


def rate_ahead(facts: Facts, validated: int) -> tuple[str, str] | None:
    """What the schedule has ahead that may move a flat loss, and what to do; None if nothing.

    validated: the last step with a dev loss.
    """
    recipe, max_steps = facts.recipe, facts.max_steps
    if recipe is None or max_steps is None:
        return None

    def rate(updates: int) -> float:
        return recipe.learning_rate(max(updates - 1, 0), max_steps=max_steps)

    now, warmup_steps = rate(facts.last_step), recipe.schedule.warmup_steps
    if facts.last_step < warmup_steps and rate(warmup_steps + 1) > _RISE_AHEAD * now:
        return (
            "the learning rate has not reached its peak",
            "Train beyond the warm-up, or shorten schedule.warmup_steps.",
        )
    if SCHEDULES[recipe.schedule.kind].ends and now > _DECAY_AHEAD * rate(max_steps):
        return (
            "the learning rate is still to decay",
            "Let the schedule come to its end: its decay lowers the loss.",
        )
    start = stage_between(facts, validated, max_steps)
    if start is not None:
        return (
            f"a stage with other text or another learning rate begins with {first_step(start)}",
            "Train on, and validate in that stage.",
        )
    return None
