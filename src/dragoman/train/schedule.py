"""Learning rates: pure functions of the step, no optimizer in sight.

A new schedule is one function here, its entry in SCHEDULES and its test.
`step` counts updates from 0; the value at step n is used for update n + 1.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dragoman.settings import Section


class ScheduleConfig(Section):
    """Which schedule, and its numbers. All lengths are in steps (updates)."""

    kind: Literal["noam", "inverse_sqrt", "cosine", "linear", "wsd", "constant"] = "inverse_sqrt"
    peak_learning_rate: float = Field(default=1e-3, gt=0.0)
    """Highest value; `noam` computes its own from `noam_scale`."""
    warmup_steps: int = Field(default=4000, ge=0)
    total_steps: int | None = Field(default=None, ge=1)
    """End of cosine, linear and wsd; the run's `train.max_steps` where it is not set."""
    decay_steps: int = Field(default=0, ge=0)
    """Length of the linear decay at the end of wsd (warmup, stable, decay)."""
    final_ratio: float = Field(default=0.0, ge=0.0, le=1.0)
    """Value at the end of cosine, linear and wsd, as a share of the peak."""
    noam_scale: float = Field(default=2.0, gt=0.0)
