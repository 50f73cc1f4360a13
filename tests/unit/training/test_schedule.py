"""Schedules against their formulas and against other people's code."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from dragoman.training.schedule import SCHEDULES, Schedule, ScheduleConfig, learning_rate

KINDS = sorted(SCHEDULES.ours)


def test_a_number_that_the_formula_of_a_schedule_lacks_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = Schedule(lambda step, config, run: config.added.get("power", 0.5), "{power:g}")
    monkeypatch.setitem(SCHEDULES, "own", own)
    assert ScheduleConfig(kind="own", added={"power": 0.5}).added == {"power": 0.5}
    with pytest.raises(ValueError, match=r"schedule.added.powr is in no formula"):
        ScheduleConfig(kind="own", added={"powr": 0.5})


def rates(config: ScheduleConfig, steps: int, *, max_steps: int = 100) -> list[float]:
    return [learning_rate(step, config, d_model=64, max_steps=max_steps) for step in range(steps)]


def their_rates(
    make: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler], steps: int
) -> list[float]:
    """The rates another implementation gives the same number of updates, with a peak of 0.5."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    schedule = make(optimizer)
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


def test_noam_is_the_published_formula() -> None:
    config = ScheduleConfig(kind="noam", warmup_steps=30, noam_scale=2.0)
    expected = [2.0 * 64**-0.5 * min((n + 1) * 30**-1.5, (n + 1) ** -0.5) for n in range(100)]
    assert rates(config, 100) == pytest.approx(expected, rel=1e-12)


def test_inverse_sqrt_is_fairseqs() -> None:
    """fairseq/optim/lr_scheduler/inverse_square_root_schedule.py, step_update, written out."""
    peak, warmup = 0.5, 40
    config = ScheduleConfig(kind="inverse_sqrt", peak_learning_rate=peak, warmup_steps=warmup)
    decay_factor = peak * warmup**0.5
    expected = [n * peak / warmup if n < warmup else decay_factor * n**-0.5 for n in range(1, 201)]
    assert rates(config, 200) == pytest.approx(expected, rel=1e-12)


def test_cosine_is_pytorchs() -> None:
    config = ScheduleConfig(
        kind="cosine", peak_learning_rate=0.5, warmup_steps=0, final_ratio=0.1, total_steps=100
    )
    theirs = their_rates(
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100, 0.05), 100
    )
    assert rates(config, 100) == pytest.approx(theirs, rel=1e-9)


def test_cosine_after_warmup_is_hugging_faces() -> None:
    config = ScheduleConfig(kind="cosine", peak_learning_rate=0.5, warmup_steps=20)
    theirs = their_rates(
        lambda optimizer: transformers.get_cosine_schedule_with_warmup(optimizer, 20, 100), 100
    )
    assert rates(config, 100)[20:] == pytest.approx(theirs[20:], rel=1e-9)


def test_linear_after_warmup_is_hugging_faces() -> None:
    config = ScheduleConfig(kind="linear", peak_learning_rate=0.5, warmup_steps=20)
    theirs = their_rates(
        lambda optimizer: transformers.get_linear_schedule_with_warmup(optimizer, 20, 100),  # type: ignore[no-untyped-call]
        100,
    )
    assert rates(config, 100)[20:] == pytest.approx(theirs[20:], rel=1e-9)


def test_wsd_warms_up_holds_and_decays_in_a_straight_line() -> None:
    config = ScheduleConfig(
        kind="wsd", peak_learning_rate=1.0, warmup_steps=10, decay_steps=20, final_ratio=0.5
    )
    curve = rates(config, 101)
    assert curve[:10] == pytest.approx([(n + 1) / 10 for n in range(10)])
    assert curve[10:80] == [1.0] * 70
    assert curve[80:101] == pytest.approx([1.0 - 0.5 * n / 20 for n in range(21)])


def test_wsd_decays_from_its_peak_if_fewer_than_decay_steps_are_left() -> None:
    config = ScheduleConfig(
        kind="wsd", peak_learning_rate=1.0, warmup_steps=10, decay_steps=200, final_ratio=0.5
    )
    assert rates(config, 101)[10:] == pytest.approx([1.0 - 0.5 * n / 90 for n in range(91)])


def test_wsd_without_a_decay_is_refused() -> None:
    with pytest.raises(ValueError, match="never decays without"):
        ScheduleConfig(kind="wsd")


def test_constant_stays_at_its_peak() -> None:
    config = ScheduleConfig(kind="constant", peak_learning_rate=0.5, warmup_steps=2)
    assert rates(config, 5) == [0.25, 0.5, 0.5, 0.5, 0.5]


def test_the_end_is_the_configs_or_else_the_runs() -> None:
    own = ScheduleConfig(kind="linear", warmup_steps=0, total_steps=50)
    assert learning_rate(50, own, d_model=64, max_steps=100) == 0.0
    runs = ScheduleConfig(kind="linear", warmup_steps=0)
    assert learning_rate(50, runs, d_model=64, max_steps=100) == pytest.approx(5e-4)


@given(
    kind=st.sampled_from(KINDS),
    warmup=st.integers(0, 200),
    decay=st.integers(1, 200),
    total=st.integers(1, 200),
    step=st.integers(0, 1000),
)
def test_rates_are_positive_and_never_above_the_peak(
    kind: str, warmup: int, decay: int, total: int, step: int
) -> None:
    config = ScheduleConfig(
        kind=kind, warmup_steps=warmup, decay_steps=decay, total_steps=total, final_ratio=0.01
    )
    rate = learning_rate(step, config, d_model=64, max_steps=total)
    peak = 2.0 * 64**-0.5 if kind == "noam" else config.peak_learning_rate
    assert math.isfinite(rate)
    assert 0 < rate <= peak * (1 + 1e-12)
