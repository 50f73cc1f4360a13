"""diloco with gradients that are rare, too large, or not numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dragoman.distributed.config import DilocoConfig, DistributedConfig
from dragoman.distributed.strategies import gradient_sync
from dragoman.distributed.world import World
from dragoman.training.config import OptimizerConfig, TrainConfig
from ranks import run_ranks
from toy_task import ToyPairs, toy_training


def _rare_words(world: World, delay: int) -> Any:
    """The least second moment and the largest weight of embeddings of which a batch has few."""
    torch.manual_seed(1)
    words = nn.Embedding(200, 64)
    optimizer = torch.optim.Adam(words.parameters(), fused=True)
    settings = DilocoConfig(every=4 * delay, fragments=4, delay=delay)
    least = 0.0
    with gradient_sync(DistributedConfig(strategy="diloco", diloco=settings), words, world) as sync:
        sync.attach(optimizer)
        optimizer.param_groups[0]["lr"] = 1e-3 * sync.rate_factor
        for step in range(40):
            generator = torch.Generator().manual_seed(100 * step + world.rank)
            rows = words(torch.randint(0, 200, (25,), generator=generator))
            optimizer.zero_grad()
            with sync.micro_step(last=True):
                (rows * torch.randn(rows.shape, generator=generator)).mean().backward()
            optimizer.step()
            sync.after_update(step + 1, learning_rate=1e-3)
            least = min(least, optimizer.state[words.weight]["exp_avg_sq"].min().item())
    return [least, words.weight.abs().max().item()]


def test_a_word_that_four_bits_rounded_away_keeps_a_second_moment() -> None:
    for least, largest in run_ranks(_rare_words, 4, world_size=2, hosts=[1, 1]):
        assert least == 0.0
        assert largest < 10  # NaN is not


def _one_overflows(world: World, steps: int) -> Any:
    """The steps that are skipped if the gradient of rank 1 alone overflows in two of them."""
    config = DistributedConfig(
        strategy="diloco", diloco=DilocoConfig(every=4, fragments=2, delay=2)
    )
    skipped = []
    with toy_training(
        ToyPairs(200),
        train=TrainConfig(max_steps=steps, precision="fp16"),
        world=world,
        distributed=config,
    ) as training:
        scaler = training.step.scaler
        assert scaler is not None
        for number, update in zip(range(steps), training.stream, strict=False):
            scaler.scale.fill_(1e30 if world.rank == 1 and number in (0, 9) else 1.0)
            if training.step(update, learning_rate=1e-3).skipped.item():
                skipped.append(number)
        sync = training.step.sync
        shared = torch.cat([weight.flatten() for weight in sync.weights()])
        own = torch.cat([weight.detach().flatten() for weight in training.model.parameters()])
        assert shared.isfinite().all()
        assert own.isfinite().all()
        return [skipped, shared.tolist()]


def test_a_replica_whose_gradient_overflows_leaves_out_that_step_alone() -> None:
    first, second = run_ranks(_one_overflows, 20, world_size=2, hosts=[1, 1])
    assert (first[0], second[0]) == ([], [0, 9])
    assert first[1] == second[1], "global weights are the same to the bit"


def _clipped(world: World, clip_norm: float) -> Any:
    """The norm of the sum of what replicas send."""
    with toy_training(
        ToyPairs(200),
        optimizer=OptimizerConfig(clip_norm=clip_norm),
        world=world,
        distributed=DistributedConfig(
            strategy="diloco", diloco=DilocoConfig(every=1, fragments=1, delay=0, wire="fp32")
        ),
    ) as training:
        training.step(next(training.stream), learning_rate=1e-3)
        moments = training.step.sync.shared_state().items()
        first = torch.cat([tensor.flatten() for key, tensor in moments if key.endswith("exp_avg")])
        return first.norm().item() / (1 - OptimizerConfig().beta1)


def test_clipped_gradients_add_up_to_no_more_than_the_bound() -> None:
    norms = run_ranks(_clipped, 0.01, world_size=3, hosts=[2, 1])
    assert norms == norms[:1] * 3
    assert 0.5 < norms[0] / 0.01 < 1.0001


def _after_an_overflow(world: World) -> Any:
    """The shared mean of gradients, before and after an update that both ranks skip."""
    with toy_training(
        ToyPairs(200),
        train=TrainConfig(precision="fp16"),
        world=world,
        distributed=DistributedConfig(
            strategy="diloco", diloco=DilocoConfig(every=1, fragments=1, delay=0, wire="fp32")
        ),
    ) as training:
        scaler = training.step.scaler
        assert scaler is not None
        means = []
        for scale in (1.0, 1.0, 1e30):
            scaler.scale.fill_(scale)
            skipped = training.step(next(training.stream), learning_rate=1e-3).skipped.item()
            state = training.step.sync.shared_state().items()
            means.append(torch.cat([one.flatten() for key, one in state if key.endswith("avg")]))
        return [skipped, means[1].norm().item(), means[2].norm().item()]


def test_a_skipped_step_sends_no_gradient() -> None:
    for skipped, before, after in run_ranks(_after_an_overflow, world_size=2, hosts=[1, 1]):
        assert skipped
        assert abs(after / before - OptimizerConfig().beta1) < 1e-3
