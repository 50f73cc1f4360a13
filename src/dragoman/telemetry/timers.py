"""The phases of a step, timed where they happen.

On a CPU a phase lasts from its first to its last instruction on the host. On a GPU it lasts from
the moment the device's queue reaches its beginning to the moment it reaches its end. So work that
the host only enqueues is charged to the phase that enqueued it, and waiting for data costs what the
device waited, not the host.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Phase = Literal["data_wait", "forward", "backward", "sync", "optimizer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTimes:
    """How the time of some steps of one rank divides into phases; fields as in TrainInterval."""

    steps: int
    interval_s: float
    step_median_s: float
    step_p95_s: float
    data_wait_s: float
    forward_s: float
    backward_s: float
    sync_s: float
    optimizer_s: float


class PhaseTimer:
    """Times phases and steps; a phase costs about a microsecond on a CPU.

    A step lasts from the first phase after the previous `step_done` to its own `step_done`.

        with timer.phase("forward"):
            ...
        timer.step_done()
        times = timer.take()
    """

    def __init__(self, device: torch.device) -> None:
        self._clock: _PhaseClock = _CudaClock() if device.type == "cuda" else _HostClock()
        self._phases = {name: _TimedPhase(self, name, self._clock) for name in get_args(Phase)}
        self.running: Phase | None = None
        """The phase that the host is in; None between phases."""
        self._moments: list[int] = []
        self._started: int | None = None

    def phase(self, name: Phase) -> _TimedPhase:
        """A context that charges its time to a phase; phases do not nest."""
        return self._phases[name]

    def step_done(self) -> None:
        """A step is complete; at least one phase ran since the last one."""
        assert self._started is not None, "no phase was timed in this step"
        self._moments += (self._started, self._clock.mark())
        self._started = None

    def take(self) -> PhaseTimes:
        """Times of the steps since the last call; starts again from zero.

        On a GPU this waits until the device has finished these steps.
        """
        steps_s = self._clock.seconds(self._moments)
        phases_s = {
            f"{name}_s": float(self._clock.seconds(phase.moments).sum())
            for name, phase in self._phases.items()
        }
        times = PhaseTimes(
            steps=len(steps_s),
            interval_s=float(steps_s.sum()),
            step_median_s=float(np.median(steps_s)) if len(steps_s) else 0.0,
            step_p95_s=float(np.quantile(steps_s, 0.95)) if len(steps_s) else 0.0,
            **phases_s,
        )
        self._moments.clear()
        for phase in self._phases.values():
            phase.moments.clear()
        self._clock.forget()
        return times

    def begun(self, moment: int) -> None:
        """Called by each phase: a step begins with its first phase."""
        if self._started is None:
            self._started = moment


class _TimedPhase:
    """Keeps the moments at which one phase began and ended, alternately."""

    def __init__(self, timer: PhaseTimer, name: Phase, clock: _PhaseClock) -> None:
        self._timer = timer
        self._name = name
        self._mark = clock.mark
        self.moments: list[int] = []

    def __enter__(self) -> None:
        moment = self._mark()
        self._timer.running = self._name
        self.moments.append(moment)
        self._timer.begun(moment)

    def __exit__(self, *_: object) -> None:
        self.moments.append(self._mark())
        self._timer.running = None


class _PhaseClock(Protocol):
    def mark(self) -> int:
        """This moment, as a number that only `seconds` understands."""

    def seconds(self, moments: list[int]) -> NDArray[np.float64]:
        """The time between moments 0 and 1, 2 and 3 and so on."""

    def forget(self) -> None:
        """The moments marked so far are no longer needed."""


class _HostClock:
    mark = staticmethod(time.perf_counter_ns)

    def seconds(self, moments: list[int]) -> NDArray[np.float64]:
        marks = np.array(moments, dtype=np.int64)
        return (marks[1::2] - marks[::2]).astype(np.float64) * 1e-9

    def forget(self) -> None:
        pass


class _CudaClock:
    """Moments are indices of CUDA events in a list; the events are reused."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []
        self._used = 0

    def mark(self) -> int:
        if self._used == len(self._events):
            import torch

            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._events.append(event)
        self._events[self._used].record()
        self._used += 1
        return self._used - 1

    def seconds(self, moments: list[int]) -> NDArray[np.float64]:
        if self._used:
            self._events[self._used - 1].synchronize()
        pairs = zip(moments[::2], moments[1::2], strict=True)
        return np.array(
            [self._events[a].elapsed_time(self._events[b]) * 1e-3 for a, b in pairs],
            dtype=np.float64,
        )

    def forget(self) -> None:
        self._used = 0
