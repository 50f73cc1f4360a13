"""The losses of a small training run, as they were when this was written.

A change here means that training changed: batches, initial weights, the loss, the gradient, the
optimizer or the schedule. If it is meant to, write the new numbers down. Dropout is off: its bits
may be drawn in any way. So is the bias of keys, whose gradient is only rounding.
"""

from __future__ import annotations

from itertools import islice

import pytest

from dragoman.data.config import DataConfig
from dragoman.training.config import OptimizerConfig, TrainConfig
from dragoman.training.schedule import ScheduleConfig, learning_rate
from toy_task import TOY_MODEL, ToyPairs, toy_training

SCHEDULE = ScheduleConfig(kind="noam", warmup_steps=20, noam_scale=0.5)
GOLDEN = [
    4.125,
    3.4013,
    3.3174,
    3.2528,
    3.1315,
    3.2696,
    3.2183,
    3.1334,
    3.1021,
    3.0083,
    2.7366,
    3.0038,
    2.8129,
]
OF_GROUPS = [
    4.1888,
    3.6364,
    3.2695,
    3.2001,
    3.1757,
    3.2043,
    3.103,
    3.0148,
    3.12,
    2.9825,
    2.8697,
    2.9144,
    2.8052,
]
"""With batches of several lengths."""
EVERY = 5


@pytest.mark.parametrize(("groups", "recorded"), [(1, GOLDEN), (4, OF_GROUPS)])
def test_the_loss_curve_equals_the_recorded_one(groups: int, recorded: list[float]) -> None:
    losses = []
    with toy_training(
        ToyPairs(400, seed=3),
        model=TOY_MODEL.model_copy(update={"dropout": 0.0, "attention_bias": False}),
        data=DataConfig(batch_tokens=150, accumulate=2, length_groups=groups),
        train=TrainConfig(seed=7),
        optimizer=OptimizerConfig(kind="adamw", weight_decay=0.01, clip_norm=1.0),
    ) as training:
        for update in islice(training.stream, 61):
            step = update.update_index
            rate = learning_rate(step, SCHEDULE, d_model=TOY_MODEL.d_model, max_steps=100)
            result = training.step(update, learning_rate=rate)
            if step % EVERY == 0:
                losses.append(result.loss.item() / update.global_target_tokens)
    assert losses == pytest.approx(recorded, rel=2e-3)
