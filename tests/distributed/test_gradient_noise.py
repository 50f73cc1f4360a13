"""The gradient noise scale, from micro-batches and from ranks."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

import pytest
import torch

from dragoman.data.config import DataConfig
from dragoman.data.loader import Update
from dragoman.distributed.gradient_sync import NoSync
from dragoman.distributed.world import World
from dragoman.training.config import TrainConfig
from dragoman.training.gradient_noise import MEASURE_EVERY, signal_and_noise
from dragoman.training.interval import IntervalSums, train_interval
from dragoman.training.optimizer import LossScaler
from ranks import run_ranks
from token_batches import random_batch, row_of
from toy_task import TOY_MODEL, ToyPairs, ToyTraining, toy_training

PAIRS = ToyPairs(200)
MODEL = TOY_MODEL.model_copy(update={"dropout": 0.0})


def mean_gradient(training: ToyTraining, update: Update, *, own: int | None = None) -> torch.Tensor:
    """The mean over an update's target tokens, or of one micro-batch, by plain PyTorch."""
    batches = update.micro_batches if own is None else [update.micro_batches[own]]
    training.model.zero_grad()
    for batch in batches:
        training.model(batch).loss.backward()
    tokens = sum(batch.num_target_tokens for batch in batches)
    weights = [weight.grad for weight in training.model.parameters() if weight.grad is not None]
    found = torch.cat([weight.flatten() for weight in weights]) / tokens
    training.model.zero_grad()
    return found


@pytest.mark.system
def test_the_estimates_have_no_bias() -> None:
    """Gradients of 64 weights whose mean and variance are known; 3 and 12 tokens."""
    torch.manual_seed(3)
    true = torch.full((64,), 0.25)  # of square 4
    found = []
    for _ in range(20_000):
        tokens = true + 2.0 * torch.randn(12, 64)  # noise of 64 x 4 a token
        part = tokens[:3].sum(0) / 12
        found.append(signal_and_noise(part.norm(), tokens.mean(0).norm(), part_tokens=3, tokens=12))
    signal, noise = torch.stack(found).mean(0).tolist()
    assert signal == pytest.approx(4.0, rel=0.02)
    assert noise == pytest.approx(256.0, rel=0.02)


def test_micro_batches_give_the_signal_and_noise_of_plain_gradients() -> None:
    batch = random_batch([3, 7, 5, 2], [4, 1, 6, 6], vocab_size=PAIRS.vocab_size)
    rows = [row_of(batch, row) for row in range(4)]
    update = Update(0, 0, rows, batch.num_target_tokens, batch.num_source_tokens, 4, 40)
    with toy_training(PAIRS, model=MODEL) as training:
        whole = mean_gradient(training, update).norm().item() ** 2
        part = mean_gradient(training, update, own=0).norm().item() ** 2
        first, tokens = rows[0].num_target_tokens, batch.num_target_tokens
        result = training.step(update, learning_rate=1e-3)
    assert result.signal_and_noise is not None
    signal, noise = result.signal_and_noise.tolist()
    # Both equations of the paper's appendix: E|g|^2 = |G|^2 + tr(S) / B for both batches.
    assert signal + noise / tokens == pytest.approx(whole, rel=1e-4)
    assert signal + noise / first == pytest.approx(part, rel=1e-4)


def test_a_loss_scale_that_grows_after_the_step_changes_neither() -> None:
    """With fp16; the scale doubles after 2,000 good steps, of which this is the last."""
    batch = random_batch([3, 7, 5, 2], [4, 1, 6, 6], vocab_size=PAIRS.vocab_size)
    rows = [row_of(batch, row) for row in range(4)]
    update = Update(0, 0, rows, batch.num_target_tokens, batch.num_source_tokens, 4, 40)
    found = []
    for good_steps in (0, LossScaler.GROWTH_INTERVAL - 1):
        train = TrainConfig(max_steps=20, precision="fp16")
        with toy_training(PAIRS, model=MODEL, train=train) as training:
            assert training.step.scaler is not None
            scale = training.step.scaler.scale.item()
            training.step.scaler.load_state_dict({"scale": scale, "good_steps": good_steps})
            result = training.step(update, learning_rate=1e-3)
            assert result.signal_and_noise is not None
            found.append(result.signal_and_noise)
    torch.testing.assert_close(found[0], found[1])


def test_one_micro_batch_alone_says_nothing_and_not_every_update_is_measured() -> None:
    with toy_training(PAIRS, model=MODEL) as training:
        (alone,) = islice(training.stream, 1)
        assert training.step(alone, learning_rate=1e-3).signal_and_noise is None
    data = DataConfig(batch_tokens=None, batch_sentences=4, accumulate=2)
    with toy_training(PAIRS, model=MODEL, data=data) as training:
        sums = IntervalSums(
            world=training.step.world,
            sync=NoSync(training.model),
            timer=training.step.timer,
        )
        measured = []
        for update in islice(training.stream, 2 * MEASURE_EVERY):
            result = training.step(update, learning_rate=1e-3)
            training.step.timer.step_done()
            sums.add(update, result)
            if result.signal_and_noise is not None:
                measured.append(result.signal_and_noise.tolist())
        event = train_interval([sums.take()], learning_rate=1e-3, loss_scale=None)
    assert len(measured) == 2
    assert event.gradient_signal == pytest.approx(sum(one[0] for one in measured) / 2)
    assert event.gradient_noise == pytest.approx(sum(one[1] for one in measured) / 2)


def _on_ranks(world: World) -> Any:
    data = DataConfig(batch_tokens=None, batch_sentences=6)
    with toy_training(PAIRS, model=MODEL, data=data, world=world) as training:
        (update,) = islice(training.stream, 1)
        own = mean_gradient(training, update, own=0) if world.world_size == 1 else None
        result = training.step(update, learning_rate=1e-3)
        found = result.signal_and_noise
        return {
            "own": None if own is None else own.norm().item(),
            "norm": result.gradient_norm.item(),
            "tokens": update.global_target_tokens,
            "own_tokens": update.micro_batches[0].num_target_tokens,
            "found": None if found is None else found.tolist(),
        }


def test_ranks_give_it_as_well() -> None:
    ranks = run_ranks(_on_ranks, world_size=2)
    assert sum(rank["own_tokens"] for rank in ranks) == ranks[0]["tokens"]
    parts = []
    for rank in ranks:
        signal, noise = rank["found"]
        assert signal + noise / rank["tokens"] == pytest.approx(rank["norm"] ** 2, rel=1e-3)
        parts.append(math.sqrt(signal + noise / rank["own_tokens"]) * rank["own_tokens"])
    # The whole gradient is the sum of both shares.
    whole = ranks[0]["norm"] * ranks[0]["tokens"]
    assert abs(parts[0] - parts[1]) <= whole <= parts[0] + parts[1]
