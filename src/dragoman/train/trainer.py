"""The loop and nothing else: update, look, measure, save, until there is a reason to stop.

Every rank runs the same loop and takes the same decisions at the same update; rank 0 alone writes
checkpoints and what all ranks have measured together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, Protocol

from dragoman.data.loader import Update
from dragoman.errors import DivergenceError
from dragoman.telemetry.events import (
    Alert,
    CheckpointWritten,
    EventWriter,
    RunFinished,
    SampleTranslation,
    Validated,
)
from dragoman.train.checkpoint import CheckpointStore
from dragoman.train.config import TrainConfig
from dragoman.train.divergence import diverged, loss_problem, smoothed_loss
from dragoman.train.interval import Interval
from dragoman.train.optimizer import LossScaler
from dragoman.train.snapshot import snapshot
from dragoman.train.state import TrainState
from dragoman.train.step import StepResult, TrainStep
from dragoman.train.stopping import Agreement, StopSignals, Votes

Reason = Literal["max_steps", "early_stop", "signal"]


class Validation(Protocol):
    """What the loop must know of a validation: evaluate.validate.Validation is one."""

    @property
    def samples(self) -> Sequence[SampleTranslation]:
        """Sample translations."""

    def event(self) -> Validated:
        """The scores."""


@dataclass(frozen=True, slots=True)
class FitResult:
    """How training ended. After "signal" the same command goes on where it stopped."""

    reason: Reason
    state: TrainState
    wall_s: float


def fit(
    step: TrainStep,
    updates: Iterator[Update],
    *,
    state: TrainState,
    config: TrainConfig,
    learning_rate: Callable[[int], float],
    validate: Callable[[int], Validation],
    store: CheckpointStore,
    events: EventWriter,
) -> FitResult:
    """Train from `state` to the end; every rank calls it.

    updates: from update number `state.step` on, without end.
    learning_rate: of an update by its number.
    validate: measures the model as it is; it is called with the number of updates made so far,
        with the averaged weights in the model where there are any.
    On SIGTERM and SIGINT the update under way is finished and saved.

    Raises DivergenceError, MachineError where a checkpoint cannot be written, and what
    `updates` and `validate` raise.
    """
    started = time.monotonic()
    if step.world.is_main:
        store.clean()
    with StopSignals() as signals:
        loop = _Loop(step, updates, state, config, learning_rate, validate, store, events, signals)
        try:
            reason = loop.run()
        except DivergenceError as error:
            alert = Alert(severity="error", cause=error.problem, remedy=error.remedy)
            events.write(alert, step=loop.state.step)
            _write_end(events, "diverged", loop.state, started)
            raise
    _write_end(events, reason, loop.state, started)
    return FitResult(reason, loop.state, time.monotonic() - started)


@dataclass
class _Loop:
    """What `fit` was given, and where it stands."""

    step: TrainStep
    updates: Iterator[Update]
    state: TrainState
    config: TrainConfig
    learning_rate: Callable[[int], float]
    validate: Callable[[int], Validation]
    store: CheckpointStore
    events: EventWriter
    signals: StopSignals

    def __post_init__(self) -> None:
        self.world = self.step.world
        self.interval = Interval(world=self.world, sync=self.step.sync, timer=self.step.timer)
        self.agreement = Agreement(self.world)
        self.saved_at_s = time.monotonic()

    def run(self) -> Reason:
        """Train until there is a reason to stop."""
        self.step.model.train()
        if self._validation_is_due() and self.state.dev_loss is None:
            # Before the first update, or where a signal came in place of the validation.
            self._validate()
            if self.state.step:
                self._save(self._reason_after_validation())
        while not self._finished():
            self._update()
            agreed = self.agreement.reach(self._votes())
            validating = self._validation_is_due() and not agreed.stop
            save_reason = self._save_reason(agreed)
            if validating or save_reason or self.state.step % self.config.log_every_steps == 0:
                self._tell_interval()
            if validating:
                self._validate()
                save_reason = self._reason_after_validation() or save_reason
            self._save(save_reason)
            if agreed.stop:
                return "signal"
        return "max_steps" if self.state.step >= self.config.max_steps else "early_stop"

    def _finished(self) -> bool:
        return self.state.step >= self.config.max_steps or self._lost_patience()

    def _lost_patience(self) -> bool:
        patience = self.config.patience
        return 0 < patience <= self.state.validations_without_best

    def _update(self) -> None:
        with self.step.timer.phase("data_wait"):
            update = next(self.updates)
        assert update.update_index == self.state.step
        result = self.step(update, learning_rate=self.learning_rate(self.state.step))
        self.step.timer.step_done()
        self.interval.add(update, result)
        self.state = self.state.after_update(update.epoch)
        if self.state.untrained_loss is None:
            loss = self.world.sum(result.loss.clone()).item() / update.global_target_tokens
            self.state = self.state.model_copy(update={"untrained_loss": loss, "recent_loss": loss})
        if self.world.device.type == "cpu":  # where looking costs nothing
            self._check_gradient(result)

    def _check_gradient(self, result: StepResult) -> None:
        if self.step.scaler is None and result.skipped.item():
            self._diverge(f"the gradient's norm is {result.gradient_norm.item()}")

    def _tell_interval(self) -> None:
        """Write the interval's event; raises DivergenceError where its numbers are not sane."""
        scaler = self.step.scaler
        event = self.interval.take(
            learning_rate=self.learning_rate(self.state.step - 1),
            loss_scale=None if scaler is None else scaler.scale,
        )
        self.events.write(event, step=self.state.step)
        if scaler is None and event.skipped_steps:
            self._diverge(f"{event.skipped_steps} gradients were NaN or infinite")
        if event.loss_scale is not None and event.loss_scale < LossScaler.MINIMUM:
            self._diverge(f"gradients overflow even with a loss scale of {event.loss_scale:g}")
        untrained, before = self.state.untrained_loss, self.state.recent_loss
        assert untrained is not None
        assert before is not None
        recent = smoothed_loss(before, event.train_loss, steps=event.steps)
        problem = loss_problem(recent, untrained=untrained)
        if problem is not None:
            self._diverge(problem)
        skipped = self.state.skipped_steps + event.skipped_steps
        self.state = self.state.model_copy(update={"recent_loss": recent, "skipped_steps": skipped})

    def _diverge(self, problem: str) -> None:
        paths = self.store.paths()
        last = paths[-1] if paths else None
        raise diverged(problem, step=self.state.step, last_checkpoint=last)

    def _votes(self) -> Votes:
        """What this rank wants; the clock of rank 0 counts for all."""
        every_s = self.store.config.every_minutes * 60
        save = self.world.is_main and 0 < every_s <= time.monotonic() - self.saved_at_s
        if save:
            self.saved_at_s = time.monotonic()
        return Votes(stop=self.signals.received, save=save)

    def _validation_is_due(self) -> bool:
        step = self.state.step
        if step == 0:
            return self.config.validate_at_start
        return step % self.config.validate_every_steps == 0 or step == self.config.max_steps

    def _validate(self) -> None:
        ema = self.step.ema
        with nullcontext() if ema is None else ema.in_model():
            validation = self.validate(self.state.step)
        event = validation.event()
        self.state = self.state.after_validation(
            dev_loss=event.dev_loss, bleu=event.bleu, stop_metric=self.config.stop_metric
        )
        if self.world.is_main:
            self.events.write(event, step=self.state.step)
            for sample in validation.samples:
                self.events.write(sample, step=self.state.step)

    def _save_reason(self, agreed: Votes) -> str | None:
        if agreed.stop:
            return "signal"
        if self.state.step == self.config.max_steps:
            return "end"
        if self.state.step % self.store.config.every_steps == 0:
            return "steps"
        return "minutes" if agreed.save else None

    def _reason_after_validation(self) -> str | None:
        if self._lost_patience():
            return "end"
        best_steps = (self.state.best_dev_loss_step, self.state.best_bleu_step)
        kept = self.store.config.keep_best > 0 and self.state.step in best_steps
        return "best" if kept else None

    def _save(self, reason: str | None) -> None:
        """Save where there is a reason to, on rank 0."""
        if reason is None or not self.world.is_main:
            return
        self.saved_at_s = time.monotonic()
        saved = self.store.save(*snapshot(self.state, self.step))
        event = CheckpointWritten(
            path=str(saved.path),
            reason=reason,
            size_bytes=saved.size_bytes,
            seconds_s=saved.seconds_s,
        )
        self.events.write(event, step=self.state.step)


def _write_end(events: EventWriter, reason: str, state: TrainState, started: float) -> None:
    event = RunFinished(
        reason=reason,
        best_dev_loss=state.best_dev_loss,
        best_dev_loss_step=state.best_dev_loss_step,
        best_bleu=state.best_bleu,
        best_bleu_step=state.best_bleu_step,
        wall_s=time.monotonic() - started,
    )
    events.write(event, step=state.step)
