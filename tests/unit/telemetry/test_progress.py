"""Where a run stands is what its events add up to."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from dragoman.telemetry.console import ConsoleSink, event_lines, progress_line
from dragoman.telemetry.events import ClockRead, EndForecast, RankPaused
from dragoman.telemetry.progress import Best, Progress
from example_events import RUN_FINISHED, RUN_STARTED, TRAIN_INTERVAL, VALIDATED, event

RATES = {"tokens_per_s", "data_wait_share"}


def _unknown(progress: Progress) -> set[str]:
    names = ("max_steps", "left_s", "finish_time", *RATES)
    return {name for name in names if getattr(progress, name) is None}


def _after(*, intervals: int, pause_s: float = 0.0, interval_s: float = 40.0) -> Progress:
    """Intervals of 100 steps with a pause after each but the last."""
    progress = Progress()
    now = 1000.0
    progress.see(event(RUN_STARTED, time=now))
    for number in range(1, intervals + 1):
        now += interval_s + pause_s * (number > 1)
        progress.see(event(TRAIN_INTERVAL, step=100 * number, time=now, interval_s=interval_s))
    return progress


def test_nothing_is_claimed_before_anything_happened() -> None:
    assert _unknown(Progress()) == {"max_steps", "left_s", "finish_time", *RATES}
    progress = Progress()
    progress.see(event(RUN_STARTED))
    assert progress.max_steps == 8000
    assert _unknown(progress) == {"left_s", "finish_time", *RATES}


@pytest.mark.parametrize(("reason", "last"), [("max_steps", 98), ("signal", 100)])
def test_a_finished_budget_has_made_all_of_its_steps(reason: str, last: int) -> None:
    progress = Progress()
    progress.see(event(RUN_STARTED))
    progress.see(event(TRAIN_INTERVAL, step=98))
    progress.see(event(ClockRead(progress=0.98, left_s=9.0)))
    progress.see(event(RUN_FINISHED, reason=reason))
    assert (progress.step, progress.max_steps) == (98, last)


def test_the_best_before_a_resumption_counts() -> None:
    """A terminal that resumes a run sees none of its earlier events."""
    best: dict[str, Any] = {
        "best_dev_loss": 2.0,
        "best_dev_loss_step": 200,
        "best_bleu": 9.5,
        "best_bleu_step": 100,
    }
    progress = Progress()
    progress.see(event(RUN_STARTED, resumed_from_step=300, **best))
    progress.see(event(VALIDATED, step=400, dev_loss=2.5, bleu=0.0))
    assert (progress.dev_loss, progress.bleu) == (Best(2.0, 200), Best(9.5, 100))
    progress.see(event(VALIDATED, step=500, dev_loss=1.5, bleu=9.6))
    assert (progress.dev_loss, progress.bleu) == (Best(1.5, 500), Best(9.6, 500))
    progress.see(event(RUN_STARTED, resumed_from_step=400, **best))  # from an earlier checkpoint
    assert (progress.dev_loss, progress.bleu) == (Best(2.0, 200), Best(9.5, 100))


@pytest.mark.parametrize("set_by_s", [-86_400.0, 86_400.0])
def test_a_clock_that_was_set_does_not_change_the_time_left(set_by_s: float) -> None:
    steady, jumped = _after(intervals=3), _after(intervals=3)
    last = event(TRAIN_INTERVAL, step=400, time=1160.0, interval_s=40.0)
    steady.see(last)
    jumped.see(replace(last, time=last.time + set_by_s))
    assert jumped.left_s == pytest.approx(steady.left_s)


def test_a_bleu_of_zero_is_never_the_best() -> None:
    progress = Progress()
    progress.see(event(VALIDATED, step=100, bleu=0.0))
    assert progress.bleu is None


def test_rates_are_those_of_the_last_interval() -> None:
    progress = _after(intervals=3)
    assert progress.step == 300
    assert progress.tokens_per_s == 410_000 / 40
    assert progress.data_wait_share == pytest.approx(0.002)


def test_an_interval_of_no_time_has_no_rates() -> None:
    progress = _after(intervals=1, interval_s=0.0)
    assert _unknown(progress) == RATES


def test_the_time_left_is_the_remaining_steps_at_the_speed_so_far() -> None:
    progress = _after(intervals=10)
    assert progress.left_s == pytest.approx(7000 * 0.4)
    assert progress.finish_time == pytest.approx(1000 + 10 * 40 + 7000 * 0.4)


def test_the_time_left_counts_validations_on_the_way() -> None:
    progress = _after(intervals=10, pause_s=20.0)
    assert progress.left_s == pytest.approx(7000 * (0.4 + 9 * 20 / 1000))


@pytest.mark.parametrize("during", ["sync", "forward", "validating"])
def test_the_time_left_does_not_count_a_pause(during: str) -> None:
    progress, outside_s = Progress(), 300.0 * (during == "validating")
    progress.see(event(RUN_STARTED, time=1000.0))
    progress.see(event(TRAIN_INTERVAL, step=100, time=1040.0, interval_s=40.0))
    before_s = progress.left_s
    pause = RankPaused(paused_rank=1, seconds_s=300.0, during=during, own=True)
    progress.see(event(pause, step=120, time=1350.0))
    last = event(TRAIN_INTERVAL, step=200, time=1380.0, interval_s=340.0 - outside_s)
    progress.see(last)
    assert before_s is not None
    assert progress.left_s == pytest.approx(before_s - 40.0)


def test_a_long_preparation_before_the_first_step_does_not_count() -> None:
    progress = Progress()
    progress.see(event(RUN_STARTED, time=0))
    progress.see(event(VALIDATED, step=0, time=5000))
    progress.see(event(TRAIN_INTERVAL, step=100, time=5040))
    assert progress.left_s == pytest.approx(7900 * 0.4)


def test_old_speed_is_forgotten() -> None:
    progress = _after(intervals=20, interval_s=400.0)
    now = 1000.0 + 20 * 400
    for number in range(21, 41):
        now += 40
        progress.see(event(TRAIN_INTERVAL, step=100 * number, time=now))
    assert progress.left_s == pytest.approx(4000 * 0.4)


def test_a_resumed_run_counts_from_where_it_stood() -> None:
    progress = _after(intervals=5)
    progress.see(event(RUN_STARTED, resumed_from_step=400, time=90_000))
    assert progress.step == 400
    assert progress.left_s is None
    progress.see(event(TRAIN_INTERVAL, step=500, time=90_040))
    assert progress.left_s == pytest.approx(7500 * 0.4)


def test_the_best_values_and_their_steps() -> None:
    progress = Progress()
    for step, loss, bleu in ((0, 9.4, 0.0), (100, 3.0, 20.0), (200, 3.1, 21.0), (300, None, None)):
        progress.see(event(VALIDATED, step=step, dev_loss=loss or float("nan"), bleu=bleu))
    assert progress.dev_loss == Best(3.0, 100)
    assert progress.bleu == Best(21.0, 200)


def test_a_budget_is_shown_by_its_clock() -> None:
    progress = _after(intervals=3)
    assert (progress.is_by_clock, progress.share) == (False, 300 / 8000)
    read = ClockRead(progress=0.25, left_s=1540.0)
    progress.see(event(read, step=300, time=1120.0))
    assert progress.is_by_clock
    assert progress.share == 0.25
    assert progress.max_steps == 1200
    assert progress.left_s == pytest.approx(1540.0)  # however fast the last steps were
    assert "25.0% of the time" in progress_line(progress).plain
    assert event_lines(event(read, step=300), progress, width=100) == [], "no news to a reader"
    found = EndForecast(expected=2.0, low=1.8, high=2.3)
    (line,) = event_lines(event(found, step=300), progress, width=100)
    assert all(figure in line.plain for figure in ("2.00", "1.80", "2.30"))


def test_a_forecast_of_the_end_is_told_with_its_validation() -> None:
    file = io.StringIO()
    sink = ConsoleSink(Console(file=file, width=100))
    forecast = EndForecast(expected=2.0, low=1.8, high=2.3)
    for moment in (100.0, 101.0, 120.0):
        sink(event(VALIDATED, step=int(moment), time=moment))
        sink(event(forecast, step=int(moment), time=moment))
    assert file.getvalue().count("forecast of the end") == 2, "not with one that is left out"
