"""Slopes and intervals against numpy and published quantiles; the curve against its own points."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dragoman.base import units
from dragoman.reporting import measures
from dragoman.reporting.checks import BY_KEY
from dragoman.reporting.reading import read_facts
from dragoman.reporting.trend import ratio_interval, student_95, trend
from recorded_runs import Recorded, read_ranks, write_ranks

TENTH, LN2 = math.log(1.1), math.log(2)
"""10% more steps, and twice as many, on the axis of a trend."""


def test_a_straight_line_over_the_logarithm_is_found_exactly() -> None:
    steps = [1000, 2000, 4000, 8000]
    found = trend(steps, [5 - 0.3 * math.log(step) for step in steps])
    assert found is not None
    assert found.gain == pytest.approx(-0.3 * math.log(1.1))
    assert found.low == pytest.approx(found.gain)
    assert found.high == pytest.approx(found.gain)


def test_slope_and_error_are_those_of_numpy() -> None:
    random = np.random.default_rng(1)
    steps = np.arange(1, 13) * 500.0
    values = 2 - 0.1 * np.log(steps) + random.normal(0, 0.02, 12)
    found = trend(steps.tolist(), values.tolist())
    (slope, _), covariance = np.polyfit(np.log(steps), values, 1, cov=True)
    assert found is not None
    assert found.gain == pytest.approx(slope * TENTH)
    assert found.high - found.gain == pytest.approx(
        2.228 * math.sqrt(covariance[0, 0]) * TENTH, rel=1e-6
    )


def test_the_interval_holds_the_truth_in_95_of_100_cases() -> None:
    random = np.random.default_rng(2)
    steps = [1000.0 * n for n in range(4, 12)]
    held = 0
    for _ in range(2000):
        values = [2 - 0.1 * math.log(step) + random.normal(0, 0.05) for step in steps]
        found = trend(steps, values)
        assert found is not None
        held += found.low <= -0.1 * TENTH <= found.high
    assert 0.94 < held / 2000 < 0.96


@pytest.mark.parametrize("steps", [[], [1000], [1000, 2000], [1000, 1000, 1000]])
def test_too_few_points_tell_nothing(steps: list[float]) -> None:
    assert trend(steps, [1.0] * len(steps)) is None


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (4, 2.776), (20, 2.086), (30, 2.042), (120, 1.980)]
)
def test_students_t(freedom: int, quantile: float) -> None:
    assert student_95(freedom) == pytest.approx(quantile, rel=2e-3)


def test_three_points_give_a_trend() -> None:
    found = trend([1000, 2000, 4000], [3, 2, 1])
    assert found is not None
    assert (found.gain, found.low) == pytest.approx((-TENTH / LN2,) * 2)


def test_points_at_two_steps_give_a_trend() -> None:
    found = trend([100, 100, 200], [1.0, 3.0, 4.0])
    assert found is not None
    assert found.gain == pytest.approx(2.0 * TENTH / LN2)  # from the mean of the first two


def test_the_interval_of_a_share() -> None:
    assert ratio_interval([], []) is None
    assert ratio_interval([1.0], [4.0]) == (0.25, -math.inf, math.inf)
    found = ratio_interval([1.0, 2.0, 3.0, 4.0], [10.0] * 4)
    assert found is not None
    assert found[0] == 0.25
    assert found[2] - found[0] == pytest.approx(3.182 * math.sqrt(5 / 3 / 4) / 10)


def test_a_long_interval_counts_as_much_as_it_lasts() -> None:
    found = ratio_interval([0.9, 0.9, 0.9, 3.0], [1.0, 1.0, 1.0, 30.0])
    assert found is not None
    assert found[0] == pytest.approx(5.7 / 33)
    assert found[1] < 0 < found[2] < 1


def test_the_share_of_the_bottleneck_is_that_of_the_evidence(tmp_path: Path) -> None:
    run = Recorded(steps=500, sync_s=(0.3, 0.3)).write(tmp_path / "run")
    ranks = read_ranks(run)
    for lines in ranks:
        slow = next(one for one in lines if one["kind"] == "train_interval" and one["step"] == 400)
        slow["forward_s"] += 500
        slow["interval_s"] += 500
    write_ranks(run, ranks)
    facts = read_facts(run)
    # 4 intervals of 70.1 s, one of them 500 s longer, with 30 s of waiting each
    share = 4 * 30 / (4 * 70.1 + 500)
    assert measures.share(facts.intervals, "wire_s") == pytest.approx(share)
    assert f"took {units.SHARE.text(share)} of a step" in BY_KEY["network"].of(facts).says
