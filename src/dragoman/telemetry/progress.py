"""The progress of a run, from its events: the live screen and the log lines show it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dragoman.telemetry.events import (
    OUTSIDE_STEPS,
    Event,
    LengthFitted,
    RankPaused,
    RunStarted,
    TrainInterval,
    Validated,
    number,
)

_RECENT_INTERVALS = 20
_NUMBERS = {
    RunStarted.kind: ("max_steps",),
    LengthFitted.kind: ("max_steps",),
    TrainInterval.kind: (
        *("steps", "interval_s", "source_tokens", "target_tokens", "data_wait_s"),
    ),
    RankPaused.kind: ("seconds_s",),
}
"""The keys that are read. An event of another version, or of a damaged file, may lack them."""
_NUMBERS_OR_NONE = {
    RunStarted.kind: ("resumed_from_step",),
    Validated.kind: ("dev_loss", "bleu"),
}


@dataclass(frozen=True, slots=True)
class Best:
    """The best value of a metric so far, and its step."""

    value: float
    step: int


@dataclass(slots=True)
class Progress:
    """The state of one run: `see` must get each of its events in order. Nothing here trusts a file.

    The time left is the number of remaining steps times the seconds per step: those of the last
    20 intervals, plus the mean time per step that this process spent outside steps so far
    (validation, checkpoints). Both leave out pauses, in which a rank stood still.
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
    _now: float = 0.0
    _steps: int = 0
    _in_steps_s: float = 0.0
    _paused_s: float = 0.0
    """Pauses in steps since the last interval."""
    _paused_outside_s: float = 0.0

    def see(self, event: Event) -> None:
        """Read one event; an event that lacks a value that is read here is ignored."""
        if not _is_whole(event):
            return
        self._now = event.time
        if event.kind == RunStarted.kind:
            self.run = event.payload
            self.step = event.payload["resumed_from_step"] or 0
            self.dev_loss = _best(event.payload, "best_dev_loss") or self.dev_loss
            self.bleu = _best(event.payload, "best_bleu") or self.bleu
            self._recent.clear()
            self._began, self._steps, self._in_steps_s = None, 0, 0.0
            self._paused_s = self._paused_outside_s = 0.0
        elif event.kind == LengthFitted.kind:
            self.run = {**self.run, "max_steps": event.payload["max_steps"]}
        elif event.kind == TrainInterval.kind:
            steps, seconds = event.payload["steps"], event.payload["interval_s"]
            self.interval = event.payload
            self.step = event.step or 0
            self._recent.append((steps, max(seconds - self._paused_s, 0.0) or seconds))
            self._paused_s = 0.0
            if self._began is None:
                self._began = event.time - seconds
            self._steps += steps
            self._in_steps_s += seconds
        elif event.kind == RankPaused.kind:
            if event.payload.get("during") in OUTSIDE_STEPS:
                self._paused_outside_s += event.payload["seconds_s"]
            else:
                self._paused_s += event.payload["seconds_s"]
        elif event.kind == Validated.kind:
            step, loss, bleu = event.step or 0, event.payload["dev_loss"], event.payload["bleu"]
            if loss is not None and (self.dev_loss is None or loss < self.dev_loss.value):
                self.dev_loss = Best(loss, step)
            if bleu and (self.bleu is None or bleu > self.bleu.value):  # 0 is never the best
                self.bleu = Best(bleu, step)

    @property
    def max_steps(self) -> int | None:
        """The number of steps that the run should make; None before it has started."""
        return self.run.get("max_steps")

    @property
    def tokens_per_s(self) -> float | None:
        """Source and target tokens per second in the last interval, without padding."""
        if not self.interval.get("interval_s"):
            return None
        tokens: int = self.interval["source_tokens"] + self.interval["target_tokens"]
        return tokens / float(self.interval["interval_s"])

    @property
    def data_wait_share(self) -> float | None:
        """The share of the last interval in which training waited for data."""
        if not self.interval.get("interval_s"):
            return None
        return float(self.interval["data_wait_s"] / self.interval["interval_s"])

    @property
    def left_s(self) -> float | None:
        """Seconds until the last step; None before the first interval has ended."""
        if self._began is None or self.max_steps is None:
            return None
        steps = sum(steps for steps, _ in self._recent)
        step_s = sum(seconds for _, seconds in self._recent) / max(steps, 1)
        outside_s = self._now - self._began - self._in_steps_s - self._paused_outside_s
        step_s += max(outside_s, 0.0) / max(self._steps, 1)
        return max(self.max_steps - self.step, 0) * step_s

    @property
    def finish_time(self) -> float | None:
        """When the last step will end, in seconds since 1970; None before the first interval."""
        left_s = self.left_s
        return None if left_s is None else self._now + left_s


def _best(values: Mapping[str, Any], name: str) -> Best | None:
    """The best value that a run had when it was resumed; older events do not say."""
    value, step = number(values.get(name)), number(values.get(f"{name}_step"))
    return Best(value, int(step)) if value and step is not None else None


def _is_whole(event: Event) -> bool:
    """Whether the event has a number, or None if that is allowed, for every key that is read."""
    seen = event.payload
    names, more = _NUMBERS.get(event.kind, ()), _NUMBERS_OR_NONE.get(event.kind, ())
    return all(number(seen.get(name)) is not None for name in names) and all(
        name in seen and (seen[name] is None or number(seen[name]) is not None) for name in more
    )
