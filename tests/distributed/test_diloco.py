"""DiLoCo against its definition, computed in one process with PyTorch's own optimizers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from dragoman.distributed import diloco
from dragoman.distributed.config import DilocoConfig, DistributedConfig
from dragoman.distributed.gradient_sync import GradientSync
from dragoman.distributed.strategies import gradient_sync
from dragoman.distributed.world import World
from ranks import run_ranks

WIDTH = 6
STEPS = 25
RATE = 0.02
DECAY = 0.3
PART = 5
"""Size of the parts of the 49 weights, which lie across their borders."""
Wire = Literal["fp4", "bf16", "fp32"]


KINDS: dict[str, Callable[[nn.Module], torch.optim.Adam]] = {
    "Adam": lambda model: torch.optim.Adam(model.parameters(), lr=RATE),
    "decaying Adam": lambda model: torch.optim.Adam(
        model.parameters(), lr=RATE, weight_decay=DECAY
    ),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY),
}


def _model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def _rows(step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, WIDTH, generator=generator)


def _loss(model: nn.Module, step: int, rank: int) -> Tensor:
    rows = _rows(step, rank)
    return (model(rows).squeeze(1) - rows.sum(1)).square().mean()  # type: ignore[no-any-return]


def _rate(step: int) -> float:
    """A schedule that rises and falls."""
    return RATE * (1 + 0.5 * math.sin(step))


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def _update(sync: GradientSync, optimizer: torch.optim.Optimizer, world: World, step: int) -> None:
    _set_rate(optimizer, _rate(step + 1) * sync.rate_factor)
    optimizer.zero_grad()
    with sync.micro_step(last=True):
        (_loss(sync.module, step, world.rank) * sync.loss_factor / world.world_size).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    sync.after_update(step + 1, learning_rate=_rate(step + 1))


def _trained(world: World, wire: Wire, settings: dict[str, Any], kind: str = "Adam") -> Any:
    model = _model()
    optimizer = KINDS[kind](model)
    config = DistributedConfig(strategy="diloco", diloco=DilocoConfig(wire=wire, **settings))
    settled = []
    in_parts = mock.patch.object(diloco, "CPU_PART", PART)
    with in_parts, gradient_sync(config, model, world) as sync:
        sync.attach(optimizer)
        for step in range(STEPS):
            _update(sync, optimizer, world, step)
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
    inner = [torch.optim.Adam(model.parameters(), lr=RATE) for model in models]
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
            _set_rate(optimizer, _rate(step))
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


@pytest.mark.system
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
def test_sgd_computes_the_weights_of_the_published_algorithm(
    hosts: list[int], settings: dict[str, Any]
) -> None:
    world_size = sum(hosts)
    sgd = settings | {"outer": "sgd"}
    results = run_ranks(_trained, "fp32", sgd, world_size=world_size, hosts=hosts)
    firsts = [sum(hosts[:number]) for number in range(len(hosts))]
    replicas = [list(range(f, f + n)) for f, n in zip(firsts, hosts, strict=True)]
    if len(hosts) == 1:  # on one host, each rank is a replica
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


@pytest.mark.system
@pytest.mark.parametrize(
    ("outer", "wire", "most"),
    [("sgd", "bf16", 0.02), ("adam", "bf16", 0.08), ("adam", "fp4", 0.3)],
)
@pytest.mark.parametrize("hosts", [[1, 1], [2, 1]])
def test_rounding_leads_to_nearly_the_same_place(
    outer: str, wire: Wire, most: float, hosts: list[int]
) -> None:
    settings = {"every": 6, "fragments": 3, "delay": 1, "outer": outer}
    exact, rounded = (
        run_ranks(_trained, one, settings, world_size=sum(hosts), hosts=hosts)
        for one in ("fp32", wire)
    )
    assert rounded[0][1] == rounded[1][1], "global weights are the same to the bit"
    ends = exact[0][2], rounded[0][2]
    assert ends[0] != ends[1]
    moved, moved_rounded = (torch.tensor(end) - _flat(_model()) for end in ends)
    assert (moved - moved_rounded).norm() < most * moved.norm()


def _whole_batch(kind: str, num_ranks: int) -> Tensor:
    model = _model()
    optimizer = KINDS[kind](model)
    for step in range(STEPS):
        _set_rate(optimizer, _rate(step + 1))
        optimizer.zero_grad()
        losses = [_loss(model, step, rank) for rank in range(num_ranks)]
        torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return _flat(model)


@pytest.mark.parametrize("kind", ["Adam", "decaying Adam", "AdamW"])
@pytest.mark.parametrize("hosts", [[1, 1], [2, 1]])
def test_outer_adam_of_every_step_is_adam_on_the_whole_batch(hosts: list[int], kind: str) -> None:
    settings = {"every": 1, "fragments": 1, "delay": 0}
    results = run_ranks(_trained, "fp32", settings, kind, world_size=sum(hosts), hosts=hosts)
    expected = _whole_batch(kind, sum(hosts))
    for local, shared, finished, settled, ends in results:
        for found in (local, shared, finished):
            torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-4, atol=1e-5)
        assert shared == results[0][1], "global weights are the same to the bit"
        assert (settled, ends) == (list(range(1, STEPS + 1)), [True])


class _Replica:
    """One replica of the reference for the outer Adam; its sums are plain sums of gradients."""

    def __init__(self, ranks: list[int], num_ranks: int, *, decay: float) -> None:
        self.model = _model()
        self.ranks, self.num_ranks = ranks, num_ranks
        self.factor = num_ranks / len(ranks)
        self.decay = decay
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.summed = torch.zeros_like(_flat(self.model))

    def step(self, step: int) -> None:
        self.optimizer.zero_grad()
        losses = torch.stack([_loss(self.model, step - 1, rank) for rank in self.ranks])
        (losses.sum() / self.num_ranks).backward()  # type: ignore[no-untyped-call]
        for weight in self.model.parameters():
            weight.data *= 1 - _rate(step) * self.decay
        _set_rate(self.optimizer, _rate(step) * self.factor)
        self.optimizer.step()
        self.summed += torch.cat([w.grad.flatten() for w in self.model.parameters()])  # type: ignore[union-attr]

    def moments(self, kind: str) -> Tensor:
        state = self.optimizer.state
        return torch.cat([state[w][kind].flatten() for w in self.model.parameters()])

    def correct(self, kind: str, span: slice, change: Tensor) -> None:
        flat = self.moments(kind)
        flat[span] += change
        start = 0
        for weight in self.model.parameters():
            part = flat[start : start + weight.numel()]
            self.optimizer.state[weight][kind] = part.view_as(weight).clone()
            start += weight.numel()

    def take(self, span: slice) -> list[Tensor]:
        """The sums that it sends, and its weights and moments at that time."""
        sent = self.summed[span].clone()
        self.summed[span] = 0
        moments = [self.moments(kind)[span] for kind in ("exp_avg", "exp_avg_sq")]
        return [sent, _flat(self.model)[span].clone(), *moments]


class _AdamReference:
    """Replicas in one process, by the formulas of `outer_adam`, in a loop over their steps."""

    def __init__(
        self,
        replicas: list[list[int]],
        *,
        every: int,
        fragments: int,
        delay: int,
        decay: float,
    ) -> None:
        num_ranks = sum(map(len, replicas))
        self.replicas = [_Replica(ranks, num_ranks, decay=decay) for ranks in replicas]
        self.decay = decay
        self.shared = _flat(self.replicas[0].model).clone()
        self.first, self.second = torch.zeros_like(self.shared), torch.zeros_like(self.shared)
        size = len(self.shared)
        bounds = [round(size * part / fragments) for part in range(fragments + 1)]
        self.spans = [slice(*pair) for pair in pairwise(bounds)]
        self.sent_at = [0] * fragments
        self.gap, self.delay = every // fragments, delay

    def run(self) -> None:
        under_way: dict[int, tuple[int, list[list[Tensor]]]] = {}
        for step in range(1, STEPS + 1):
            for replica in self.replicas:
                replica.step(step)
            if step in under_way:
                self.receive(*under_way.pop(step), sent=step - self.delay, now=step)
            if step % self.gap == 0:
                turn = (step // self.gap - 1) % len(self.spans)
                taken = [replica.take(self.spans[turn]) for replica in self.replicas]
                if self.delay == 0:
                    self.receive(turn, taken, sent=step, now=step)
                else:
                    under_way[step + self.delay] = turn, taken

    def receive(self, turn: int, taken: list[list[Tensor]], *, sent: int, now: int) -> None:
        span, steps = self.spans[turn], sent - self.sent_at[turn]
        self.sent_at[turn] = sent
        beta1, beta2 = 0.9, 0.999
        gradient = torch.stack([one[0] for one in taken]).sum(0)
        first, second = self.first[span], self.second[span]
        squared = gradient**2 / steps
        if sent > steps:
            corrected = first / (1 - beta1 ** (sent - steps))
            squared -= (steps - 1) * corrected * gradient / steps
        squared = torch.maximum(squared, (gradient / steps) ** 2)
        second.copy_(beta2**steps * second + (1 - beta2**steps) * squared)
        root = (second / (1 - beta2**sent)).sqrt() + 1e-8
        movement = torch.zeros_like(first)
        for k in range(1, steps + 1):  # m after k steps, each of which has a share of the gradient
            movement += beta1**k * first + (1 - beta1**k) * gradient / steps
        first.copy_(beta1**steps * first + (1 - beta1**steps) * gradient / steps)
        middle = sent - (steps - 1) / 2
        rate = sum(_rate(step) for step in range(sent - steps + 1, sent + 1)) / steps
        self.shared[span] *= (1 - rate * self.decay) ** steps
        self.shared[span] -= rate * movement / root / (1 - beta1**middle)
        for replica, (_, weights, own_first, own_second) in zip(self.replicas, taken, strict=True):
            flat = _flat(replica.model)
            flat[span] += self.shared[span] - weights
            nn.utils.vector_to_parameters(flat, replica.model.parameters())
            late = now - sent
            replica.correct("exp_avg", span, beta1**late * (first / replica.factor - own_first))
            replica.correct("exp_avg_sq", span, beta2**late * (second - own_second))


@pytest.mark.parametrize(
    ("hosts", "settings"),
    [
        ([1, 1], {"every": 4, "fragments": 1, "delay": 0}),
        ([1, 1], {"every": 3, "fragments": 3, "delay": 1}),
        ([2, 1], {"every": 6, "fragments": 2, "delay": 2}),
        ([3], {"every": 6, "fragments": 3, "delay": 2}),
    ],
)
@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_outer_adam_computes_its_formulas(
    hosts: list[int], settings: dict[str, int], kind: str
) -> None:
    results = run_ranks(_trained, "fp32", settings, kind, world_size=sum(hosts), hosts=hosts)
    replicas = [[0, 1], [2]] if hosts == [2, 1] else [[rank] for rank in range(sum(hosts))]
    decay = DECAY if kind == "AdamW" else 0.0
    reference = _AdamReference(replicas, **settings, decay=decay)
    reference.run()
    for replica, ranks in zip(reference.replicas, replicas, strict=True):
        for rank in ranks:
            local, shared, _, settled, ends = results[rank]
            expected = _flat(replica.model)
            torch.testing.assert_close(torch.tensor(local), expected, rtol=1e-3, atol=1e-5)
            torch.testing.assert_close(torch.tensor(shared), reference.shared, rtol=1e-3, atol=1e-5)
            assert shared == results[0][1], "global weights are the same to the bit"
            gap = settings["every"] // settings["fragments"]
            assert settled == list(range(gap + settings["delay"], STEPS + 1, gap))
            assert ends == [True]


def _state(sync: GradientSync, optimizer: torch.optim.Adam) -> dict[str, Any]:
    """A copy of all that a checkpoint holds."""
    moments = [optimizer.state[weight] for weight in sync.module.parameters()]
    kept = {
        "weights": sync.weights(),
        "moments": moments,
        "shared": sync.shared_state(),
        "own": sync.own_state(),
    }
    return copy.deepcopy(kept)


def _ends(sync: GradientSync) -> list[list[float]]:
    """The weights of this replica, the global ones, and those after the end of training."""
    local, shared = _flat(sync.module), torch.cat([w.flatten() for w in sync.weights()])
    sync.finish()
    return [local.tolist(), shared.tolist(), _flat(sync.module).tolist()]


def _resumed(world: World, settings: dict[str, Any], kind: str, step: int, lost: list[str]) -> Any:
    """How a run ends, and how one from its state after a step does; some of that is lost."""
    config = DistributedConfig(strategy="diloco", diloco=DilocoConfig(wire="fp32", **settings))
    in_parts = mock.patch.object(diloco, "CPU_PART", PART)
    state: dict[str, Any] = {}
    found: list[Any] = []
    for first in (0, step):
        model = _model()
        optimizer = KINDS[kind](model)
        with in_parts, gradient_sync(config, model, world) as sync:
            sync.attach(optimizer)
            if state:
                for weight, saved, moments in zip(
                    model.parameters(), state["weights"], state["moments"], strict=True
                ):
                    weight.data.copy_(saved)
                    optimizer.state[weight] = moments
                if "shared" in lost:  # `sync` keeps the moments of the whole batch there
                    for name, weight in model.named_parameters():
                        for moment in ("exp_avg", "exp_avg_sq"):
                            shared = state["shared"][f"{name}/{moment}"]
                            optimizer.state[weight][moment] = shared.clone()
                found.append(sync.wrote(state["own"]))
                own = None if "own" in lost else state["own"]
                sync.load_state({} if "shared" in lost else state["shared"], own, step=step)
            for number in range(first, STEPS):
                if number == step and not state:
                    assert sync.settled
                    state = _state(sync, optimizer)
                _update(sync, optimizer, world, number)
            found.append(_ends(sync))
    return found


@pytest.mark.parametrize(
    ("settings", "step"),
    [
        ({"every": 6, "fragments": 3, "delay": 1}, 11),
        ({"every": 6, "fragments": 3, "delay": 2}, 12),  # the next fragment is due already
        ({"every": 4, "fragments": 1, "delay": 0}, 8),
    ],
)
@pytest.mark.parametrize("outer", [{}, {"outer": "sgd", "outer_momentum": 0.6}])
def test_a_run_goes_on_from_its_state_to_the_same_bits(
    settings: dict[str, Any], step: int, outer: dict[str, Any]
) -> None:
    for whole, wrote, resumed in run_ranks(
        _resumed, settings | outer, "AdamW", step, [], world_size=3, hosts=[2, 1]
    ):
        assert wrote
        assert resumed == whole


@pytest.mark.parametrize("lost", [["own"], ["own", "shared"]])
def test_other_ranks_go_on_with_the_shared_state(lost: list[str]) -> None:
    """Or with the optimizer alone, if another strategy wrote the checkpoint."""
    settings = {"every": 1, "fragments": 1, "delay": 0}
    arguments = (settings, "decaying Adam", 8, lost)
    expected = _whole_batch("decaying Adam", 2)
    for _, _, ends in run_ranks(_resumed, *arguments, world_size=2, hosts=[1, 1]):
        for end in ends:
            torch.testing.assert_close(torch.tensor(end), expected, rtol=1e-4, atol=1e-5)


def _small_beside_large(world: World, wire: Wire) -> list[float]:
    """The global weights after steps in which one gradient is 1 and all others 0.003."""
    model = nn.Linear(16, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    settings = DilocoConfig(wire=wire, every=2, fragments=1, delay=0)
    config = DistributedConfig(strategy="diloco", diloco=settings)
    slopes = torch.full((1, 16), 0.003)
    slopes[0, 0] = 1.0
    with gradient_sync(config, model, world) as sync:
        sync.attach(optimizer)
        for step in range(1, 25):
            _set_rate(optimizer, RATE * sync.rate_factor)
            optimizer.zero_grad()
            with sync.micro_step(last=True):
                loss = sync.module(slopes).sum() * sync.loss_factor / world.world_size
                loss.backward()
            optimizer.step()
            sync.after_update(step, learning_rate=RATE)
        return torch.cat([weight.flatten() for weight in sync.weights()]).tolist()


def test_rounding_errors_of_four_bits_are_sent_later() -> None:
    """Beside a gradient of 1 one of 0.003 is sent as 0: only the sum of what was lost gets there.

    Were it thrown away, these weights would never move.
    """
    exact, rounded = (
        run_ranks(_small_beside_large, wire, world_size=2, hosts=[1, 1])[0]
        for wire in ("fp32", "fp4")
    )
    assert rounded[0] == pytest.approx(exact[0], rel=0.2)
    for weight, exact_weight in zip(rounded[1:], exact[1:], strict=True):
        assert 0.1 < weight / exact_weight < 3
