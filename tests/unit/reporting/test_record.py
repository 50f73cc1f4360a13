"""The intervals of a log as arrays [interval, rank]."""

from __future__ import annotations

import numpy as np

from dragoman.reporting.reading import is_kept
from dragoman.reporting.record import IntervalRows, Intervals, summed, total_over
from dragoman.telemetry.events import TrainInterval, as_values

NAN = np.nan


def intervals_of(*payloads: TrainInterval) -> Intervals:
    """Intervals of ten steps each."""
    rows = IntervalRows()
    for number, payload in enumerate(payloads, 1):
        rows.add(as_values(payload), step=10 * number, time=number, life=0)
    return rows.intervals()


def test_a_rank_that_comes_later_has_no_number_before() -> None:
    one = TrainInterval(steps=10, train_loss=2.0, interval_s=(1.0,), sync_bytes=(7,))
    two = TrainInterval(steps=10, train_loss=None, interval_s=(1.5, None))
    intervals = intervals_of(one, two, one)
    expected = [[1.0, NAN], [1.5, NAN], [1.0, NAN]]
    assert np.array_equal(intervals["interval_s"], expected, equal_nan=True)
    assert intervals["ranks"].tolist() == [1, 2, 1]
    assert intervals.points("train_loss") == [(10, 2.0), (30, 2.0)]
    assert intervals.points("sync_bytes", rank=1) == []
    assert (intervals.last("interval_s"), intervals.last("epoch")) == (1.0, None)


def test_intervals_are_cut_to_some_places_and_ranks() -> None:
    both = TrainInterval(steps=10, train_loss=2.0, interval_s=(1.0, 3.0))
    intervals = intervals_of(both, both, both)
    warm = intervals.where(intervals["warms_up"] == 0)
    assert warm["step"].tolist() == [20, 30]
    assert warm.of("interval_s", 1).tolist() == [3.0, 3.0]
    first = warm.of_ranks(1)
    assert first["interval_s"].tolist() == [[1.0], [1.0]]
    assert first["ranks"].tolist() == [1, 1]


def test_a_run_without_intervals_has_arrays_as_well() -> None:
    empty = intervals_of()
    assert len(empty) == 0
    assert empty["interval_s"].shape == (0, 1)
    assert empty.points("interval_s") == []
    assert empty.last("train_loss") is None
    assert total_over(empty.of("interval_s"), empty["steps"]) is None


def test_only_what_is_known_on_both_sides_counts() -> None:
    assert total_over(np.array([1.0, NAN, 3.0]), np.array([2.0, 2.0, NAN])) == 0.5
    assert total_over(np.array([1.0]), np.array([0.0])) is None
    assert summed(np.array([1.0, NAN])) == summed([1.0, None]) == 1.0
    assert summed([None]) is None


def test_steps_that_a_later_life_made_again_do_not_count() -> None:
    """Life 1 went on from step 20, life 2 from step 10."""
    step = np.array([10.0, 20.0, 30.0, 30.0, 40.0, 20.0])
    life = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 2.0])
    kept = is_kept(step, life, [-1, 20, 10])
    assert kept.tolist() == [True, False, False, False, False, True]
    assert is_kept(step[:2], life[:2], [-1]).all()
