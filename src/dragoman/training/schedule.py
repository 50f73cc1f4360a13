"""Learning rates as pure functions of the step; the optimizer is elsewhere.

A schedule is a function and a line in SCHEDULES; another package adds one as an entry point of the
group `dragoman.schedules` (base/extensions.py). `step` counts updates from 0; the value at step n
is used for update n + 1. With a budget it is no whole number: the share of the time that has gone,
of the steps that were expected.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from string import Formatter
from typing import Annotated, Final, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator

from dragoman.base.extensions import Parts
from dragoman.base.settings import Section


class ScheduleConfig(Section):
    """Which schedule, and its numbers. All lengths are in steps."""

    kind: Annotated[str, AfterValidator(lambda name: SCHEDULES.known(name))] = "inverse_sqrt"
    """noam, inverse_sqrt, cosine, linear, wsd, constant, or one that another package adds."""
    peak_learning_rate: float = Field(default=1e-3, gt=0.0)
    """Highest value; `noam` computes its own from `noam_scale`."""
    warmup_steps: int = Field(default=4000, ge=0)
    """Steps over which the rate rises to its peak."""
    total_steps: int | None = Field(default=None, ge=1)
    """End of cosine, linear and wsd; the run's `train.max_steps` if it is not set."""
    decay_steps: int = Field(default=0, ge=0)
    """Length of the linear decay at the end of wsd (warmup, stable, decay)."""
    final_ratio: float = Field(default=0.0, ge=0.0, le=1.0)
    """Value at the end of cosine, linear and wsd, as a share of the peak."""
    noam_scale: float = Field(default=2.0, gt=0.0)
    """Multiplies the whole curve of `noam`."""
    added: dict[str, float] = Field(default_factory=dict)
    """Numbers of a schedule that another package adds, by their names in its formula."""

    @model_validator(mode="after")
    def _decay_is_set(self) -> Self:
        if self.kind == "wsd" and not self.decay_steps:
            raise ValueError('schedule.kind = "wsd" never decays without schedule.decay_steps')
        return self

    @model_validator(mode="after")
    def _added_are_known(self) -> Self:
        for name in self.added:
            fields = {field for _, field, _, _ in Formatter().parse(SCHEDULES[self.kind].formula)}
            if name not in fields:
                raise ValueError(
                    f"schedule.added.{name} is in no formula of schedule.kind = {self.kind!r}"
                )
        return self


class Run(NamedTuple):
    """The facts of the run that a schedule may use beside its own numbers."""

    d_model: int
    total_steps: int


class Schedule(NamedTuple):
    """A schedule and its description in reports.

    rate: the function that gives the learning rate of a step.
    formula: its text, in which {peak}, {final}, {total}, {decay}, {warmup}, {scale} and the name of
        every field of ScheduleConfig and of its `added` stand for the numbers of the recipe.
    ends: whether the rate reaches its final value at a known step: until then, a flat dev loss
        proves nothing.
    """

    rate: Callable[[float, ScheduleConfig, Run], float]
    formula: str
    ends: bool = False


def noam(step: float, config: ScheduleConfig, run: Run) -> float:
    """Linear warmup, then 1 / sqrt(step), scaled by the model's width.

    noam_scale * d_model^-0.5 * min((step + 1) * warmup^-1.5, (step + 1)^-0.5), as in OpenSeq2Seq
    (Vaswani et al. 2017, section 5.3, with a scale of 1).
    """
    n = step + 1
    shape = n * config.warmup_steps**-1.5 if n < config.warmup_steps else n**-0.5
    return float(config.noam_scale * run.d_model**-0.5 * shape)


def inverse_sqrt(step: float, config: ScheduleConfig, _run: Run) -> float:
    """Linear warmup to the peak, then peak * sqrt(warmup / (step + 1)).

    fairseq's inverse_sqrt (warmup from 0) at step + 1, so that the first update does not have a
    rate of 0.
    """
    n = step + 1
    if n < config.warmup_steps:
        return _warmup(step, config)
    return config.peak_learning_rate * math.sqrt(max(config.warmup_steps, 1) / n)


def cosine(step: float, config: ScheduleConfig, run: Run) -> float:
    """Linear warmup, then half a cosine down to the final value (Loshchilov and Hutter 2017)."""
    if step < config.warmup_steps:
        return _warmup(step, config)
    gone = _share(step - config.warmup_steps, run.total_steps - config.warmup_steps)
    return _between(config, 0.5 * (1 + math.cos(math.pi * gone)))


def linear(step: float, config: ScheduleConfig, run: Run) -> float:
    """Linear warmup, then a straight line down to the final value."""
    if step < config.warmup_steps:
        return _warmup(step, config)
    gone = _share(step - config.warmup_steps, run.total_steps - config.warmup_steps)
    return _between(config, 1 - gone)


def wsd(step: float, config: ScheduleConfig, run: Run) -> float:
    """Warmup, stable, decay: the peak is held until a straight line down over the last steps.

    Hu et al. 2024 (MiniCPM), with the linear decay of Hägele et al. 2024.
    """
    if step < config.warmup_steps:
        return _warmup(step, config)
    decay_start = max(config.warmup_steps, run.total_steps - config.decay_steps)
    if step < decay_start:
        return config.peak_learning_rate
    return _between(config, 1 - _share(step - decay_start, run.total_steps - decay_start))


def constant(step: float, config: ScheduleConfig, _run: Run) -> float:
    """Linear warmup, then the peak for ever."""
    return _warmup(step, config) if step < config.warmup_steps else config.peak_learning_rate


_OURS: dict[str, Schedule] = {
    "noam": Schedule(noam, "{scale:g} * d_model^-0.5 * min((step+1) * warmup^-1.5, (step+1)^-0.5)"),
    "inverse_sqrt": Schedule(
        inverse_sqrt, "{peak:g} * min((step+1)/warmup, (warmup/(step+1))^0.5)"
    ),
    "cosine": Schedule(
        cosine, "Warmup to {peak:g}, then half a cosine to {final:g} at step {total}", ends=True
    ),
    "linear": Schedule(
        linear, "Warmup to {peak:g}, then a straight line to {final:g} at step {total}", ends=True
    ),
    "wsd": Schedule(
        wsd,
        "Warmup to {peak:g}, held, over the last {decay} of {total} steps to {final:g}",
        ends=True,
    ),
    "constant": Schedule(constant, "Warmup to {peak:g}, then constant"),
}
SCHEDULES: Final = Parts("schedules", _OURS)


def learning_rate(step: float, config: ScheduleConfig, *, d_model: int, max_steps: int) -> float:
    """The rate of update number `step`, counted from 0.

    d_model: the model's width; only `noam` uses it.
    max_steps: the run's length, which counts if the config sets no total of its own.
    """
    total_steps = max_steps if config.total_steps is None else config.total_steps
    return SCHEDULES[config.kind].rate(step, config, Run(d_model, total_steps))


def _warmup(step: float, config: ScheduleConfig) -> float:
    return config.peak_learning_rate * (step + 1) / config.warmup_steps


def _share(steps: float, length: int) -> float:
    """The share of a stretch of `length` steps that has passed, from 0 to 1."""
    return min(steps / length, 1.0) if length > 0 else 1.0


def _between(config: ScheduleConfig, height: float) -> float:
    """The final value at height 0, the peak at height 1."""
    final = config.peak_learning_rate * config.final_ratio
    return final + (config.peak_learning_rate - final) * height
