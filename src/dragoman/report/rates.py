"""The learning rate: its formula over the logged curve. Question 6."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dragoman import units
from dragoman.report.facts import Facts
from dragoman.report.verdict import Evidence, Verdict, evidence, in_words
from dragoman.train.schedule import ScheduleConfig, learning_rate

LARGEST_DEVIATION = 1e-6
"""Relative: beyond it what was logged is not this formula."""
_FORMULAS = {
    "noam": "{scale:g} * d_model^-0.5 * min((step+1) * warmup^-1.5, (step+1)^-0.5)",
    "inverse_sqrt": "{peak:g} * min((step+1)/warmup, (warmup/(step+1))^0.5)",
    "cosine": "Warmup to {peak:g}, then half a cosine to {final:g} at step {total}",
    "linear": "Warmup to {peak:g}, then a straight line to {final:g} at step {total}",
    "wsd": "Warmup to {peak:g}, held, over the last {decay} of {total} steps to {final:g}",
    "constant": "Warmup to {peak:g}, then constant",
}


@dataclass(frozen=True, slots=True)
class Rates:
    """A schedule with all it depends on."""

    config: ScheduleConfig
    d_model: int
    max_steps: int

    def at(self, update: int) -> float:
        """The rate of update number `update`, counted from 0."""
        return learning_rate(update, self.config, d_model=self.d_model, max_steps=self.max_steps)

    @property
    def formula(self) -> str:
        """The formula with its numbers."""
        config = self.config
        text = _FORMULAS[config.kind].format(
            scale=config.noam_scale,
            peak=config.peak_learning_rate,
            final=config.peak_learning_rate * config.final_ratio,
            total=units.COUNT.text(config.total_steps or self.max_steps),
            decay=units.COUNT.text(config.decay_steps),
        )
        numbers = f"warmup = {units.COUNT.text(config.warmup_steps)}"
        if config.kind == "noam":
            numbers = f"d_model = {self.d_model}, {numbers}"
        return f"{text}, {numbers}"

    def peak(self) -> tuple[int, float]:
        """The update with the highest rate, and that rate. Every schedule peaks after warmup."""
        warmup = self.config.warmup_steps
        near = range(max(warmup - 2, 0), min(warmup + 2, self.max_steps))
        last = self.max_steps - 1
        return max(((update, self.at(update)) for update in [*near, last]), key=lambda x: x[1])


def rates_of(facts: Facts) -> Rates | None:
    """The schedule of a run; None where neither a recipe nor another tool's log gives it."""
    if facts.max_steps is None:
        return None
    if facts.recipe is not None:
        return Rates(facts.recipe.schedule, facts.recipe.model.d_model, facts.max_steps)
    seen = facts.imported
    if seen is None or not (seen.schedule_scale and seen.schedule_width and seen.schedule_warmup):
        return None
    config = ScheduleConfig(
        kind="noam", noam_scale=seen.schedule_scale, warmup_steps=seen.schedule_warmup
    )
    return Rates(config, seen.schedule_width, facts.max_steps)


def rate(facts: Facts) -> Verdict:
    """Question 6."""
    found, question = rates_of(facts), "What does the learning rate do?"
    if found is None:
        says = "The schedule of this run is not known."
        return Verdict(key="learning_rate", question=question, answer="cannot tell", says=says)
    deviation = largest_deviation(facts, found)
    step, peak = found.peak()
    says = (
        f"{found.formula}: it rises to {units.LEARNING_RATE.text(peak)} at step "
        f"{units.COUNT.text(step + 1)}"
    )
    falls = step + 1 < found.max_steps and found.config.kind != "constant"
    says += ", then falls with the step alone." if falls else "."
    remedy = ""
    if deviation is not None and deviation > LARGEST_DEVIATION:
        remedy = "What was logged is not this formula: was the recipe changed during the run?"
    return Verdict(
        key="learning_rate",
        question=question,
        answer="measured",
        says=says,
        evidence=tuple(_evidence(facts, found, deviation)),
        method="The formula of the recipe, laid over what was logged. It depends on the step only: "
        "neither Adam nor the loss changes it.",
        remedy=remedy,
    )


def largest_deviation(facts: Facts, found: Rates) -> float | None:
    """Of the logged rates from the formula, relative; None where none was logged."""
    logged = [
        (found.at(one.step - 1), one.learning_rate)
        for one in facts.intervals
        if one.learning_rate is not None and one.step > 0
    ]
    return max((abs(seen / want - 1) for want, seen in logged if want), default=None)


def _evidence(facts: Facts, found: Rates, deviation: float | None) -> Iterator[Evidence]:
    step, peak = found.peak()
    yield in_words("formula", found.formula)
    yield evidence("at the first step", units.LEARNING_RATE, found.at(0))
    text = f"{units.LEARNING_RATE.text(peak)} at step {units.COUNT.text(step + 1)}"
    yield Evidence("peak", peak, text)
    if facts.last_step:
        now = found.at(facts.last_step - 1)
        text = f"{units.LEARNING_RATE.text(now)} at step {units.COUNT.text(facts.last_step)}"
        yield Evidence("last", now, text)
    text = "no rate was logged" if deviation is None else f"{deviation:.1e} of the value"
    text = "none" if deviation == 0 else text
    yield Evidence("largest deviation of the log", deviation, text)
