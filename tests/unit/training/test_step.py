"""One update against plain PyTorch, and against itself in other forms."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice
from typing import Literal

import pytest
import torch
from torch import Tensor

from dragoman.data.config import DataConfig
from dragoman.data.loader import Update
from dragoman.distributed.gradient_sync import NoSync
from dragoman.distributed.world import World
from dragoman.model.config import ModelConfig
from dragoman.model.transformer import Transformer
from dragoman.training.config import OptimizerConfig, Precision, TrainConfig
from dragoman.training.step import TrainStep, seed_dropout
from token_batches import random_batch, row_of
from toy_task import ONE_RANK, TOY_MODEL, ToyPairs, ToyTraining, toy_training

PAIRS = ToyPairs(200)
# The gradient of a key's bias is zero but for rounding, which Adam would blow up to full steps.
NO_DROPOUT = TOY_MODEL.model_copy(update={"dropout": 0.0, "attention_bias": False})


def flat_weights(model: torch.nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def train(training: ToyTraining, num_updates: int) -> Tensor:
    for update in islice(training.stream, num_updates):
        training.step(update, learning_rate=1e-3)
    return flat_weights(training.model)


def whole_and_by_rows() -> tuple[Update, Update]:
    """One global batch as one micro-batch, and as a micro-batch a row."""
    batch = random_batch([3, 7, 5, 2], [4, 1, 6, 6], vocab_size=PAIRS.vocab_size)
    rows = [row_of(batch, row) for row in range(4)]
    return (
        Update(0, 0, [batch], batch.num_target_tokens, batch.num_source_tokens, 4, 40),
        Update(0, 0, rows, batch.num_target_tokens, batch.num_source_tokens, 4, 40),
    )


def test_updates_are_those_of_plain_pytorch() -> None:
    settings = OptimizerConfig(clip_norm=0.5)
    # More groups add up in another order, and Adam divides by gradients that are almost 0.
    one_length = DataConfig(batch_tokens=100, length_groups=1)
    with toy_training(PAIRS, model=NO_DROPOUT, optimizer=settings, data=one_length) as training:
        reference = Transformer(NO_DROPOUT, source_vocab_size=30, target_vocab_size=30)
        reference.load_state_dict(training.model.state_dict())
        adam = torch.optim.Adam(
            reference.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9, fused=False
        )
        for update in islice(training.stream, 10):
            result = training.step(update, learning_rate=1e-3)
            (batch,) = update.micro_batches
            logits = reference.logits(batch)
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1),
                batch.target_BT.flatten(),
                ignore_index=0,
                label_smoothing=NO_DROPOUT.label_smoothing,
            )
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
            adam.step()
            torch.testing.assert_close(result.loss / update.global_target_tokens, loss)
            torch.testing.assert_close(result.gradient_norm, norm, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(
            flat_weights(training.model), flat_weights(reference), rtol=1e-4, atol=1e-5
        )


def test_accumulated_micro_batches_are_one_large_batch() -> None:
    weights, results = [], []
    for update in whole_and_by_rows():
        with toy_training(PAIRS, model=NO_DROPOUT) as training:
            results.append(training.step(update, learning_rate=1e-3))
            weights.append(flat_weights(training.model))
    for name in ("loss", "gradient_norm"):
        torch.testing.assert_close(*(getattr(result, name) for result in results))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-5, atol=1e-6)


def test_training_repeats_bit_for_bit_from_any_state_of_the_generator() -> None:
    weights: list[Tensor] = []
    for _ in range(2):
        with toy_training(PAIRS, data=DataConfig(batch_tokens=50, accumulate=2)) as training:
            torch.rand(len(weights) + 1)
            weights.append(train(training, 5))
    assert torch.equal(weights[0], weights[1])


def test_dropout_differs_by_update_micro_batch_and_rank() -> None:
    def draw(*place: int) -> float:
        seed_dropout(*place)
        return torch.rand(1).item()

    places = [(1, 0, 0, 0), (2, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1)]
    assert len({draw(*place) for place in places}) == len(places)
    assert draw(*places[0]) == draw(*places[0])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_reduced_precision_stays_near_fp32(precision: Literal["bf16", "fp16"]) -> None:
    losses = []
    for kind in ("fp32", precision):
        config = TrainConfig(precision=kind)
        with toy_training(PAIRS, model=NO_DROPOUT, train=config) as training:
            losses.append(
                [
                    training.step(update, learning_rate=1e-3).loss / update.global_target_tokens
                    for update in islice(training.stream, 8)
                ]
            )
            assert all(weight.dtype == torch.float32 for weight in training.model.parameters())
    torch.testing.assert_close(torch.stack(losses[1]), torch.stack(losses[0]), rtol=0.02, atol=0.0)


def test_the_moments_of_fp16_are_those_of_unscaled_gradients() -> None:
    """They outlive the scale, which changes: a checkpoint may go on with another one."""
    moments = []
    for precision in ("fp32", "fp16"):
        config = TrainConfig(precision=precision)
        with toy_training(PAIRS, model=NO_DROPOUT, train=config) as training:
            train(training, 1)
            states = training.step.optimizer.state.values()
            moments.append(torch.cat([one["exp_avg"].flatten() for one in states]))
    exact, found = moments
    assert (found - exact).norm() < 0.05 * exact.norm()


def test_an_overflow_in_fp16_skips_the_update_and_halves_the_scale() -> None:
    with toy_training(PAIRS, train=TrainConfig(precision="fp16")) as training:
        scaler = training.step.scaler
        assert scaler is not None
        scaler.load_state_dict({"scale": 1e30, "good_steps": 0.0})
        before = flat_weights(training.model)
        first, second = islice(training.stream, 2)
        assert training.step(first, learning_rate=1e-3).skipped.item() == 1.0
        assert torch.equal(flat_weights(training.model), before)
        assert scaler.scale.item() == pytest.approx(5e29)
        scaler.load_state_dict({"scale": 1024.0, "good_steps": 0.0})
        result = training.step(second, learning_rate=1e-3)
        assert result.skipped.item() == 0.0
        assert 0.01 < result.gradient_norm.item() < 100.0
        assert not torch.equal(flat_weights(training.model), before)


def test_averaged_weights_follow_the_updates() -> None:
    with toy_training(PAIRS, train=TrainConfig(ema_decay=0.5)) as training:
        ema = training.step.ema
        assert ema is not None
        before = flat_weights(training.model)
        after = train(training, 1)
        average = torch.cat([weight.flatten() for weight in ema.weights().values()])
        torch.testing.assert_close(average, 0.1 * before + 0.9 * after)


class Recording(NoSync):
    """A strategy that keeps what it is called with."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        self.lasts: list[bool] = []
        self.updates: list[tuple[int, float]] = []
        self.optimizer: torch.optim.Adam | None = None

    def micro_step(self, *, last: bool) -> AbstractContextManager[None]:
        self.lasts.append(last)
        return super().micro_step(last=last)

    def attach(self, optimizer: torch.optim.Adam) -> None:
        self.optimizer = optimizer

    def after_update(
        self, step: int, *, learning_rate: float, skipped: Tensor | None = None
    ) -> None:
        self.updates.append((step, learning_rate))


def step_with(
    sync: Callable[[Transformer], NoSync] = NoSync,
    *,
    model: ModelConfig = NO_DROPOUT,
    world: World = ONE_RANK,
    train: TrainConfig | None = None,
    precision: Precision = "fp32",
) -> TrainStep:
    torch.manual_seed(1)
    transformer = Transformer(
        model, source_vocab_size=PAIRS.vocab_size, target_vocab_size=PAIRS.vocab_size
    )
    return TrainStep(
        transformer,
        sync=sync(transformer),
        train=train or TrainConfig(),
        precision=precision,
        optimizer=OptimizerConfig(clip_norm=0.0),
        world=world,
    )


def test_a_strategy_learns_when_to_send_and_when_an_update_is_made() -> None:
    step = step_with(Recording)
    assert isinstance(step.sync, Recording)
    assert step.sync.optimizer is step.optimizer
    _, by_rows = whole_and_by_rows()
    step(replace(by_rows, update_index=6), learning_rate=0.25)
    assert step.sync.lasts == [False, False, False, True]
    assert step.sync.updates == [(7, 0.25)]


def test_a_strategy_may_change_the_loss_and_the_rate() -> None:
    class Factors(NoSync):
        loss_factor = 4.0
        rate_factor = 0.5

    whole, _ = whole_and_by_rows()
    usual, changed = step_with(), step_with(Factors)
    before = flat_weights(usual.model)
    norm = usual(whole, learning_rate=0.5e-3).gradient_norm
    assert changed(whole, learning_rate=1e-3).gradient_norm == pytest.approx(2.0 * norm)
    # Adam's first step does not depend on the gradient's size.
    torch.testing.assert_close(
        flat_weights(changed.model), flat_weights(usual.model), rtol=1e-3, atol=1e-5
    )
    assert not torch.allclose(flat_weights(usual.model), before, rtol=1e-3, atol=1e-5)


def test_dropout_of_a_step_differs_by_seed_update_micro_batch_and_rank() -> None:
    whole, _ = whole_and_by_rows()
    twice = replace(whole, micro_batches=[*whole.micro_batches] * 2)

    def loss(update: Update, *, seed: int = 1, rank: int = 0) -> float:
        world = replace(ONE_RANK, rank=rank)
        step = step_with(model=TOY_MODEL, world=world, train=TrainConfig(seed=seed))
        return step(update, learning_rate=1e-3).loss.item()

    first = loss(whole)
    assert loss(whole) == first
    others = [
        loss(replace(whole, update_index=1)),
        loss(whole, seed=2),
        loss(whole, rank=1),
        loss(twice) - first,
    ]
    assert len({round(one, 3) for one in (first, *others)}) == 5


def test_the_seed_of_dropout_never_changes() -> None:
    """A run that an earlier version began draws on as it would have."""
    seed_dropout(1, 2, 3, 4)
    assert torch.initial_seed() == 11_333_822_478_459_283_371


def test_a_scaler_and_an_average_exist_only_if_asked_for() -> None:
    step = step_with()
    assert (step.scaler, step.ema) == (None, None)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", None), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_the_forward_pass_has_the_precision_of_the_recipe(
    precision: Literal["fp32", "bf16", "fp16"], dtype: torch.dtype | None
) -> None:
    step = step_with(precision=precision)
    seen: list[torch.dtype | None] = []

    def look(*_: object) -> None:
        on = torch.is_autocast_enabled("cpu")
        seen.append(torch.get_autocast_dtype("cpu") if on else None)

    step.model.register_forward_pre_hook(look)
    whole, _ = whole_and_by_rows()
    step(whole, learning_rate=1e-3)
    assert seen == [dtype]
