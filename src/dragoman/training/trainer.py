"""The loop and nothing else: update, log, validate, save, until there is a reason to stop.

Every rank runs the same loop and takes the same decisions at the same update; rank 0 alone writes
checkpoints and the measurements of all ranks together.
"""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from dragoman.base.errors import DivergenceError
from dragoman.data.loader import Update
from dragoman.distributed.heartbeat import open_heartbeats
from dragoman.telemetry.events import (
    Alert,
    CheckpointWritten,
    ClockRead,
    EndForecast,
    Payload,
    Recorder,
    RunFinished,
    SampleTranslation,
    Validated,
)
from dragoman.telemetry.host import hourly_price
from dragoman.training.checkpoint import CheckpointStore, TrainState
from dragoman.training.clock import Budget, Reading, TrainingClock, forecast_end, passed
from dragoman.training.config import TrainConfig
from dragoman.training.divergence import LossTrend, Problem, diverged, not_finite
from dragoman.training.guard import Examination, StepGuard
from dragoman.training.interval import IntervalSums, train_interval
from dragoman.training.optimizer import LossScaler, lent
from dragoman.training.pause_watch import PauseWatch
from dragoman.training.snapshot import own_snapshot, snapshot
from dragoman.training.step import StepResult, TrainStep
from dragoman.training.stopping import Agreement, GivenUpError, StopSignals, Votes

Reason = Literal["max_steps", "early_stop", "signal"]
_LOGS: Final = 100
"""Lines of the log of a run that has a budget."""
_LEAST_SHARE: Final = 0.01
_JUDGED_TOGETHER: Final = 50
"""Updates after which their losses are fetched from the device and judged, once all ranks meet."""


class ValidationResult(Protocol):
    """The interface of a validation to the loop; evaluate.validate.Validation has it."""

    @property
    def samples(self) -> Sequence[SampleTranslation]:
        """Its translations, as events."""

    @property
    def further_scores(self) -> Sequence[Payload]:
        """Events of scores for which `event` has no field."""

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
    batches: Iterator[Update],
    *,
    state: TrainState,
    config: TrainConfig,
    learning_rate: Callable[[float], float],
    untrained_loss: float,
    validate: Callable[[int], ValidationResult],
    store: CheckpointStore,
    events: Recorder,
    budget: Budget | None = None,
    stage_starts: Sequence[int] = (0,),
) -> FitResult:
    """Train from `state` to the end; every rank calls it.

    batches: one for each step, from step number `state.step` on, without end.
    learning_rate: gives the rate of a step from its number. With a budget the number follows from
        the clock: the share of the time that has gone, of `config.max_steps`.
    untrained_loss: the loss of a model that knows nothing, in nats per target token: the logarithm
        of the number of target pieces. Divergence is judged by how much of it comes back.
    validate: measures the model as it is; it is called with the number of updates made so far,
        with the averaged weights in the model if there are any, otherwise with the weights that all
        ranks share. It may raise GivenUpError, on every rank, if a signal asks to stop; it is
        called again when training resumes.
    budget: if the run has to end in time: the clock of rank 0 says when to validate, to log and to
        end, in place of the steps of `config`.
    stage_starts: the step at which each stage begins. A stage may have other text, so its losses
        and the time of its steps are not compared with those of the stage before.
    On SIGTERM and SIGINT the update under way is finished and saved. A second signal ends a rank
    that is alone at once; several ranks are ended by their launcher.

    Raises DivergenceError, MachineError if a checkpoint cannot be written, and the
    errors of `batches` and `validate`.
    """
    started = time.monotonic()
    with (
        StopSignals(alone=step.world.world_size == 1) as signals,
        PauseWatch(
            step.world, step.timer, events, open_heartbeats(step.world.world_size)
        ) as pauses,
    ):
        loop = _Loop(
            step,
            batches,
            state,
            config,
            learning_rate,
            untrained_loss,
            validate,
            store,
            events,
            signals,
            pauses,
            budget,
            stage_starts,
        )
        try:
            reason = loop.run()
        except DivergenceError as error:
            alert = Alert(severity="error", cause=error.problem, remedy=error.remedy)
            events.write(alert, step=loop.state.step)
            _write_end(events, "diverged", loop.state, started)
            raise
    _relay(events, step.world.gather_json(events.take()))
    _write_end(events, reason, loop.state, started)
    return FitResult(reason, loop.state, time.monotonic() - started)


@dataclass
class _Loop:
    """The arguments of `fit`, and the present state.

    updates: the batches of `fit`. clock: rank 0's, if there is a budget. reading: what all ranks
    know of it.
    """

    step: TrainStep
    updates: Iterator[Update]
    state: TrainState
    config: TrainConfig
    learning_rate: Callable[[float], float]
    untrained_loss: float
    validate: Callable[[int], ValidationResult]
    store: CheckpointStore
    events: Recorder
    signals: StopSignals
    pauses: PauseWatch
    budget: Budget | None
    stage_starts: Sequence[int]

    def __post_init__(self) -> None:
        self.world = self.step.world
        self.unjudged: list[_Unjudged] = []
        self.interval = IntervalSums(world=self.world, sync=self.step.sync, timer=self.step.timer)
        self.agreement = Agreement(self.world)
        self.guard = StepGuard(
            self.step.sync,
            self.config.max_steps,
            # The plan was made with the text of the first stage.
            expected_s=None if self._stage(self.state.step) else self.state.planned_step_s,
            judges_steps=self.world.is_main,
            watches_card=self.world.local_rank == 0,
            price=hourly_price(),
            rank=self.world.rank,
            alone=self.world.world_size == 1,
            has_budget=self.budget is not None,
            on_processor=self.world.device.type == "cpu",
        )
        self.examination = Examination(self.world, self.state.link_bytes_per_s)
        self._asked = False
        self.rate = 0.0
        self.pauses.begin(self.state.step)
        self.saved_at_s = time.monotonic()
        self.save_s = 0.0 if self.budget is None else self.budget.save_s
        self.recorded_step = self.saved_step = self.state.step
        self.validated_step = self.state.validated_step or 0
        self.progress = self.recorded_progress = self.state.progress
        self.clock: TrainingClock | None = None
        self.reading: Reading | None = None
        self.is_time_over = False

    def run(self) -> Reason:
        """Train until there is a reason to stop."""
        self.step.model.train()
        if self.budget is not None:
            self._start_clock(self.budget)
        if self._validation_is_due() and self.state.dev_loss is None:
            # Before the first update, or if a signal came instead of the validation.
            if not self._validate():
                return "signal"
            if self.state.step:
                self._save(self._reason_after_validation())
        while not self._finished():
            agreed = self._update()
            if agreed is not None:
                self._read_clock(agreed)
                if self._take_stock(agreed):
                    return "signal"
        return "max_steps" if self._is_over() else "early_stop"

    def _start_clock(self, budget: Budget) -> None:
        """Tell all ranks how far the run is, by the clock of rank 0."""
        state, progress = self.state, self.state.progress
        if self.world.is_main:
            self.clock = TrainingClock(
                budget, state.began_s, state.validation_s, state.search_s, state.save_s
            )
            self.state = state.model_copy(update={"began_s": self.clock.began_s})
            progress = max(progress, self.clock.progress(state.step))
        progress = self.world.gather_json(progress)[0]
        self.reading = Reading(state.step, progress, self.config.max_steps)
        self.is_time_over = progress >= 1.0

    def _read_clock(self, agreed: Votes) -> None:
        """Take over the progress that rank 0 has read, as all ranks have met."""
        if self.reading is None:
            return
        before = self.reading
        self.reading = before.read(self.state.step, agreed.progress)
        if self.reading.is_over(before.step) and not self.is_time_over:
            self.is_time_over = True
            self.step.sync.finish()

    def _is_over(self) -> bool:
        if self.reading is None:
            return self.state.step >= self.config.max_steps
        is_last = self.state.step >= (self.max_steps or math.inf)
        return self.state.step > 0 and (self.is_time_over or is_last)

    @property
    def max_steps(self) -> int | None:
        """The last step, if it is set."""
        return self.config.max_steps if self.budget is None else self.budget.most_steps

    def _stage(self, step: int) -> int:
        """The index of the stage that the last of `step` steps belongs to."""
        return bisect.bisect_right(self.stage_starts, max(0, step - 1)) - 1

    def _take_stock(self, agreed: Votes) -> bool:
        """Measure and save what is due, as all ranks have met; returns whether to stop at once."""
        if agreed.examine and self.world.world_size > 1:
            self._examine()
        validating = self._validation_is_due() and not agreed.stop
        save_reason = self._save_reason(agreed)
        if validating or save_reason or self._log_is_due():
            self._record_interval()
        stopping = agreed.stop
        if validating:
            stopping = not self._validate()
            found = "signal" if stopping else self._reason_after_validation()
            save_reason = found or save_reason
        self._save(save_reason)
        return stopping

    def _examine(self) -> None:
        """All ranks find out why steps are slow."""
        with self.pauses.outside("measuring"):
            for event in self.examination.run(self.guard):
                self.events.write(event, step=self.state.step)

    def _finished(self) -> bool:
        return self._is_over() or self._lost_patience()

    def _lost_patience(self) -> bool:
        patience = self.config.patience
        return 0 < patience <= self.state.validations_without_best

    def _update(self) -> Votes | None:
        """Make an update; returns the agreement of the ranks if they meet after it."""
        started = time.perf_counter()
        with self.step.timer.phase("data_wait"):
            update = next(self.updates)
        fed = time.perf_counter()
        assert update.update_index == self.state.step
        if self.reading is not None:
            self.progress = self.reading.at(self.state.step)
        self.rate = self.learning_rate(self._schedule_step(self.state.step))
        result = self.step(update, learning_rate=self.rate)
        step = self.state.step + 1
        if step == self.max_steps:
            self.step.sync.finish()
        agreed = self._agree(step) if self.step.sync.settled else None
        self.step.timer.step_done()
        seconds_s = time.perf_counter() - started
        self.pauses.updated(step=step, seconds_s=seconds_s)
        if self._stage(step) != self._stage(self.state.step):
            self.guard.learn_anew()
        alert = self.guard.see(step=step, seconds_s=seconds_s, data_wait_s=fed - started)
        if alert is not None:
            self.events.write(alert, step=step)
        self.interval.add(update, result)
        self.state = self.state.after_update(update.epoch, progress=self.progress)
        self.unjudged.append(
            _Unjudged(self.state.step, result.loss / update.global_target_tokens, result.skipped)
        )
        if self.world.device.type == "cpu":  # on it, reading the result costs nothing
            self._check_gradient(update, result)
        if len(self.unjudged) >= _JUDGED_TOGETHER and agreed is not None:
            self._judge_losses()
        return agreed

    @property
    def gone(self) -> float:
        """The share of the budget's time for training that has gone; 0 without a budget."""
        return 0.0 if self.reading is None else self.reading.at(self.state.step)

    def _schedule_step(self, step: int) -> float:
        """The place of a step in the schedule: with a budget, by the time that has gone."""
        return step if self.reading is None else self.progress * self.config.max_steps

    def _agree(self, step: int) -> Votes:
        """Meet the other ranks. Waiting for them is a part of the step.

        If a strategy sums only now and then, its sum may have arrived already. Then this rank
        waits here for the slowest one.
        """
        if self.world.world_size == 1:
            return self._votes(step)
        started = time.perf_counter()
        agreed = self.agreement.reach(self._votes(step))
        if self.world.device.type == "cpu":  # a GPU's host waits here for its own device as well
            self.step.sync.waits.add(time.perf_counter() - started)
        return agreed

    def _check_gradient(self, update: Update, result: StepResult) -> None:
        if self.step.scaler is None and result.skipped.item():
            own_tokens = sum(batch.num_target_tokens for batch in update.micro_batches)
            loss = result.loss.item() / max(1, own_tokens)  # of this rank: others may not be here
            norm = result.gradient_norm.item()
            self._diverge(not_finite(f"the gradient's norm is {norm}", loss, self.state.step))

    def _judge_losses(self) -> None:
        """Add the losses of the last updates to the trend; raises DivergenceError.

        Every rank must call it after the same update: losses are summed over ranks here.
        """
        losses = self.world.sum(torch.stack([one.loss for one in self.unjudged]))
        skipped = torch.stack([one.skipped for one in self.unjudged])
        steps = [one.step for one in self.unjudged]
        self.unjudged = []
        scaler, trend = self.step.scaler, self.state.loss_trend
        for step, loss, was_skipped in zip(steps, losses.tolist(), skipped.tolist(), strict=True):
            if scaler is None and (was_skipped or not math.isfinite(loss)):
                self._diverge(not_finite("a gradient is NaN or infinite", loss, step))
            if trend.steps and self._stage(trend.oldest_step) != self._stage(step):
                trend = LossTrend()
            after = trend.after(loss, step=step)
            problem = trend.problem(after, untrained_loss=self.untrained_loss)
            if problem is not None:
                self._diverge(problem)
            trend = after
        if scaler is not None and scaler.scale.item() < LossScaler.MINIMUM:
            scale = scaler.scale.item()
            what = f"gradients overflow even with a loss scale of {scale:g}"
            since = next((n for n, skips in zip(steps, skipped.tolist(), strict=True) if skips), 0)
            self._diverge(not_finite(what, trend.recent[-1] if trend.recent else math.nan, since))
        self.state = self.state.model_copy(update={"loss_trend": trend})

    def _log_is_due(self) -> bool:
        if self.reading is not None:
            return passed(_LOGS, self.recorded_progress, self.gone) or self._is_over()
        return _passed(self.config.log_every_steps, self.recorded_step, self.state.step)

    def _record_interval(self) -> None:
        """Write one event for all ranks; raises DivergenceError if the losses say so."""
        self.recorded_step = self.state.step
        own = self.interval.take()
        ranks = self.world.gather_json({"sums": own, "events": self.events.take()})
        self.recorded_progress = self.gone  # of every rank: all of them come here together
        if self.clock is not None:
            self.guard.max_steps = round(self.state.step / max(self.gone, _LEAST_SHARE))
            read = ClockRead(progress=self.progress, left_s=self.clock.left_s)
            self.events.write(read, step=self.state.step)
        if self.world.is_main:
            scaler = self.step.scaler
            event = train_interval(
                [one["sums"] for one in ranks],
                learning_rate=self.rate,
                loss_scale=None if scaler is None else scaler.scale,
            )
            _relay(self.events, [one["events"] for one in ranks])
            self.events.write(event, step=self.state.step)
        skipped = self.state.skipped_steps + own["skipped_steps"]
        self.state = self.state.model_copy(update={"skipped_steps": skipped})
        if self.unjudged:
            self._judge_losses()

    def _diverge(self, problem: Problem) -> None:
        raise diverged(problem, step=self.state.step, checkpoints=self.store.paths())

    def _votes(self, step: int) -> Votes:
        """The votes of this rank after this step; the clock of rank 0 counts for all."""
        every_s = self.store.config.clock_s(self.save_s)
        save = self.world.is_main and 0 < every_s <= time.monotonic() - self.saved_at_s
        if save:
            self.saved_at_s = time.monotonic()
        asks = self.guard.slowness is not None and not self._asked
        self._asked = self.guard.slowness is not None
        progress = 0.0 if self.clock is None else self.clock.progress(step)
        return Votes(stop=self.signals.received, save=save, examine=asks, progress=progress)

    def _validation_is_due(self) -> bool:
        step = self.state.step
        if step == 0:
            return self.config.validate_at_start
        if self.budget is not None:
            before = self.state.validated_progress
            return passed(self.budget.validations, before, self.gone) or self._is_over()
        due = _passed(self.config.validate_every_steps, self.validated_step, step)
        return due or step == self.max_steps

    def _validate(self) -> bool:
        """Validate; False if it was given up for a signal, on all ranks alike."""
        started = time.monotonic()
        ema, shared = self.step.ema, self.step.sync.weights()
        try:
            with (
                self.pauses.outside("validating"),
                lent(self.step.model, shared) if ema is None else ema.in_model(),
            ):
                validation = self.validate(self.state.step)
        except GivenUpError:
            return False
        self.validated_step = self.state.step
        event = validation.event()
        dev_loss = math.nan if event.dev_loss is None else event.dev_loss
        if self.reading is not None:
            self._note_validation(dev_loss, event.decode_s or 0.0, time.monotonic() - started)
        best, best_step = self.state.best_dev_loss, self.state.best_dev_loss_step
        self.state = self.state.after_validation(
            dev_loss=dev_loss, bleu=event.bleu, stop_metric=self.config.stop_metric
        )
        if self.state.step <= self.stage_starts[-1]:  # patience would skip the stages to come
            self.state = self.state.model_copy(update={"validations_without_best": 0})
        if self.world.is_main:
            self.events.write(event, step=self.state.step)
            for further in (*validation.further_scores, *validation.samples):
                self.events.write(further, step=self.state.step)
        if best is not None:
            problem = self.state.loss_trend.dev_problem(
                dev_loss,
                best=best,
                best_step=best_step or 0,
                untrained_loss=self.untrained_loss,
            )
            if problem is not None:
                self._diverge(problem)
        return True

    def _note_validation(self, dev_loss: float, search_s: float, seconds_s: float) -> None:
        """Keep what the clock and the forecast of the end need from a validation."""
        seen = self.state.dev_losses
        if self.gone > 0:
            seen = (*seen, (self.gone, dev_loss))
        self.state = self.state.model_copy(
            update={
                "validated_progress": self.gone,
                "dev_losses": seen,
                "validation_s": seconds_s,
                "search_s": search_s,
            }
        )
        if self.clock is not None:
            self.clock.validation_s, self.clock.search_s = seconds_s, search_s
        found = forecast_end(seen, untrained_loss=self.untrained_loss)
        if found is not None and self.world.is_main and not self._is_over():
            self.events.write(EndForecast(**found._asdict()), step=self.state.step)

    def _save_reason(self, agreed: Votes) -> str | None:
        if agreed.stop:
            return "signal"
        if self._is_over():
            return "end"
        if _passed(self.store.config.every_steps, self.saved_step, self.state.step):
            return "steps"
        return "minutes" if agreed.save else None

    def _reason_after_validation(self) -> str | None:
        if self._lost_patience():
            return "end"
        # Rank 0 has the other checkpoints to compare with, and all ranks must save or none.
        among_best = self.world.is_main and self.store.is_among_best(self.state)
        return "best" if any(self.world.gather_json(among_best)) else None

    def _save(self, reason: str | None) -> None:
        """Save if there is a reason to: rank 0 everything, the others their own state."""
        if reason is None:
            return
        started, self.saved_step = time.monotonic(), self.state.step
        with self.pauses.outside("saving"):
            self._write_checkpoint(reason)
        self.saved_at_s = time.monotonic()
        self.save_s = self.saved_at_s - started
        if self.clock is not None:
            self.clock.save_s = self.save_s

    def _write_checkpoint(self, reason: str) -> None:
        if not self.world.is_main:
            if self.step.sync.own_optimizer or self.step.sync.own_state():
                self.store.of_rank(self.world.rank).save(*own_snapshot(self.state, self.step))
            return
        saved = self.store.save(*snapshot(self.state, self.step))
        event = CheckpointWritten(
            path=str(saved.path),
            reason=reason,
            size_bytes=saved.size_bytes,
            seconds_s=saved.seconds_s,
        )
        self.events.write(event, step=self.state.step)


class _Unjudged(NamedTuple):
    """One update whose loss has not been judged yet.

    loss: this rank's part of the mean over the global target tokens; on the device, like skipped.
    """

    step: int
    loss: Tensor
    skipped: Tensor


def _passed(every: int, since: int, step: int) -> bool:
    """Whether a multiple of `every` lies after step `since` and not after `step`."""
    return step // every > since // every


def _relay(events: Recorder, lines: Sequence[Sequence[str]]) -> None:
    """Write the events of the other ranks, given by rank; only rank 0 has a file for them."""
    for rank, some in enumerate(lines):
        events.relay(rank, some)


def _write_end(events: Recorder, reason: str, state: TrainState, started: float) -> None:
    event = RunFinished(
        reason=reason,
        best_dev_loss=state.best_dev_loss,
        best_dev_loss_step=state.best_dev_loss_step,
        best_bleu=state.best_bleu,
        best_bleu_step=state.best_bleu_step,
        wall_s=time.monotonic() - started,
    )
    events.write(event, step=state.step)
