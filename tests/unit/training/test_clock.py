"""The clock of a budget, its readings on all ranks, and the forecast of the end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from dragoman.base.errors import CheckpointError
from dragoman.training.clock import (
    AIM,
    BUDGET_FILE,
    Budget,
    Reading,
    TrainingClock,
    forecast_end,
    passed,
    read_budget,
)

CURVES = Path(__file__).resolve().parents[3] / "benchmarks" / "curves.jsonl"
STARTED = 1000.0


@dataclass
class Moment:
    """A clock that a test sets."""

    now: float = STARTED

    def __call__(self) -> float:
        return self.now


def budget(seconds_s: float = 100.0, **changes: object) -> Budget:
    values = {
        "asked": "",
        "started": STARTED,
        "seconds_s": seconds_s,
        "validation_s": 2.0,
        "search_s": 1.0,
        "save_s": 0.5,
        "after_s": 3.0,
        "after_searches": 4.0,
    }
    return Budget.model_validate(values | changes)


def test_what_comes_after_the_training_is_measured_as_it_happens() -> None:
    moment = Moment(STARTED + 10)
    clock = TrainingClock(budget(), now=moment)
    ends_s = AIM * 100 - 3 - 4 - 2 - 0.5
    assert clock.left_s == pytest.approx(ends_s - 10)
    assert clock.progress(0) == 0.0
    moment.now = STARTED + 30
    assert clock.progress(5) == pytest.approx(20 / (ends_s - 10))
    clock.search_s, clock.validation_s, clock.save_s = 3.0, 5.0, 1.5
    slower_s = AIM * 100 - 3 - 12 - 5 - 1.5
    assert clock.left_s == pytest.approx(slower_s - 30)
    assert clock.progress(5) == pytest.approx(20 / (slower_s - 10))
    clock.search_s = 0.0
    assert clock.progress(5) == pytest.approx(20 / (slower_s - 10)), "it never goes back"
    moment.now = STARTED + 500
    assert clock.progress(6) == 1.0
    assert clock.left_s == 0.0


def test_a_kill_does_not_stop_the_clock() -> None:
    moment = Moment(STARTED + 20)
    first = TrainingClock(budget(), now=moment)
    moment.now = STARTED + 60
    resumed = TrainingClock(budget(), first.began_s, now=moment)
    assert resumed.progress(0) == pytest.approx(40 / (AIM * 100 - 9.5 - 20))


def test_a_limit_of_steps_counts_as_the_clock_does() -> None:
    moment = Moment(STARTED + 1)
    clock = TrainingClock(budget(most_steps=200), now=moment)
    assert clock.progress(50) == 0.25
    moment.now = STARTED + 60
    assert clock.progress(60) > 0.5
    assert clock.progress(200) == 1.0


def test_a_budget_without_time_for_training_is_over_at_once() -> None:
    assert TrainingClock(budget(8.0), now=Moment()).progress(0) == 1.0


def test_ranks_that_meet_rarely_go_on_at_the_mean_speed() -> None:
    reading = Reading(0, 0.0, expected_steps=200)
    assert reading.at(10) == pytest.approx(0.05)
    read = reading.read(20, 0.2)
    assert read.at(30) == pytest.approx(0.3)
    assert read.read(30, 0.1).progress == 0.2
    assert not read.is_over(before=0)
    assert Reading(96, 0.96, 200).is_over(before=86)
    assert not Reading(96, 0.96, 200).is_over(before=95)


def test_even_shares_of_the_time_have_passed() -> None:
    assert not passed(5, 0.0, 0.19)
    assert passed(5, 0.19, 0.2)
    assert passed(5, 0.0, 0.9)


def test_the_forecast_holds_the_end_of_the_recorded_curves() -> None:
    """In nine of ten, from a third of the time on; and it becomes narrower."""
    held: list[bool] = []
    widths: dict[bool, list[float]] = {False: [], True: []}
    for line in CURVES.read_text().splitlines():
        curve = json.loads(line)
        points = [(tokens, loss) for tokens, loss, _ in curve["points"] if loss is not None]
        if len(points) < 5:
            continue
        end, last = points[-1]
        seen = [(tokens / end, loss) for tokens, loss in points]
        for count in range(2, len(seen)):
            found = forecast_end(seen[:count], untrained_loss=curve["untrained_loss"])
            if seen[count - 1][0] < 1 / 3:
                assert found is None
                continue
            assert found is not None
            held.append(found.low <= last <= found.high)
            widths[seen[count - 1][0] > 0.7].append((found.high - found.low) / last)
    assert len(held) > 60
    assert sum(held) / len(held) > 0.9
    assert max(widths[True]) < 0.2
    assert sum(widths[True]) / len(widths[True]) < sum(widths[False]) / len(widths[False]) / 2


def test_a_loss_that_no_longer_falls_has_no_forecast() -> None:
    assert forecast_end([(0.2, 3.0), (0.4, 3.1)], untrained_loss=8.0) is None
    assert forecast_end([(0.4, 3.0)], untrained_loss=8.0) is None


def test_a_price_that_changes_counts_from_then_on() -> None:
    first = budget(price_per_hour=3.0, currency="USD")
    then = first.at_price(5.0, "USD", now=STARTED + 3600)
    assert then.cost(until=STARTED + 7200) == pytest.approx(8.0)
    assert budget().cost(until=STARTED + 7200) is None


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    assert read_budget(tmp_path) is None
    budget().save(tmp_path)
    assert read_budget(tmp_path) == budget()
    (tmp_path / BUDGET_FILE).write_text('{"seconds_s": "soon"}')
    with pytest.raises(CheckpointError, match="does not say how much time the run has"):
        read_budget(tmp_path)
