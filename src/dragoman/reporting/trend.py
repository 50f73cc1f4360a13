"""Slopes with confidence intervals, and a curve to extrapolate with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_STUDENT_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
"""Two-sided 95% quantiles of Student's t for 1 to 20 degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Trend:
    """The gain of one more stretch of training, with its 95% confidence interval.

    A straight line over the logarithm of the step (least squares): learning curves are close to
    straight there. A positive gain is an increase.
    """

    gain: float
    low: float
    high: float
    points: int


def trend(steps: Sequence[float], values: Sequence[float], *, stretch: float) -> Trend | None:
    """The change of the value if the steps are multiplied by 1 + stretch; None below three
    points or without two different steps."""
    if len(steps) < 3 or len(set(steps)) < 2:
        return None
    x, y = np.log(np.asarray(steps, dtype=float)), np.asarray(values, dtype=float)
    away = x - x.mean()
    spread = float((away**2).sum())
    slope = float((away * y).sum()) / spread
    residuals = y - y.mean() - slope * away
    freedom = len(steps) - 2
    error = math.sqrt(float((residuals**2).sum()) / freedom / spread)
    scale = math.log1p(stretch)
    doubt = student_95(freedom) * error
    return Trend(slope * scale, (slope - doubt) * scale, (slope + doubt) * scale, len(steps))


def student_95(freedom: int) -> float:
    """The two-sided 95% quantile of Student's t."""
    if freedom <= len(_STUDENT_95):
        return _STUDENT_95[freedom - 1]
    return 1.96 + 2.4 / freedom  # within 0.3% from 21 on


@dataclass(frozen=True, slots=True)
class FittedCurve:
    """floor + height x step^-power, fitted to a falling loss (Hestness et al. 2017)."""

    floor: float
    height: float
    power: float

    def at(self, step: float) -> float:
        """The loss at a step."""
        return float(self.floor + self.height * step**-self.power)


def fit_curve(steps: Sequence[float], losses: Sequence[float]) -> FittedCurve | None:
    """The curve of least squared error; None below four points or if nothing falls."""
    if len(steps) < 4:
        return None
    x, y = np.asarray(steps, dtype=float), np.asarray(losses, dtype=float)
    best: tuple[float, FittedCurve] | None = None
    for power in np.geomspace(0.05, 3.0, 60):
        shape = x**-power
        design = np.stack([np.ones_like(shape), shape], axis=1)
        (floor, height), *_ = np.linalg.lstsq(design, y, rcond=None)
        if floor < 0 or height <= 0:
            continue
        error = float(((design @ [floor, height] - y) ** 2).sum())
        if best is None or error < best[0]:
            best = (error, FittedCurve(float(floor), float(height), float(power)))
    return best[1] if best else None


def ratio_interval(
    parts: Sequence[float], wholes: Sequence[float]
) -> tuple[float, float, float] | None:
    """The sum of parts over the sum of wholes with its 95% confidence interval; None without a
    whole.

    A long interval counts as much as it lasts (ratio estimator; Cochran 1977, section 2.11). One
    interval alone does not show how much intervals differ, so its confidence interval has no
    bounds.
    """
    count, whole = len(parts), sum(wholes)
    if not whole:
        return None
    ratio = sum(parts) / whole
    if count == 1:
        return ratio, -math.inf, math.inf
    residuals = (part - ratio * one for part, one in zip(parts, wholes, strict=True))
    variance = sum(one**2 for one in residuals) / (count - 1)
    doubt = student_95(count - 1) * math.sqrt(variance / count) / (whole / count)
    return ratio, ratio - doubt, ratio + doubt
