"""DiLoCo against its definition, computed in one process with PyTorch's own optimizers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from dragoman.distributed.config import DilocoConfig, DistributedConfig
from dragoman.distributed.gradient_sync import gradient_sync
from dragoman.distributed.world import World
from ranks import run_ranks

WIDTH = 6
STEPS = 25
Wire = Literal["int8", "bf16", "fp32"]


def _model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def _rows(step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, WIDTH, generator=generator)


def _loss(model: nn.Module, step: int, rank: int) -> Tensor:
    rows = _rows(step, rank)
    return (model(rows).squeeze(1) - rows.sum(1)).square().mean()  # type: ignore[no-any-return]


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def _trained(world: World, wire: Wire, settings: dict[str, Any]) -> Any:
    model = _model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    config = DistributedConfig(strategy="diloco", diloco=DilocoConfig(wire=wire, **settings))
    settled = []
    with gradient_sync(config, model, world) as sync:
        for step in range(STEPS):
            optimizer.zero_grad()
            with sync.micro_step(last=True):
                (
                    _loss(sync.module, step, world.rank) * sync.loss_factor / world.world_size
                ).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            sync.after_update(step + 1)
            if sync.settled:
                settled.append(step + 1)
        local, shared = _flat(model).tolist(), torch.cat([w.flatten() for w in sync.weights()])
        sync.finish()
        ends = [torch.equal(_flat(model), torch.cat([w.flatten() for w in sync.weights()]))]
        return [local, shared.tolist(), _flat(model).tolist(), settled, ends]


def _reference(
    replicas: list[list[int]],
    *,
    every: int,
    fragments: int,
    delay: int,
    rate: float,
    momentum: float,
) -> tuple[list[Tensor], Tensor]:
    """Each replica's weights and the global ones after STEPS; a replica is a list of ranks."""
    models = [_model() for _ in replicas]
    inner = [torch.optim.Adam(model.parameters(), lr=0.02) for model in models]
    shared = _flat(models[0]).clone()
    size, gap, num_ranks = len(shared), every // fragments, sum(map(len, replicas))
    bounds = [round(size * part / fragments) for part in range(fragments + 1)]
    outer = []
    for first, last in pairwise(bounds):
        part = nn.Parameter(shared[first:last])
        nesterov = momentum > 0
        outer.append(torch.optim.SGD([part], lr=rate, momentum=momentum, nesterov=nesterov))
    sent: dict[int, tuple[int, Tensor, list[Tensor]]] = {}
    for step in range(1, STEPS + 1):
        for model, optimizer, ranks in zip(models, inner, replicas, strict=True):
            optimizer.zero_grad()
            torch.stack([_loss(model, step - 1, rank) for rank in ranks]).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if step % gap == 0:
            turn = (step // gap - 1) % fragments
            span = slice(bounds[turn], bounds[turn + 1])
            moved = [
                (shared[span] - _flat(model)[span]) * len(ranks) / num_ranks
                for model, ranks in zip(models, replicas, strict=True)
            ]
            sent[step + delay] = turn, torch.stack(moved).sum(0), [_flat(m)[span] for m in models]
        if step in sent:
            turn, mean, were = sent.pop(step)
            span = slice(bounds[turn], bounds[turn + 1])
            (parameter,) = outer[turn].param_groups[0]["params"]
            parameter.grad = mean
            outer[turn].step()
            for model, was in zip(models, were, strict=True):
                flat = _flat(model)
                flat[span] += shared[span] - was
                nn.utils.vector_to_parameters(flat, model.parameters())
    return [_flat(model) for model in models], shared


@pytest.mark.parametrize(
    ("hosts", "settings"),
    [
        ([1, 1], {"every": 4, "fragments": 1, "delay": 0}),
        ([1, 1], {"every": 6, "fragments": 3, "delay": 1}),
        ([2, 1], {"every": 6, "fragments": 2, "delay": 2}),
        (
            [1, 1, 1],
            {
                "every": 4,
                "fragments": 2,
                "delay": 1,
                "outer_momentum": 0.6,
                "outer_learning_rate": 0.7,
            },
        ),
        ([3], {"every": 4, "fragments": 4, "delay": 0, "outer_momentum": 0.9}),
    ],
)
def test_it_computes_what_was_published(hosts: list[int], settings: dict[str, Any]) -> None:
    world_size = sum(hosts)
    results = run_ranks(_trained, "fp32", settings, world_size=world_size, hosts=hosts)
    firsts = [sum(hosts[:number]) for number in range(len(hosts))]
    replicas = [list(range(f, f + n)) for f, n in zip(firsts, hosts, strict=True)]
    if len(hosts) == 1:  # where there is one host, each rank is a replica
        replicas = [[rank] for rank in range(world_size)]
    locals_, shared = _reference(
        replicas,
        every=settings["every"],
        fragments=settings["fragments"],
        delay=settings["delay"],
        rate=settings.get("outer_learning_rate", 1.0),
        momentum=settings.get("outer_momentum", 0.0),
    )
    mean = sum(
        local * len(ranks) / world_size for local, ranks in zip(locals_, replicas, strict=True)
    )
    gap = settings["every"] // settings["fragments"]
    for expected, ranks in zip(locals_, replicas, strict=True):
        for rank in ranks:
            local, outer, finished, settled, ends = results[rank]
            torch.testing.assert_close(torch.tensor(local), expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(torch.tensor(outer), shared, rtol=1e-4, atol=1e-5)
            assert outer == results[0][1], "global weights are the same to the bit"
            assert settled == list(range(gap + settings["delay"], STEPS + 1, gap))
            assert ends == [True]
            if STEPS % gap > settings["delay"]:  # nothing was on its way at the end
                torch.testing.assert_close(torch.tensor(finished), mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wire", ["int8", "bf16"])
@pytest.mark.parametrize("hosts", [[1, 1], [2, 1]])
def test_rounded_movements_lead_to_the_same_place(wire: Wire, hosts: list[int]) -> None:
    settings = {"every": 6, "fragments": 3, "delay": 1}
    exact, rounded = (
        run_ranks(_trained, one, settings, world_size=sum(hosts), hosts=hosts)
        for one in ("fp32", wire)
    )
    assert rounded[0][1] == rounded[1][1], "global weights are the same to the bit"
    ends = exact[0][2], rounded[0][2]
    assert ends[0] != ends[1]
    moved, moved_rounded = (torch.tensor(end) - _flat(_model()) for end in ends)
    assert (moved - moved_rounded).norm() < 0.02 * moved.norm()
