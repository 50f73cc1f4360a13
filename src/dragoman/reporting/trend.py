"""Slopes with confidence intervals, and what is beyond chance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dragoman.reporting.record import Floats

_STUDENT_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
"""Two-sided 95% quantiles of Student's t for 1 to 20 degrees of freedom."""
STRETCH = 0.1
"""How far a trend looks ahead: 10% more steps."""
FEWEST = 4
"""Fewer validations tell no trend: through three, an interval is +-12.7 standard errors."""
MOST_NOISE = 0.04
"""Of a dev loss: the standard deviation on a tiny dev set, of a run that stands still."""
FAR_ABOVE = 1.2
"""Of a training loss: less may come from harder text."""
SMOOTHED = 9
"""Training losses in a median, so that one easy batch does not give the lowest loss."""


@dataclass(frozen=True, slots=True)
class Trend:
    """The gain of 10% more training, with its 95% confidence interval.

    A straight line over the logarithm of the step (least squares): learning curves are close to
    straight there. A positive gain is an increase.
    """

    gain: float
    low: float
    high: float

    def over(self, whole: float) -> Trend:
        """The same as a share of a positive number."""
        return Trend(self.gain / whole, self.low / whole, self.high / whole)


def trend(steps: Sequence[float], values: Sequence[float] | Floats) -> Trend | None:
    """The change of the value by 10% more steps; None below three points or without two different
    steps."""
    if len(steps) < 3 or len(set(steps)) < 2:
        return None
    at = np.log(np.asarray(steps, dtype=float))
    line, covariance = np.polyfit(at, np.asarray(values, dtype=float), 1, cov=True)
    doubt = student_95(len(steps) - 2) * math.sqrt(covariance[0, 0])
    scale = math.log1p(STRETCH)
    return Trend(*(float(slope * scale) for slope in (line[0], line[0] - doubt, line[0] + doubt)))


def later_half(count: int) -> slice:
    """The places of the later half of so many points, at least four."""
    return slice(-max(FEWEST, count // 2), None)


def recent_trend(steps: Sequence[float], values: Sequence[float] | Floats) -> Trend | None:
    """The trend of the later half of the points; None below four points."""
    later = later_half(len(steps))
    return trend(steps[later], values[later]) if len(steps) >= FEWEST else None


def student_95(freedom: int) -> float:
    """The two-sided 95% quantile of Student's t."""
    if freedom <= len(_STUDENT_95):
        return _STUDENT_95[freedom - 1]
    return 1.96 + 2.4 / freedom  # within 0.3% from 21 on


def largest_rise_by_chance(losses: Floats) -> float:
    """How far the mean of the last two losses is above the lowest in about 1 of 100 runs, if
    nothing changes; in 1 of 20 at a noise of `MOST_NOISE` (simulated, 4 to 80 normal losses).

    The noise is that of the second differences, which a smooth curve hardly has (Gasser, Sroka and
    Jennen-Steinmetz 1986), larger the fewer they are, and `MOST_NOISE` at most.
    """
    bends = np.diff(losses, 2)
    noise = math.sqrt(np.mean(bends**2) / 6) * (1 + 4 / len(bends))
    return (1.2 + math.log(len(losses))) * min(noise, MOST_NOISE * float(losses.min()))


def chance_of_rise(since_best: Floats) -> float:
    """The chance that the losses after the lowest rise like this or more, if nothing changes.

    By chance they come in any order, so this is the share of orders in which no more pairs fall
    (Mann 1945, by the normal distribution). The lowest is not one of them: its choice does no harm.
    """
    count = len(since_best)
    if count < 2:
        return 1.0
    falls = sum(int((since_best[place:] < since_best[place]).sum()) for place in range(count))
    mean, variance = count * (count - 1) / 4, count * (count - 1) * (2 * count + 5) / 72
    return statistics.NormalDist(mean, math.sqrt(variance)).cdf(falls + 0.5)


def far_above(lowest: Floats | float, losses: Sequence[float] | Floats) -> Floats:
    """The limits above which training losses are far above lower ones, and not by chance: by five
    standard deviations, estimated from the distances of neighbours in `losses`."""
    deviation = 1.048 * np.median(np.abs(np.diff(losses)))
    limits: Floats = np.maximum(FAR_ABOVE * np.asarray(lowest), lowest + 5 * deviation)
    return limits


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
    residuals = (part - ratio * of for part, of in zip(parts, wholes, strict=True))
    variance = sum(residual**2 for residual in residuals) / (count - 1)
    doubt = student_95(count - 1) * math.sqrt(variance / count) / (whole / count)
    return ratio, ratio - doubt, ratio + doubt
