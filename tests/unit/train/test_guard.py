"""The guard: what it lets pass, when it speaks and what it says."""

from __future__ import annotations

from torch import nn

from dragoman.distributed.strategy import NoSync
from dragoman.telemetry.events import Alert
from dragoman.train.guard import WINDOW_STEPS, StepGuard


class WaitingSync(NoSync):
    """A strategy that has waited as long as it is told."""

    waited_s = 0.0

    @property
    def exposed_s(self) -> float:
        return self.waited_s


def watched(
    guard: StepGuard, seconds_s: float, *, windows: int = 1, data: float = 0.0
) -> list[Alert]:
    """The alerts of so many windows of steps that each take this long, one odd step among them."""
    alerts = []
    for number in range(windows * WINDOW_STEPS):
        odd = 50 * seconds_s if number % WINDOW_STEPS == 7 else seconds_s
        alert = guard.see(step=100, steps=1, seconds_s=odd, data_wait_s=data * odd)
        alerts += [] if alert is None else [alert]
    return alerts


def warm(guard: StepGuard) -> None:
    for _ in range(5):
        guard.see(step=0, steps=1, seconds_s=100.0, data_wait_s=0.0)


def test_it_speaks_once_when_steps_are_slower_than_planned() -> None:
    sync = WaitingSync(nn.Linear(1, 1))
    guard = StepGuard(sync, max_steps=3700, expected_s=0.5)
    warm(guard)
    assert watched(guard, 0.7, windows=3) == []
    sync.waited_s += 90.0
    (alert,) = watched(guard, 2.0, windows=3)
    assert alert.severity == "warning"
    assert "was planned" in alert.cause
    assert "waits for other ranks and the network" in alert.cause
    assert "2 h" in alert.cause, "3,600 steps of 2 s are left"
    assert "doctor" in alert.remedy
    (worse,) = watched(guard, 4.0)
    assert worse.severity == "warning"
    (again,) = watched(guard, 0.5, windows=2)
    assert again.severity == "info"


def test_without_a_plan_the_first_steps_tell_what_is_usual() -> None:
    guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=1000)
    warm(guard)
    assert watched(guard, 1.0, windows=2) == []
    (starved,) = watched(guard, 3.0, data=0.8)
    assert "usual" in starved.cause
    assert "waits for data" in starved.cause
    (slow,) = watched(guard, 9.0)
    assert "compute" in slow.cause


def test_an_update_of_several_steps_counts_as_so_many() -> None:
    guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=1000, expected_s=1.0)
    alerts = [
        guard.see(step=step, steps=4, seconds_s=4.4, data_wait_s=0.0) for step in range(4, 400, 4)
    ]
    assert alerts == [None] * len(alerts)
