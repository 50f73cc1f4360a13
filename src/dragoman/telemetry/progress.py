"""The progress of a run, from its events: the live screen and the log lines show it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dragoman.telemetry.events import (
    OUTSIDE_STEPS,
    SAMPLES,
    ClockRead,
    Event,
    RankPaused,
    RunFinished,
    RunStarted,
    TrainInterval,
    Validated,
    first,
)

_RECENT_INTERVALS = 20


@dataclass(frozen=True, slots=True)
class Best:
    """The best value of a metric so far, and its step."""

    value: float
    step: int


@dataclass(slots=True)
class Progress:
    """The state of one run: `see` must get each of its events in order.

    The time left is the number of remaining steps times the seconds per step: those of the last
    20 intervals, plus the mean time per step that this process spent outside steps so far
    (validation, checkpoints), by the clock of rank 0 that is never set. Both leave out pauses, in
    which a rank stood still.
    """

    run: Mapping[str, Any] = field(default_factory=dict)
    interval: Mapping[str, Any] = field(default_factory=dict)
    step: int = 0
    dev_loss: Best | None = None
    bleu: Best | None = None
    _recent: deque[tuple[int, float]] = field(
        default_factory=lambda: deque(maxlen=_RECENT_INTERVALS)
    )
    _began: float | None = None
    """When the first interval began; like `_mono_s` by the monotonic clock of rank 0."""
    _mono_s: float = 0.0
    _host: str = ""
    _now: float = 0.0
    _steps: int = 0
    _in_steps_s: float = 0.0
    _paused_s: float = 0.0
    """Pauses in steps since the last interval."""
    _paused_outside_s: float = 0.0
    _budget_ends: float | None = None
    """When the training of a run with a budget ends; None without one."""
    _clock: float | None = None
    """The share of its time that has gone."""

    def see(self, event: Event) -> None:
        """Read one event; samples of hosts tell nothing of it."""
        if event.kind in SAMPLES:
            return
        self._now = event.time
        if event.kind == RunStarted.kind:
            self._host = event.host
            self.run = event.payload
            self.step = event.payload["resumed_from_step"] or 0
            self.dev_loss = _best(event.payload, "best_dev_loss") or self.dev_loss
            self.bleu = _best(event.payload, "best_bleu") or self.bleu
            self._recent.clear()
            self._began, self._steps, self._in_steps_s = None, 0, 0.0
            self._budget_ends = self._clock = None
            self._paused_s = self._paused_outside_s = 0.0
        elif event.kind == ClockRead.kind:
            self.step = event.step or self.step
            self._clock = min(max(event.payload["progress"], 0.0), 1.0)
            self._budget_ends = event.time + event.payload["left_s"]
        elif event.kind == TrainInterval.kind:
            steps, seconds = event.payload["steps"], first(event.payload["interval_s"]) or 0.0
            self.interval = event.payload
            self.step = event.step or 0
            self._recent.append((steps, max(seconds - self._paused_s, 0.0) or seconds))
            self._paused_s = 0.0
            if self._began is None:
                self._began = event.mono_s - seconds
            self._steps += steps
            self._in_steps_s += seconds
        elif event.kind == RankPaused.kind and event.rank == 0:  # another may tell of it, too
            if event.payload.get("during") in OUTSIDE_STEPS:
                self._paused_outside_s += event.payload["seconds_s"]
            else:
                self._paused_s += event.payload["seconds_s"]
        elif event.kind == RunFinished.kind and self.is_by_clock:
            if event.payload["reason"] == "max_steps":  # its last reading was a little before
                self._clock = 1.0
        elif event.kind == Validated.kind:
            step, loss, bleu = event.step or 0, event.payload["dev_loss"], event.payload["bleu"]
            if loss is not None and (self.dev_loss is None or loss < self.dev_loss.value):
                self.dev_loss = Best(loss, step)
            if bleu and (self.bleu is None or bleu > self.bleu.value):  # 0 is never the best
                self.bleu = Best(bleu, step)
        if event.rank == 0 and event.host == self._host:  # others have a clock of their own
            self._mono_s = event.mono_s

    @property
    def max_steps(self) -> int | None:
        """The number of steps that the run should make; None before it has started. The clock of a
        budget ends a run, whatever its steps: then it is what the speed so far would give."""
        if self._clock:
            return max(round(self.step / self._clock), self.step)
        return self.run.get("max_steps")

    @property
    def is_by_clock(self) -> bool:
        """Whether a budget ends the run, not a number of steps."""
        return self._clock is not None

    @property
    def share(self) -> float:
        """How far the training is, from 0 to 1: by the clock of its budget, or by its steps."""
        if self._clock is not None:
            return self._clock
        return min(self.step / max(self.max_steps or 1, 1), 1.0)

    @property
    def tokens_per_s(self) -> float | None:
        """Source and target tokens per second in the last interval, without padding."""
        seconds_s = first(self.interval.get("interval_s"))
        source, target = (self.interval.get(f"{side}_tokens") for side in ("source", "target"))
        if not seconds_s or source is None or target is None:
            return None
        return float((source + target) / seconds_s)

    @property
    def data_wait_share(self) -> float | None:
        """The share of the last interval in which rank 0 waited for data."""
        seconds_s = first(self.interval.get("interval_s"))
        waited_s = first(self.interval.get("data_wait_s"))
        return waited_s / seconds_s if seconds_s and waited_s is not None else None

    @property
    def left_s(self) -> float | None:
        """Seconds until the last step; None before the first interval has ended."""
        if self._began is None or self.max_steps is None:
            return None
        if self._budget_ends is not None:
            return max(self._budget_ends - self._now, 0.0)
        steps = sum(steps for steps, _ in self._recent)
        step_s = sum(seconds for _, seconds in self._recent) / max(steps, 1)
        outside_s = self._mono_s - self._began - self._in_steps_s - self._paused_outside_s
        step_s += max(outside_s, 0.0) / max(self._steps, 1)
        return max(self.max_steps - self.step, 0) * step_s

    @property
    def finish_time(self) -> float | None:
        """When the last step will end, in seconds since 1970; None before the first interval."""
        left_s = self.left_s
        return None if left_s is None else self._now + left_s


def _best(values: Mapping[str, Any], name: str) -> Best | None:
    """The best value that a run had when it was resumed."""
    value, step = values[name], values[f"{name}_step"]
    return Best(value, step) if value and step is not None else None
