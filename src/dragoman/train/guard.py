"""Says when steps take longer than they should: why, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dragoman import units
from dragoman.distributed.strategy import GradientSync
from dragoman.telemetry.events import Alert
from dragoman.telemetry.network import Counters, collective_interface

WINDOW_STEPS: Final = 50
TOLERATED: Final = 1.5
"""Times the expected; what is slower than this has a cause that is worth looking for."""
_WARM_STEPS: Final = 5
_WHERE_IT_GOES: Final = 0.3
"""Of the steps' time: a wait that takes more than this is the cause."""


@dataclass
class StepGuard:
    """Looks at the last fifty steps of this rank.

    expected_s: of a step by the plan; where there is none, what the first fifty steps took.

    What counts is the mean of all steps but the slowest: strategies that wait now and then would
    pass under a median, and one odd step would not under a plain mean.
    """

    sync: GradientSync
    max_steps: int
    expected_s: float | None = None
    _by: str = field(default="planned", init=False)
    _times_s: list[float] = field(default_factory=list, init=False)
    _steps: int = field(default=-_WARM_STEPS, init=False)
    _data_wait_s: float = field(default=0.0, init=False)
    _exposed_s: float = field(default=0.0, init=False)
    _told_s: float | None = field(default=None, init=False)
    _carrier_changes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._carrier_changes = _carrier_changes()

    def see(self, *, step: int, steps: int, seconds_s: float, data_wait_s: float) -> Alert | None:
        """Take in an update of so many steps that ends at `step`; an alert where one is due."""
        self._steps += steps
        if self._steps <= 0:
            self._exposed_s = self.sync.exposed_s
            return None
        self._times_s.append(seconds_s)
        self._data_wait_s += data_wait_s
        if self._steps < WINDOW_STEPS or len(self._times_s) < 2:
            return None
        steps_in_all_but_one = self._steps * (len(self._times_s) - 1) / len(self._times_s)
        step_s = (sum(self._times_s) - max(self._times_s)) / steps_in_all_but_one
        alert = self._judge(step_s, left=self.max_steps - step)
        self._restart()
        return alert

    def _judge(self, step_s: float, *, left: int) -> Alert | None:
        if self.expected_s is None:
            self.expected_s, self._by = step_s, "usual"
        if step_s <= TOLERATED * self.expected_s:
            back, self._told_s = self._told_s is not None, None
            return self._recovered(step_s) if back else None
        if self._told_s is not None and step_s <= TOLERATED * self._told_s:
            return None
        self._told_s = step_s
        return self._slow(step_s, self.expected_s, left)

    def _slow(self, step_s: float, expected_s: float, left: int) -> Alert:
        cause, remedy = self._why()
        was, now = (units.DURATION.text(round(left * s)) for s in (expected_s, step_s))
        return Alert(
            severity="warning",
            cause=f"the last {self._steps} steps took {units.STEP_TIME.text(step_s)}, "
            f"{units.STEP_TIME.text(expected_s)} was {self._by}: {cause}. The rest will take "
            f"{now} on every machine, not {was}",
            remedy=remedy,
        )

    def _recovered(self, step_s: float) -> Alert:
        cause = f"steps take {units.STEP_TIME.text(step_s)} again"
        return Alert(severity="info", cause=cause, remedy="nothing is to be done")

    def _why(self) -> tuple[str, str]:
        total_s = sum(self._times_s)
        waited = (self.sync.exposed_s - self._exposed_s) / total_s
        starved = self._data_wait_s / total_s
        if waited > max(_WHERE_IT_GOES, starved):
            cause = f"{units.SHARE.text(waited)} of it waits for other ranks and the network"
            if interface := collective_interface():
                changes = _carrier_changes() - self._carrier_changes
                if changes:
                    cause += f"; the cable of {interface} was out"
            return cause, "run dragoman doctor: it measures every link and every host"
        if starved > _WHERE_IT_GOES:
            cause = f"{units.SHARE.text(starved)} of it waits for data"
            return cause, "look at the disk and at what else uses the processor"
        return "it is the compute itself", "look at what else uses the device, and at its clock"

    def _restart(self) -> None:
        self._times_s.clear()
        self._steps = 0
        self._data_wait_s = 0.0
        self._exposed_s = self.sync.exposed_s


def _carrier_changes() -> int:
    interface = collective_interface()
    counters = None if interface is None else Counters.read(interface)
    return 0 if counters is None else counters.carrier_changes
