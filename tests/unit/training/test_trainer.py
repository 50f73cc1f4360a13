"""The loop: what it writes, when it stops, and that it goes on as if nothing had been."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dragoman.base.errors import DivergenceError
from dragoman.model.transformer import Transformer
from dragoman.model.weights_form import WeightsForm
from dragoman.telemetry.events import Event, read_events
from dragoman.training.clock import Budget
from dragoman.training.config import CheckpointConfig, TrainConfig
from dragoman.training.schedule import ScheduleConfig, learning_rate
from dragoman.training.stopping import GivenUpError, is_asked_to_stop
from toy_fit import ToyRun, ToyValidation, dev_loss


def events_of(run: ToyRun, kind: str) -> list[Event]:
    events = read_events(run.directory / "events" / "log.jsonl")
    return [event for event in events if event.kind == kind]


def tensors_at(run: ToyRun, step: int) -> dict[str, Tensor]:
    path = run.directory / "checkpoints" / f"step-{step:07d}"
    return {
        f"{file.name}/{name}": tensor
        for file in path.glob("*.safetensors")
        for name, tensor in load_file(file).items()
    }


def assert_same_tensors(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert len(found) > 0
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


def overflow(model: Transformer) -> None:
    """Make one gradient of the next update infinite."""

    def spoil(gradient: Tensor) -> Tensor:
        handle.remove()
        return gradient * math.inf

    handle = model.embeddings.target_matrix.register_hook(spoil)  # type: ignore[no-untyped-call]


def stop_at(step: int) -> Callable[[int, Transformer], None]:
    """Sends this process SIGTERM before update number `step`."""

    def before_update(update_index: int, _model: Transformer) -> None:
        if update_index == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return before_update


def test_a_run_records_its_intervals_validations_and_checkpoints(tmp_path: Path) -> None:
    run = ToyRun(tmp_path, TrainConfig(max_steps=14, log_every_steps=4, validate_every_steps=6))
    result = run.fit()
    assert (result.reason, result.state.step) == ("max_steps", 14)
    intervals = events_of(run, "train_interval")
    # Also closed before each validation and checkpoint, so that these cost training nothing.
    assert [event.step for event in intervals] == [4, 5, 6, 8, 10, 12, 14]
    assert [event.payload["steps"] for event in intervals] == [4, 1, 1, 2, 2, 2, 2]
    assert intervals[0].payload["learning_rate"] == pytest.approx(1e-3)
    for event in intervals:
        payload = event.payload
        assert payload["train_loss"] > 0
        assert 0 <= payload["padding_share"] < 1
        assert payload["gradient_norm"] > 0
        assert payload["pairs"] > 0
        assert 0 < payload["step_median_s"][0] <= payload["step_p95_s"][0]
        parts = ("data_wait_s", "forward_s", "backward_s", "optimizer_s")
        assert sum(payload[part][0] for part in parts) <= payload["interval_s"][0]
    assert [event.step for event in events_of(run, "validated")] == [0, 6, 12, 14]
    written = [(e.step, e.payload["reason"]) for e in events_of(run, "checkpoint_written")]
    assert written == [(5, "steps"), (6, "best"), (10, "steps"), (12, "best"), (14, "best")]
    (finished,) = events_of(run, "run_finished")
    assert finished.payload["reason"] == "max_steps"
    assert finished.payload["best_dev_loss"] == result.state.best_dev_loss
    assert finished.payload["best_dev_loss_step"] == 14


def test_tokens_are_counted_over_the_whole_interval(tmp_path: Path) -> None:
    by_one = ToyRun(tmp_path / "1", TrainConfig(max_steps=6, log_every_steps=1))
    by_three = ToyRun(
        tmp_path / "3", TrainConfig(max_steps=6, log_every_steps=3), CheckpointConfig()
    )
    for run in (by_one, by_three):
        run.fit()
    for key in ("pairs", "source_tokens", "target_tokens", "steps"):
        one, three = (
            [event.payload[key] for event in events_of(run, "train_interval")]
            for run in (by_one, by_three)
        )
        assert three == [sum(one[:3]), sum(one[3:])]


@pytest.mark.parametrize("step", [3, 5])
def test_a_stopped_run_goes_on_as_if_it_had_not(tmp_path: Path, step: int) -> None:
    """Stopped after update 4, between checkpoints, and after 6, where a validation was due."""
    config = TrainConfig(max_steps=9, validate_every_steps=6, ema_decay=0.9, log_every_steps=2)
    whole = ToyRun(tmp_path / "whole", config)
    expected = whole.fit()
    stopped = ToyRun(tmp_path / "stopped", config, before_update=stop_at(step))
    result = stopped.fit()
    assert (result.reason, result.state.step) == ("signal", step + 1)
    assert events_of(stopped, "run_finished")[-1].payload["reason"] == "signal"
    resumed = ToyRun(tmp_path / "stopped", config)
    found = resumed.fit()
    assert found.reason == "max_steps"
    assert_same_tensors(tensors_at(resumed, 9), tensors_at(whole, 9))
    assert found.state == expected.state
    scores = [
        [(event.step, event.payload["dev_loss"]) for event in events_of(run, "validated")]
        for run in (whole, resumed)
    ]
    assert scores[0] == scores[1]


@pytest.mark.parametrize("at", [0, 6, 9])
def test_a_validation_is_given_up_for_a_signal_and_made_when_the_run_goes_on(
    tmp_path: Path, at: int
) -> None:
    """Before the first update, between updates, after the last one."""

    def validate(step: int, model: Transformer) -> ToyValidation:
        if step == at:
            os.kill(os.getpid(), signal.SIGTERM)
            assert is_asked_to_stop()
            raise GivenUpError
        return ToyValidation(dev_loss(model))

    config = TrainConfig(max_steps=9, validate_every_steps=6, ema_decay=0.9, log_every_steps=2)
    whole = ToyRun(tmp_path / "whole", config)
    expected = whole.fit()
    stopped = ToyRun(tmp_path / "stopped", config, validate=validate)
    result = stopped.fit()
    assert (result.reason, result.state.step) == ("signal", at)
    assert result.state.dev_loss is None
    assert not is_asked_to_stop()
    resumed = ToyRun(tmp_path / "stopped", config)
    found = resumed.fit()
    assert found.state == expected.state
    assert_same_tensors(tensors_at(resumed, 9), tensors_at(whole, 9))
    scores = [
        [(event.step, event.payload["dev_loss"]) for event in events_of(run, "validated")]
        for run in (whole, resumed)
    ]
    assert scores[0] == scores[1]


def test_signal_handlers_are_as_before_afterwards(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    ToyRun(tmp_path, TrainConfig(max_steps=1)).fit()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_finished_run_is_not_trained_further(tmp_path: Path) -> None:
    run = ToyRun(tmp_path, TrainConfig(max_steps=3))
    run.fit()
    num_intervals = len(events_of(run, "train_interval"))
    assert run.fit().reason == "max_steps"
    assert len(events_of(run, "train_interval")) == num_intervals


@pytest.mark.parametrize("metric", ["dev_loss", "bleu"])
def test_training_stops_when_validations_no_longer_improve(tmp_path: Path, metric: str) -> None:
    quality = [1.0, 3.0, 2.0, 2.5, 5.0, 5.0]

    def validate(step: int, _model: Transformer) -> ToyValidation:
        value = quality[step // 2]
        other = float(step)
        if metric == "bleu":
            return ToyValidation(dev_loss=100 - other, bleu=value)
        return ToyValidation(dev_loss=10 - value, bleu=other)

    config = TrainConfig(
        max_steps=100,
        validate_every_steps=2,
        patience=2,
        stop_metric="bleu" if metric == "bleu" else "dev_loss",
    )
    run = ToyRun(tmp_path, config, CheckpointConfig(every_steps=50), validate=validate)
    result = run.fit()
    # 3.0 at step 2 is the best; 2.0 and 2.5 are two validations without a better one.
    assert (result.reason, result.state.step) == ("early_stop", 6)
    best = result.state.best_bleu_step if metric == "bleu" else result.state.best_dev_loss_step
    assert best == 2
    kept = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert {"step-0000002", "step-0000006"} <= kept
    again = ToyRun(tmp_path, config, CheckpointConfig(every_steps=50), validate=validate).fit()
    assert (again.reason, again.state.step) == ("early_stop", 6)


def test_patience_begins_with_the_last_stage(tmp_path: Path) -> None:
    config = TrainConfig(max_steps=40, validate_every_steps=2, patience=2)
    run = ToyRun(
        tmp_path,
        config,
        CheckpointConfig(every_steps=50),
        validate=lambda step, _model: ToyValidation(5.0 + step),
        stage_starts=(0, 5, 11),
    )
    result = run.fit()
    # The validations of steps 12 and 14 are in the last stage; earlier ones would have stopped it.
    assert (result.reason, result.state.step) == ("early_stop", 14)


def test_the_second_best_is_kept_too_between_checkpoints(tmp_path: Path) -> None:
    losses = {0: 9.0, 2: 5.0, 4: 7.0, 6: 6.0, 8: 8.0, 10: 8.5}
    run = ToyRun(
        tmp_path,
        TrainConfig(max_steps=10, validate_every_steps=2),
        CheckpointConfig(every_steps=50, keep_last=1, keep_best=2),
        validate=lambda step, _model: ToyValidation(losses[step]),
    )
    run.fit()
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["step-0000002", "step-0000006", "step-0000010"]


def test_a_second_signal_does_not_wait_for_a_validation(tmp_path: Path) -> None:
    went_on = False

    def validate(step: int, _model: Transformer) -> ToyValidation:
        nonlocal went_on
        if step:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
            went_on = True
        return ToyValidation(1.0)

    run = ToyRun(tmp_path, TrainConfig(max_steps=9, validate_every_steps=4), validate=validate)
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    assert not went_on


def test_the_clock_can_ask_for_checkpoints(tmp_path: Path) -> None:
    config = CheckpointConfig(every_steps=1000, every_minutes=1e-9)
    run = ToyRun(tmp_path, TrainConfig(max_steps=60), config)
    run.fit()
    written = events_of(run, "checkpoint_written")
    reasons = [event.payload["reason"] for event in written]
    assert (written[0].step, reasons[0]) == (1, "minutes")
    assert reasons == ["minutes"] * (len(written) - 1) + ["best"]
    for save, later in pairwise(written[:-1]):  # training gets 19 times the time of each save
        assert later.mono_s - save.mono_s >= 19 * save.payload["seconds_s"]


def test_validation_measures_the_averaged_weights(tmp_path: Path) -> None:
    seen: dict[int, float] = {}

    def validate(step: int, model: Transformer) -> ToyValidation:
        seen[step] = dev_loss(model)
        return ToyValidation(seen[step])

    config = TrainConfig(max_steps=3, ema_decay=0.5)
    run = ToyRun(tmp_path, config, validate=validate)
    run.fit()
    tensors = tensors_at(run, 3)
    model = Transformer(run.model, source_vocab_size=30, target_vocab_size=30)
    losses = {}
    for group in ("model", "updated"):
        for name, view in WeightsForm().views(dict(model.named_parameters())).items():
            view.data.copy_(tensors[f"{group}.safetensors/{name}"])
        losses[group] = dev_loss(model)
    assert seen[3] == pytest.approx(losses["model"], rel=1e-5)
    assert seen[3] != pytest.approx(losses["updated"], rel=1e-5)


def test_a_nan_gradient_stops_at_once_and_leaves_good_weights(tmp_path: Path) -> None:
    def poison(update_index: int, model: Transformer) -> None:
        if update_index == 7:
            model.decoder.norm.register_forward_hook(lambda _m, _a, out: out * math.nan)

    run = ToyRun(tmp_path, TrainConfig(max_steps=20), before_update=poison)
    with pytest.raises(DivergenceError) as caught:
        run.fit()
    message = str(caught.value)
    assert message.startswith(
        "step 8: training diverged: the gradient's norm is nan since step 8, with a training loss "
        "of nan"
    )
    assert "schedule.peak_learning_rate" in message
    assert "\n" not in message
    assert message.endswith("step-0000005")
    assert events_of(run, "alert")[-1].payload["severity"] == "error"
    assert events_of(run, "run_finished")[-1].payload["reason"] == "diverged"


def test_too_high_a_learning_rate_is_noticed(tmp_path: Path) -> None:
    run = ToyRun(
        tmp_path,
        TrainConfig(max_steps=60, log_every_steps=5),
        CheckpointConfig(every_steps=100),
        schedule=ScheduleConfig(kind="constant", peak_learning_rate=1.0, warmup_steps=0),
    )
    with pytest.raises(DivergenceError, match=r"above .* since step [1-9]\b.*none was written"):
        run.fit()


def test_overflows_in_fp16_are_counted_and_no_divergence(tmp_path: Path) -> None:
    run = ToyRun(
        tmp_path,
        TrainConfig(max_steps=4, precision="fp16", log_every_steps=2),
        before_update=lambda step, model: overflow(model) if step == 1 else None,
    )
    result = run.fit()
    assert result.state.skipped_steps == 1
    intervals = events_of(run, "train_interval")
    assert [event.payload["skipped_steps"] for event in intervals] == [1, 0]
    assert [event.payload["loss_scale"] for event in intervals] == [2.0**15, 2.0**15]


def in_time(seconds_s: float, *, most_steps: int | None = None, save_s: float = 0.0) -> Budget:
    """A budget that begins now, with nothing to be done after the training."""
    return Budget(
        asked="",
        started=time.time(),
        seconds_s=seconds_s,
        validation_s=0.01,
        search_s=0.01,
        after_s=0.0,
        after_searches=0.0,
        most_steps=most_steps,
        save_s=save_s,
    )


EXPECTED = 100
IN_TIME = TrainConfig(max_steps=EXPECTED, validate_at_start=False)
TO_ZERO = ScheduleConfig(kind="linear", warmup_steps=EXPECTED // 10)


def slow(_update: int, _model: Transformer) -> None:
    time.sleep(0.02)


def clock_of(run: ToyRun) -> list[tuple[int, float]]:
    """The steps at which rank 0 read its clock, and the progress."""
    return [(one.step or 0, one.payload["progress"]) for one in events_of(run, "clock_read")]


def test_the_clock_of_a_budget_sets_the_rate_the_validations_and_the_end(tmp_path: Path) -> None:
    ToyRun(tmp_path / "first", TrainConfig(max_steps=1)).fit()  # PyTorch imports more at first use
    budget = in_time(5.0)
    run = ToyRun(tmp_path, IN_TIME, schedule=TO_ZERO, before_update=slow, budget=budget)
    result = run.fit()
    assert result.reason == "max_steps"
    # A neighbour may take the processor for a second, or make a save look long.
    assert 4.0 < time.time() - budget.started < 6.5
    read = clock_of(run)
    rates = {one.step: one.payload["learning_rate"] for one in events_of(run, "train_interval")}
    for step, progress in read:
        assert rates[step] == pytest.approx(
            learning_rate(progress * EXPECTED, TO_ZERO, d_model=16, max_steps=EXPECTED)
        )
    assert rates[read[-1][0]] < 0.5 * TO_ZERO.peak_learning_rate
    assert [progress for _, progress in read] == sorted(progress for _, progress in read)
    steps, shares = [step for step, _ in read], [share for _, share in read]
    at = [float(np.interp(one.step or 0, steps, shares)) for one in events_of(run, "validated")]
    assert at[:-1] == pytest.approx([0.2, 0.4, 0.6, 0.8], abs=0.1)
    assert 0.75 < at[-1] <= 1.1
    (last,) = {one.step for one in events_of(run, "validated")[-1:]}
    assert last == result.state.step
    # It is over: the same call trains no more.
    assert run.fit().state.step == result.state.step
    assert run.directory.joinpath("checkpoints", f"step-{result.state.step:07d}").is_dir()


@pytest.mark.system
def test_a_run_that_was_stopped_goes_on_where_the_clock_is(tmp_path: Path) -> None:
    def slow_and_stopped(update: int, _model: Transformer) -> None:
        time.sleep(0.02)
        if update == 12:
            os.kill(os.getpid(), signal.SIGTERM)

    budget = in_time(6.0)
    run = ToyRun(tmp_path, IN_TIME, schedule=TO_ZERO, before_update=slow_and_stopped, budget=budget)
    stopped = run.fit()
    assert stopped.reason == "signal"
    time.sleep(1.0)
    ended = replace(run, before_update=slow).fit()
    assert ended.reason == "max_steps"
    # If a save takes long, the run stops training earlier to end in time.
    assert 3.5 < time.time() - budget.started < 8.0
    after = next(progress for step, progress in clock_of(run) if step > stopped.state.step)
    assert after - stopped.state.progress > 0.9 / 6.0, "the time in which nothing ran counts"


@pytest.mark.parametrize("trained", [False, True])
def test_a_run_whose_time_is_over_is_validated_once_and_saved(
    tmp_path: Path, trained: bool
) -> None:
    run = ToyRun(tmp_path, IN_TIME, schedule=TO_ZERO)
    if trained:
        stop = TrainConfig(max_steps=7, validate_at_start=False, validate_every_steps=1000)
        ToyRun(tmp_path, stop, CheckpointConfig(every_steps=5)).fit()
    over = in_time(60.0).model_copy(update={"started": time.time() - 3600})
    state = replace(run, budget=over).fit().state
    assert state.step == (7 if trained else 1)
    assert state.dev_loss is not None


def test_a_limit_of_steps_ends_a_budget_early_with_its_whole_schedule(tmp_path: Path) -> None:
    train = IN_TIME.model_copy(update={"max_steps": 20})
    schedule = ScheduleConfig(kind="linear", warmup_steps=2)
    run = ToyRun(tmp_path, train, schedule=schedule, budget=in_time(9999.0, most_steps=20))
    assert run.fit().state.step == 20
    assert [one.step for one in events_of(run, "validated")] == [4, 8, 12, 16, 20]
    rates = [one.payload["learning_rate"] for one in events_of(run, "train_interval")]
    assert rates[-1] == pytest.approx(learning_rate(19, schedule, d_model=16, max_steps=20))


def test_the_clock_asks_first_after_19_times_the_save_that_a_budget_expects(tmp_path: Path) -> None:
    config = CheckpointConfig(every_steps=10_000, every_minutes=1e-9)
    train = IN_TIME.model_copy(update={"max_steps": 20})
    for save_s, first in ((0.0, "minutes"), (60.0, "best")):
        folder = tmp_path / str(save_s)
        run = ToyRun(folder, train, config, budget=in_time(9999.0, most_steps=20, save_s=save_s))
        run.fit()
        reasons = [one.payload["reason"] for one in events_of(run, "checkpoint_written")]
        assert reasons[0] == first
