"""Clipping, scaling, skipping and averaging against PyTorch's own, unfused and step by step."""

from __future__ import annotations

import copy
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from dragoman.training.config import OptimizerConfig
from dragoman.training.optimizer import (
    Ema,
    LossScaler,
    apply_gradients,
    gradient_norm,
    make_optimizer,
)

STEPS = 5


def make_model() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 10), nn.LayerNorm(10), nn.Linear(10, 3))


def fill_gradients(model: nn.Module, step: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(step)
    for weight in model.parameters():
        weight.grad = scale * torch.randn(weight.shape, generator=generator)


def assert_same_weights(model: nn.Module, other: nn.Module) -> None:
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["adam", "adamw"])
@pytest.mark.parametrize("clip_norm", [0.0, 0.5, 1e6])
@pytest.mark.parametrize("loss_scale", [None, 1024.0])
def test_steps_are_pytorchs(
    kind: Literal["adam", "adamw"], clip_norm: float, loss_scale: float | None
) -> None:
    ours, theirs = make_model(), make_model()
    config = OptimizerConfig(kind=kind, weight_decay=0.1, beta2=0.997)
    optimizer = make_optimizer(ours, config)
    reference = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind](
        [
            {"params": [w for w in theirs.parameters() if w.ndim == 2], "weight_decay": 0.1},
            {"params": [w for w in theirs.parameters() if w.ndim == 1], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.997),
        eps=1e-9,
        fused=False,
        foreach=False,
    )
    scale = None if loss_scale is None else torch.tensor(loss_scale)
    for step in range(STEPS):
        fill_gradients(ours, step, loss_scale or 1.0)
        fill_gradients(theirs, step)
        rate = 0.01 / (step + 1)
        norm = gradient_norm(ours.parameters()) / (loss_scale or 1.0)
        skipped = apply_gradients(
            optimizer, norm, learning_rate=rate, clip_norm=clip_norm, loss_scale=scale
        )
        their_norm = nn.utils.clip_grad_norm_(
            theirs.parameters(), clip_norm if clip_norm > 0 else float("inf")
        )
        for group in reference.param_groups:
            group["lr"] = rate
        reference.step()
        torch.testing.assert_close(norm, their_norm)
        assert skipped.item() == 0.0
    assert_same_weights(ours, theirs)


def test_vectors_do_not_decay() -> None:
    model = make_model()
    optimizer = make_optimizer(model, OptimizerConfig(kind="adamw", weight_decay=0.5))
    before = copy.deepcopy(model)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    apply_gradients(optimizer, torch.tensor(0.0), learning_rate=0.1, clip_norm=0.0, loss_scale=None)
    for now, then in zip(model.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(now, then * 0.95 if then.ndim == 2 else then)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_with_a_bad_gradient_changes_nothing(bad: float) -> None:
    model = make_model()
    optimizer = make_optimizer(model, OptimizerConfig())

    def step(poison: float) -> Tensor:
        fill_gradients(model, 1)
        bias = model[0].bias.grad
        assert isinstance(bias, Tensor)
        bias[0] += poison
        norm = gradient_norm(model.parameters())
        return apply_gradients(optimizer, norm, learning_rate=0.1, clip_norm=1.0, loss_scale=None)

    assert step(0.0).item() == 0.0
    weights = copy.deepcopy(model.state_dict())
    moments = copy.deepcopy(optimizer.state_dict()["state"])
    assert step(bad).item() == 1.0
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, weights[name])
    for index, state in optimizer.state_dict()["state"].items():
        for name, tensor in state.items():
            assert torch.equal(tensor, moments[index][name]), name


def test_loss_scale_moves_as_pytorchs_grad_scaler() -> None:
    overflows = [True, False, True] + [False] * 4500 + [True, True]
    device = torch.device("cpu")
    ours = LossScaler(device)
    theirs = torch.amp.GradScaler("cpu")
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for overflow in overflows:
        theirs.scale(weight.sum()).backward()  # type: ignore[no-untyped-call]
        weight.grad = torch.full_like(weight, float("inf") if overflow else 0.0)
        theirs.step(optimizer)
        theirs.update()
        ours.update(torch.tensor(float(overflow)))
    assert ours.scale.item() == theirs.get_scale() == 2.0**14


def test_loss_scaler_goes_on_from_its_state() -> None:
    device = torch.device("cpu")
    scaler, resumed = LossScaler(device), LossScaler(device)
    for _ in range(LossScaler.GROWTH_INTERVAL - 1):
        scaler.update(torch.tensor(0.0))
    resumed.load_state_dict(scaler.state_dict())
    resumed.update(torch.tensor(0.0))
    assert resumed.scale.item() == 2.0**17


def test_ema_equals_pytorchs_after_its_warmup() -> None:
    model = make_model()
    ours = Ema(model, decay=0.6)
    average_all = torch.optim.swa_utils.get_ema_multi_avg_fn(0.6)  # type: ignore[no-untyped-call]
    theirs = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=average_all)
    theirs.update_parameters(model)
    for step in range(100, 110):
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight))
        ours.update(step)
        theirs.update_parameters(model)
    for name, average in theirs.module.named_parameters():
        torch.testing.assert_close(ours.weights()[name], average)


def test_ema_forgets_the_random_start() -> None:
    model = nn.Linear(1, 1)
    ema = Ema(model, decay=0.9999)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(3.0)
    for step in range(100):
        ema.update(step)
    for average in ema.weights().values():
        torch.testing.assert_close(average, torch.full_like(average, 3.0), rtol=1e-3, atol=1e-3)


def test_ema_is_in_the_model_only_inside_the_block() -> None:
    model = nn.Linear(1, 1)
    ema = Ema(model, decay=0.5)
    start = model.weight.item()
    with torch.no_grad():
        model.weight.fill_(5.0)
    with ema.in_model():
        assert model.weight.item() == start
    assert model.weight.item() == 5.0
    assert ema.weights()["weight"].item() == start
