"""When training has left the range in which it makes sense, and what to change then."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from dragoman.errors import DivergenceError

_MEMORY_STEPS: Final = 100
_MARGIN: Final = 1.05
"""The untrained loss is that of a single batch; others are a little harder."""


def smoothed_loss(before: float, loss: float, *, steps: int) -> float:
    """The recent loss, in which the last 100 updates or so count, after `steps` more of them.

    before: the recent loss so far; loss: the mean of the new updates. One hard batch moves it
    little, whether losses come one by one or as means of many.
    """
    return loss + (before - loss) * math.exp(-steps / _MEMORY_STEPS)


def loss_problem(recent: float, *, untrained: float) -> str | None:
    """What is wrong with the recent training loss; None where nothing is.

    untrained: the loss of the first update.
    """
    if not math.isfinite(recent):
        return f"the training loss is {recent}"
    if recent > _MARGIN * untrained:
        return f"the training loss is {recent:.3f}, above the {untrained:.3f} it began with"
    return None


def diverged(problem: str, *, step: int, last_checkpoint: Path | None) -> DivergenceError:
    """The error that ends the run."""
    where = "none was written" if last_checkpoint is None else str(last_checkpoint)
    return DivergenceError(
        f"training diverged: {problem}",
        place=f"step {step}",
        remedy="lower schedule.peak_learning_rate (for noam schedule.noam_scale), lengthen "
        "schedule.warmup_steps or set optimizer.clip_norm = 1.0, and start a new run; "
        f"the last good checkpoint: {where}",
    )
