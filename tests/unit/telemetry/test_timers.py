"""Phases are charged with their own time, on the host and on a GPU."""

from __future__ import annotations

import time
from dataclasses import asdict

import pytest
import torch

from dragoman.telemetry.timers import PhaseTimer

CPU = torch.device("cpu")


def test_each_phase_is_charged_with_the_time_of_its_own_work() -> None:
    timer = PhaseTimer(CPU)
    for _ in range(3):
        with timer.phase("data_wait"):
            time.sleep(0.001)
        for _ in range(2):
            with timer.phase("forward"):
                time.sleep(0.004)
            with timer.phase("backward"):
                pass
        timer.step_done()
    times = timer.take()
    assert times.steps == 3
    assert times.forward_s >= 6 * 0.004
    assert times.data_wait_s >= 3 * 0.001
    assert 0 < times.backward_s < times.forward_s
    assert times.sync_s == times.optimizer_s == 0
    phases_s = times.forward_s + times.backward_s + times.data_wait_s
    assert phases_s <= times.interval_s
    assert times.step_median_s <= times.step_p95_s <= times.interval_s


def test_one_slow_step_is_not_the_median() -> None:
    timer = PhaseTimer(CPU)
    for number in range(5):
        with timer.phase("forward"):
            time.sleep(0.3 if number == 2 else 0.001)
        with timer.phase("backward"):
            time.sleep(0.001)
        with timer.phase("sync"):
            time.sleep(0.01)
        timer.step_done()
    times = timer.take()
    assert 0.012 <= times.step_median_s < 0.15 < times.forward_s


def test_time_between_steps_belongs_to_no_step() -> None:
    timer = PhaseTimer(CPU)
    with timer.phase("forward"):
        pass
    timer.step_done()
    started = time.perf_counter()
    time.sleep(0.02)
    pause = time.perf_counter() - started
    with timer.phase("forward"):
        pass
    timer.step_done()
    assert timer.take().interval_s < pause


def test_taking_the_times_starts_afresh() -> None:
    timer = PhaseTimer(CPU)
    with timer.phase("optimizer"):
        pass
    timer.step_done()
    assert timer.take().steps == 1
    assert set(asdict(timer.take()).values()) == {0}


def test_a_phase_that_fails_is_closed() -> None:
    timer = PhaseTimer(CPU)
    with pytest.raises(ZeroDivisionError), timer.phase("forward"):
        _ = 1 / 0
    timer.step_done()
    assert timer.take().steps == 1


def test_a_step_without_a_phase_is_our_own_bug() -> None:
    with pytest.raises(AssertionError):
        PhaseTimer(CPU).step_done()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_charged_for_work_that_was_only_enqueued() -> None:
    device = torch.device("cuda")
    timer = PhaseTimer(device)
    matrix = torch.randn(4096, 4096, device=device)
    for _ in range(2):
        torch.cuda.synchronize()
        started = time.perf_counter()
        with timer.phase("forward"):
            for _ in range(50):
                matrix = torch.nn.functional.normalize(matrix @ matrix)
        with timer.phase("optimizer"):
            enqueued_s = time.perf_counter() - started
        timer.step_done()
        times = timer.take()
        whole_s = time.perf_counter() - started
    assert enqueued_s < times.forward_s <= whole_s
    assert times.optimizer_s < times.forward_s / 10
