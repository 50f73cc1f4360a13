"""When training is stopped as diverged, and that it is not when it is healthy."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.base.errors import DivergenceError
from dragoman.corpus.shards import EOS
from dragoman.data.batch import Batch
from dragoman.data.loader import Update
from dragoman.model.transformer import Transformer
from dragoman.training.config import CheckpointConfig, TrainConfig
from dragoman.training.divergence import LossTrend, Problem, diverged
from toy_fit import ToyRun
from toy_task import ToyPairs

PIECES = 4000
PLANTED_AT = 150
EASY = ToyPairs(300, vocab_size=30, longest=6, seed=1)


def judged(losses: Iterable[float], *, pieces: int = PIECES) -> tuple[int, Problem] | None:
    """The step at which these losses, one per step, are called diverged, and why."""
    trend = LossTrend()
    for step, loss in enumerate(losses, start=1):
        after = trend.after(loss, step=step)
        problem = trend.problem(after, untrained_loss=math.log(pieces))
        if problem is not None:
            return step, problem
        trend = after
    return None


def noisy(level: Callable[[int], float], *, steps: int, noise: float, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [level(step) + draw.gauss(0, noise) for step in range(steps)]


def test_an_easy_first_batch_does_not_stop_a_flat_run() -> None:
    """A fine-tuning with a flat loss was stopped: its first batch was 7% easier than the others."""
    flat = noisy(lambda _step: 2.3, steps=400, noise=0.15)
    assert judged([1.2, *flat]) is None


@pytest.mark.parametrize("noise", [0.01, 0.3, 1.0])
def test_noise_does_not_stop_a_run_however_wide_it_is(noise: float) -> None:
    for seed in range(20):
        assert judged(noisy(lambda _step: 2.1, steps=400, noise=noise, seed=seed)) is None


@pytest.mark.parametrize(
    "level",
    [
        pytest.param(
            lambda step: 8.6 if step < 300 else 8.6 - 0.01 * (step - 300), id="slow start"
        ),
        pytest.param(lambda step: 3 if step < 200 else 3.6, id="a rate that is raised again"),
        pytest.param(lambda step: 4.5 if 200 <= step < 270 else 3, id="70 updates of a high loss"),
        pytest.param(lambda step: 9.0 if 200 <= step < 218 else 2.5, id="a spike that goes by"),
        pytest.param(lambda step: 9 - 6 * (1 - math.exp(-step / 50)), id="from the beginning"),
    ],
)
def test_harmless_loss_curves_are_no_divergence(level: Callable[[int], float]) -> None:
    assert judged(noisy(level, steps=500, noise=0.1)) is None


@pytest.mark.parametrize("share", [0.45, 0.5, 0.55])
def test_batches_of_two_kinds_are_no_divergence(share: float) -> None:
    """About as many medians of 40 are of one kind as of the other."""
    for seed in range(5):
        draw = random.Random(seed)
        kinds = [3.3 if draw.random() < share else 5.1 for _ in range(2000)]
        assert judged([kind + draw.gauss(0, 0.4) for kind in kinds]) is None


def test_a_rise_is_noticed_and_dated() -> None:
    found = judged(noisy(lambda step: 2.1 if step < 200 else 5.9, steps=400, noise=0.15))
    assert found is not None
    step, problem = found
    assert 200 < step <= 225
    assert problem.since == 201
    for words in ("is 4.", "mean of 40 updates", "was 2.", "since step 201"):
        assert words in problem.text


def test_a_rise_right_after_the_first_update_is_noticed() -> None:
    found = judged([2.1, *noisy(lambda _step: 6.0, steps=100, noise=0.2)])
    assert found is not None
    assert found[0] == 40
    assert found[1].since == 2


def test_a_slow_rise_is_noticed_as_nothing_follows_it() -> None:
    """An average that moves with the loss would never be far below it."""
    assert judged(noisy(lambda step: 2.1 + step * 0.002, steps=2000, noise=0.1)) is not None


def test_less_is_enough_when_it_lasts() -> None:
    """Targets of other sources took a model a sixth of the way back, and it stayed there."""
    found = judged(noisy(lambda step: 3.7 if step < 200 else 4.47, steps=400, noise=0.2))
    assert found is not None
    assert 300 < found[0] <= 325
    assert abs(found[1].since - 201) <= 2


@pytest.mark.parametrize(
    ("dev_loss", "training", "stopped"),
    [(5.0, 5.0, True), (5.0, 3.0, False), (3.2, 5.0, False), (3.2, 3.9, False)],
)
def test_a_high_dev_loss_is_divergence_only_beside_a_high_training_loss(
    dev_loss: float, training: float, stopped: bool
) -> None:
    """A dev loss that rises alone is overfitting, or a text of another kind."""
    trend = LossTrend()
    for step, loss in enumerate([3.9, *noisy(lambda _step: training, steps=60, noise=0.1)], 1):
        trend = trend.after(loss, step=step)
    found = trend.dev_problem(dev_loss, best=3.0, best_step=0, untrained_loss=math.log(PIECES))
    assert (found is not None) == stopped
    if found is not None:
        assert found.since == 1


def test_the_checkpoint_to_go_back_to_is_older_than_the_problem() -> None:
    paths = [Path(f"step-{step:07d}") for step in (0, 100, 200, 300)]
    problem = Problem("it rose", since=201)
    assert str(diverged(problem, step=310, checkpoints=paths)).endswith("checkpoint: step-0000200")
    assert str(diverged(problem, step=310, checkpoints=paths[3:])).endswith("none was written")


def test_the_trend_is_read_as_it_was_written() -> None:
    trend = LossTrend()
    for step, loss in enumerate(noisy(lambda _step: 3.0, steps=130, noise=0.1), 1):
        trend = trend.after(loss, step=step)
    assert trend.lowest_mean is not None
    assert LossTrend.model_validate_json(trend.model_dump_json()) == trend


def garbage(update: Update) -> Update:
    def change(batch: Batch) -> Batch:
        drawn = torch.randint_like(batch.target_BT, EOS + 1, EASY.vocab_size)
        return replace(batch, target_BT=torch.where(batch.target_BT > EOS, drawn, batch.target_BT))

    if update.update_index < PLANTED_AT:
        return update
    return replace(update, micro_batches=[change(batch) for batch in update.micro_batches])


def nan_weight(step: int, model: Transformer) -> None:
    if step == PLANTED_AT:
        with torch.no_grad():
            next(model.parameters())[5, 5] = math.nan


def toy(folder: Path) -> ToyRun:
    return ToyRun(
        folder,
        TrainConfig(max_steps=350, log_every_steps=100, validate_every_steps=100, seed=3),
        CheckpointConfig(every_steps=25, keep_last=100),
        pairs=EASY,
        rate_factor=lambda step: 4.0,
    )


@pytest.mark.system
@pytest.mark.parametrize(
    "plant",
    [
        pytest.param({"rate_factor": lambda step: 800.0 if step >= PLANTED_AT else 4.0}, id="rate"),
        pytest.param({"change_update": garbage}, id="garbage"),
        pytest.param({"before_update": nan_weight}, id="NaN weight"),
    ],
)
def test_a_planted_divergence_is_stopped_with_one_line(
    tmp_path: Path, plant: dict[str, Any]
) -> None:
    with pytest.raises(DivergenceError) as caught:
        replace(toy(tmp_path), **plant).fit()
    message = str(caught.value)
    stopped_at = int(message.removeprefix("step ").partition(":")[0])
    assert PLANTED_AT < stopped_at <= PLANTED_AT + 200
    since = int(message.partition("since step ")[2].split()[0].rstrip(",;."))
    assert abs(since - PLANTED_AT) <= 10
    for words in ("training loss", "schedule.peak_learning_rate", f"step-{PLANTED_AT:07d}"):
        assert words in message
    assert "\n" not in message


@pytest.mark.system
def test_the_same_run_without_a_plant_goes_to_its_end(tmp_path: Path) -> None:
    assert toy(tmp_path).fit().reason == "max_steps"


@pytest.mark.system
def test_a_stage_with_harder_text_is_no_divergence(tmp_path: Path) -> None:
    """Nor is it one after an interruption in that stage."""
    whole = replace(toy(tmp_path), change_update=garbage, stage_starts=(0, PLANTED_AT))
    train = whole.train.model_copy(update={"max_steps": PLANTED_AT + 25})
    assert replace(whole, train=train).fit().reason == "max_steps"
    result = whole.fit()
    assert result.reason == "max_steps"
    assert result.state.loss_trend.first is not None
    assert result.state.loss_trend.first > 2.5, "the first loss of that stage"


@pytest.mark.system
def test_a_trend_over_several_stages_of_an_older_version_is_dropped(tmp_path: Path) -> None:
    """Its run was aborted in the later stage, and could not go on from any checkpoint."""
    whole = replace(toy(tmp_path), change_update=garbage)
    train = whole.train.model_copy(update={"max_steps": PLANTED_AT + 10})
    trend = replace(whole, train=train).fit().state.loss_trend
    assert trend.steps[0] < PLANTED_AT < trend.steps[-1]
    assert replace(whole, stage_starts=(0, PLANTED_AT)).fit().reason == "max_steps"


@pytest.mark.system
def test_a_divergence_in_a_later_stage_is_noticed(tmp_path: Path) -> None:
    run = replace(toy(tmp_path), change_update=garbage, stage_starts=(0, PLANTED_AT // 2))
    with pytest.raises(DivergenceError):
        run.fit()
