"""The learning rates that the reference run wrote in its own log and answers."""

from __future__ import annotations

import pytest

from dragoman.training.schedule import ScheduleConfig, learning_rate


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 1.24e-7), (8_000, 9.882e-4), (50_000, 3.953e-4), (300_000, 1.614e-4)],
)
def test_noam_gives_the_numbers_of_the_reference_run(step: int, expected: float) -> None:
    config = ScheduleConfig(kind="noam", warmup_steps=8_000, noam_scale=2.0)
    rate = learning_rate(step, config, d_model=512, max_steps=300_000)
    assert rate == pytest.approx(expected, rel=5e-4 if step else 5e-3)


def test_noam_peaks_where_the_warmup_ends() -> None:
    config = ScheduleConfig(kind="noam", warmup_steps=8_000)
    rates = [learning_rate(step, config, d_model=512, max_steps=1) for step in range(20_000)]
    assert max(range(20_000), key=rates.__getitem__) == 7_999
    assert max(rates) == pytest.approx(2.0 * 512**-0.5 * 8_000**-0.5)
