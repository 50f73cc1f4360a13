"""When training has left the range in which it makes sense, and what to change then.

The loss is judged by its trend, never by one batch. A trend is a row of means, each over 40 updates
without their lowest and highest tenth. The limit lies above the lowest mean so far, by the largest
of these three:

- five standard deviations of the difference of two means, estimated from the differences of
  neighbouring batches;
- a third of the way back to the loss of a model that knows nothing, which is the logarithm of the
  number of target pieces;
- a tenth of that loss, for a model that has hardly learnt.

Training has diverged if the last mean is above the limit. It has also diverged if the last three
means, of 120 updates, are all above a lower limit, for which the last two of the three count 0.4
times. In both cases the medians of these updates must be above it, too.

A run may diverge before it has a lowest mean. Then its first loss replaces that mean, with the
noise of a single batch. A dev loss has no such noise, so after a validation only the last two of
the three count, by half: training has diverged if the dev loss is that far above its best, and the
last mean that far above the first loss. If only the dev loss rises, that is overfitting, or another
kind of text.

Raising a learning rate again lifts the loss of a trained model for a while. The demo's own peak
rate, 30 times a usual one of fine-tuning, lifts it by a twentieth of the way back, and targets of
other sources lift it by a sixth. With these limits none of twelve healthy fine-tunings was stopped,
and each of ten that diverged was, after 120 updates at the latest.

Marian (`--throw-on-divergence 1000 10 5`, marian-dev, src/training/scheduler.h) compares a fast
moving average of 10 updates with a slow one of 1000 by five standard deviations of the losses, and
only after 1000 updates. A fine-tuning may be shorter than that. The lowest mean replaces the slow
average, which would follow a loss that rises slowly. A mean alone rises with a spike of 15 updates
that goes by, and a median alone jumps if batches are of two kinds, such as translations by a model
and other text: in a student of 38,000 weights medians lay between 3.7 and 4.9 without any training,
and means between 4.0 and 4.5.

A stage of training may have other text, whose loss is another one from its first update on. So each
stage has a trend of its own.

Gradients and losses that are NaN or infinite are not part of the trend: those updates change no
weight, and the loop judges them separately (in fp16 by the loss scale).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, Self

from pydantic import BaseModel, ConfigDict

from dragoman.base.errors import DivergenceError
from dragoman.training.durable import step_number

WINDOW: Final = 40
"""Updates whose mean is judged."""
_EXTREME: Final = 0.1
"""Share of the updates that is left out at either end."""
_WINDOWS: Final = 3
_LASTING: Final = 0.4
"""This many means in a row, above by this share of `far`, are enough, too."""
DEVIATIONS: Final = 5.0
"""Multiples of the difference that chance makes; Marian's default."""
WAY_BACK: Final = 1 / 3
"""Share of the way from the lowest mean to the loss of a model that knows nothing."""
LEAST_RISE: Final = 0.1
"""Share of the loss of a model that knows nothing."""
_OF_TWO_MEANS: Final = math.sqrt(2 * 1.07 / WINDOW)
"""Standard deviation of the difference of two means of 40 draws, over that of one draw: without the
extremes a mean of normal draws has 1.07 times the variance of a whole one."""
_OF_MEAN_DISTANCE: Final = math.sqrt(math.pi) / 2
"""Standard deviation of a normal distribution over the mean distance between two draws."""


class Problem(NamedTuple):
    """A problem in words, and the step at whose end it began."""

    text: str
    since: int


class LossTrend(BaseModel):
    """The training losses of this stage so far that the judgement needs; a part of checkpoints.

    recent: the losses of the last 120 updates with a finite loss, in nats per target token, with
        label smoothing. steps: the training steps at whose ends they were measured.
    first: the loss of the first update. lowest_mean: the lowest mean of 40 updates so far; None
        before there are 40. lowest_step: the step at which the last of them ended. noise: the
        standard deviation between batches in the 120 updates until then.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    recent: tuple[float, ...] = ()
    steps: tuple[int, ...] = ()
    first: float | None = None
    lowest_mean: float | None = None
    lowest_step: int = 0
    noise: float = 0.0

    @property
    def oldest_step(self) -> int:
        """The oldest step of its losses; the trend must not be empty."""
        return min(self.steps[0], self.lowest_step or self.steps[0])

    @property
    def mean(self) -> float:
        """The mean loss of the last 40 updates, or fewer, without the extremes."""
        return _mean(self.recent[-WINDOW:])

    def after(self, loss: float, *, step: int) -> Self:
        """The trend with one more update, which ended at `step`."""
        if not math.isfinite(loss):
            return self
        kept = _WINDOWS * WINDOW
        recent, steps = (*self.recent, loss)[-kept:], (*self.steps, step)[-kept:]
        update: dict[str, object] = {"recent": recent, "steps": steps}
        if self.first is None:
            update["first"] = loss
        if len(recent) >= WINDOW:
            last = recent[-WINDOW:]
            mean = _mean(last)
            if self.lowest_mean is None or mean < self.lowest_mean:
                update |= {"lowest_mean": mean, "lowest_step": step, "noise": _noise(recent)}
        return self.model_copy(update=update)

    def problem(self, after: LossTrend, *, untrained_loss: float) -> Problem | None:
        """The problem with the trend `after` one more update; None if there is none.

        untrained_loss: the loss of a model that knows nothing, in nats per target token.
        """
        if self.first is None or len(after.recent) < WINDOW:
            return None
        if self.lowest_mean is None:
            known, at = self.first, self.steps[0]
            by_chance = _noise(after.recent)
        else:
            known, at = self.lowest_mean, self.lowest_step
            by_chance = self.noise * _OF_TWO_MEANS
        far = _far(known, untrained_loss)
        for num_windows, rise in ((1, far), (_WINDOWS, _LASTING * far)):
            limit = known + max(DEVIATIONS * by_chance, rise)
            judged = after.recent[-num_windows * WINDOW :]
            if num_windows > 1 and self.lowest_mean is not None and after.steps[-len(judged)] <= at:
                continue  # the loss was still falling, and so it was above the lowest mean
            windows = [judged[n : n + WINDOW] for n in range(0, len(judged), WINDOW)]
            if len(judged) == num_windows * WINDOW and all(
                min(_mean(window), statistics.median(window)) > limit for window in windows
            ):
                steps = after.steps[-len(judged) :]
                since = steps[_turn([loss > limit for loss in judged])]
                text = (
                    f"the training loss is {after.mean:.3f} (mean of {WINDOW} updates), was "
                    f"{known:.3f} at step {at} and is above {limit:.3f} since step {since}"
                )
                return Problem(text, since)
        return None

    def dev_problem(
        self, dev_loss: float, *, best: float, best_step: int, untrained_loss: float
    ) -> Problem | None:
        """The problem that a dev loss shows if `best` was the best so far; None if none."""
        if self.first is None or dev_loss <= best + _far(best, untrained_loss) / 2:
            return None
        if self.mean <= self.first + _far(self.first, untrained_loss) / 2:
            return None
        text = (
            f"the dev loss is {dev_loss:.3f}, was {best:.3f} at step {best_step} and is above that "
            f"since step {best_step + 1}; the training loss is {self.mean:.3f} (mean of "
            f"{WINDOW} updates), was {self.first:.3f} at first"
        )
        return Problem(text, best_step + 1)


def _far(known_loss: float, untrained_loss: float) -> float:
    return max(WAY_BACK * (untrained_loss - known_loss), LEAST_RISE * untrained_loss)


def not_finite(what: str, loss: float, step: int) -> Problem:
    """The problem of numbers that are NaN or infinite; what: their name.

    loss: the loss of the update that ended at `step`, or the last one that was finite.
    """
    return Problem(f"{what} since step {step}, with a training loss of {loss:.3f}", step)


def diverged(problem: Problem, *, step: int, checkpoints: Iterable[Path]) -> DivergenceError:
    """The error that ends the run.

    checkpoints: those of the run, oldest first. The one to return to is the newest that was written
    before the problem began.
    """
    good = [path for path in checkpoints if step_number(path.name) < problem.since]
    where = str(good[-1]) if good else "none was written"
    return DivergenceError(
        f"training diverged: {problem.text}",
        place=f"step {step:,}",  # as its alert
        remedy="lower schedule.peak_learning_rate (for noam schedule.noam_scale), lengthen "
        "schedule.warmup_steps or set optimizer.clip_norm = 1.0, look at the text if the rate is "
        f"low already, and start a new run; the last good checkpoint: {where}",
    )


def _mean(losses: Sequence[float]) -> float:
    """The mean without the lowest and the highest tenth (Tukey's trimmed mean)."""
    left_out = int(_EXTREME * len(losses))
    return statistics.fmean(sorted(losses)[left_out : len(losses) - left_out])


def _noise(losses: Sequence[float]) -> float:
    """The standard deviation between batches, whatever the trend."""
    return _OF_MEAN_DISTANCE * statistics.fmean(abs(two - one) for one, two in pairwise(losses))


def _turn(above: Sequence[bool]) -> int:
    """The index from which most losses are above the limit; before it most are below."""
    before, best, turn = 0, sum(above), 0
    for number, is_above in enumerate(above, start=1):
        before += 1 if not is_above else -1
        agreeing = before + sum(above)
        if agreeing > best:
            best, turn = agreeing, number
    return turn
