"""PowerSGD against PyTorch's own hook, on ranks of its own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

from dragoman.cluster import step_time
from dragoman.distributed.config import DistributedConfig, PowersgdConfig
from dragoman.distributed.powersgd import PowersgdSync
from dragoman.distributed.strategies import gradient_sync
from dragoman.distributed.world import World
from dragoman.training.config import TrainConfig
from ranks import run_ranks
from toy_task import TOY_MODEL, ToyPairs, toy_training

WIDTH, RANK, UPDATES = 24, 2, 5


def _model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, 3))


def _loss(model: nn.Module, update: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(10 * update + rank)
    return model(torch.randn(8, WIDTH, generator=generator)).square().sum()  # type: ignore[no-any-return]


def _gradients(model: nn.Module) -> list[float]:
    return [
        number
        for w in model.parameters()
        if w.grad is not None
        for number in w.grad.flatten().tolist()
    ]


def _ours(world: World) -> Any:
    model = _model()
    torch.manual_seed(world.rank)  # what is random must be so in the same way on every rank
    config = _config()
    seen = []
    with gradient_sync(config, model, world) as sync:
        starts = {name: q.tolist() for name, q in sync.shared_state().items()}
        for update in range(UPDATES):
            model.zero_grad()
            with sync.micro_step(last=True):
                _loss(model, update, world.rank).backward()  # type: ignore[no-untyped-call]
            seen.append(_gradients(model))
        return [seen, sync.bytes_sent, starts]


def _theirs(world: World, starts: dict[str, Any]) -> Any:
    """The hook under DistributedDataParallel, started from our matrices."""
    model = _model()
    state = powersgd.PowerSGDState(
        None, matrix_approximation_rank=RANK, start_powerSGD_iter=2, orthogonalization_epsilon=0
    )
    state.use_error_feedback = True
    parallel = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=100)
    parallel.register_comm_hook(state, powersgd.powerSGD_hook)
    seen = []
    for update in range(-2, UPDATES):
        if update == 0:
            # Its matrices lie end to end in the order of the bucket, which is that of the weights.
            order = [name for name, _ in model.named_parameters() if name in starts]
            state.q_memory_dict[0] = torch.cat([torch.tensor(starts[n]).flatten() for n in order])
            state.p_memory_dict[0] = torch.empty(
                sum(model.get_parameter(name).shape[0] * RANK for name in order)
            )
            state.error_dict[0] = torch.zeros(sum(w.numel() for w in model.parameters()))
        parallel.zero_grad()
        _loss(parallel, update, world.rank).backward()  # type: ignore[no-untyped-call]
        if update >= 0:
            seen.append([number * world.world_size for number in _gradients(model)])
    return seen


def test_powersgd_computes_the_gradients_of_pytorchs_hook() -> None:
    ours = run_ranks(_ours, world_size=2)
    assert ours[0][2] == ours[1][2]
    theirs = run_ranks(_theirs, ours[0][2], world_size=2)
    shapes = [tuple(weight.shape) for weight in _model().parameters()]
    for (seen, sent, _), expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(torch.tensor(seen), torch.tensor(expected), rtol=1e-3, atol=1e-4)
        assert sent == UPDATES * step_time.powersgd_bytes(shapes, rank=RANK)
    assert PowersgdSync.own_optimizer is False


def _config() -> DistributedConfig:
    return DistributedConfig(strategy="powersgd", powersgd=PowersgdConfig(rank=RANK))


def _in_parts(world: World) -> Any:
    """Gradients of updates from two micro-batches, and of the same ones from one."""
    found = []
    for parts in (True, False):
        model = _model()
        with gradient_sync(_config(), model, world) as sync:
            for update in range(2):
                model.zero_grad()
                first, second = (_loss(model, 2 * update + part, world.rank) for part in (0, 1))
                if parts:
                    with sync.micro_step(last=False):
                        first.backward()  # type: ignore[no-untyped-call]
                    with sync.micro_step(last=True):
                        second.backward()  # type: ignore[no-untyped-call]
                else:
                    with sync.micro_step(last=True):
                        (first + second).backward()  # type: ignore[no-untyped-call]
            found.append([_gradients(model), sync.bytes_sent])
    return found


def test_micro_batches_are_one_update() -> None:
    for parts, whole in run_ranks(_in_parts, world_size=2):
        assert parts[0] == pytest.approx(whole[0], rel=1e-4, abs=1e-5)
        assert parts[1] == whole[1]


def _resumed(world: World, lost: list[str]) -> Any:
    """Gradients of the last updates, and of a model that goes on from the state before them."""
    found: list[Any] = []
    state: tuple[dict[str, Tensor], dict[str, Tensor] | None] | None = None
    for first in (0, 2):
        model = _model()
        with gradient_sync(_config(), model, world) as sync:
            if state is not None:
                assert state[1] is not None
                found.append(sync.wrote(state[1]))
                shared, own = ({} if "shared" in lost else state[0]), state[1]
                sync.load_state(shared, None if "own" in lost else own, step=first)
            for update in range(first, UPDATES):
                if update == 2 and state is None:
                    state = copy.deepcopy((sync.shared_state(), sync.own_state()))
                model.zero_grad()
                with sync.micro_step(last=True):
                    _loss(model, update, world.rank).backward()  # type: ignore[no-untyped-call]
            found.append(_gradients(model))
            assert sync.waits.total_s() > 0
    return found


def test_a_run_goes_on_from_its_state_to_the_same_bits() -> None:
    for whole, wrote, resumed in run_ranks(_resumed, [], world_size=2):
        assert wrote
        assert resumed == whole


@pytest.mark.parametrize("lost", [["own"], ["own", "shared"]])
def test_other_ranks_begin_without_errors(lost: list[str]) -> None:
    """Their sums are other ones, but still of every rank."""
    (whole, _, first), (_, _, second) = run_ranks(_resumed, lost, world_size=2)
    assert first == second
    assert first != whole
    gradients = torch.tensor(first), torch.tensor(whole)
    assert torch.cosine_similarity(*gradients, dim=0) > 0.5


class _Spare(nn.Module):
    """Weights that no output depends on, and one that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = _model()
        self.matrix = nn.Parameter(torch.ones(WIDTH, WIDTH))
        self.vector = nn.Parameter(torch.ones(WIDTH))
        self.frozen = nn.Parameter(torch.ones(WIDTH, WIDTH), requires_grad=False)

    def forward(self, rows: Tensor) -> Tensor:
        return self.layers(rows + 0 * self.frozen[0])  # type: ignore[no-any-return]


def _with_spare_weights(world: World) -> Any:
    model = _Spare()
    with gradient_sync(_config(), model, world) as sync:
        with sync.micro_step(last=True):
            _loss(model, 0, world.rank).backward()  # type: ignore[no-untyped-call]
        spare = [
            weight.grad is not None and weight.grad.abs().max().item()
            for weight in (model.matrix, model.vector)
        ]
        return [spare, model.frozen.grad is None, sorted(sync.own_state())]


def test_a_weight_without_a_gradient_counts_as_zero() -> None:
    for spare, frozen, compressed in run_ranks(_with_spare_weights, world_size=2):
        assert spare == [0.0, 0.0]
        assert frozen
        assert compressed == ["layers.0.weight", "matrix"]


def _scaled(world: World, is_scaled: bool) -> Any:
    """Gradients without the loss scale, which changes in each update."""
    model, seen = _model(), []
    with gradient_sync(_config(), model, world) as sync:
        for update in range(UPDATES):
            scale = torch.tensor(4.0**update if is_scaled else 1.0)
            sync.loss_scale = scale
            model.zero_grad()
            with sync.micro_step(last=True):
                (_loss(model, update, world.rank) * scale).backward()  # type: ignore[no-untyped-call]
            seen.append([number / scale.item() for number in _gradients(model)])
    return seen


def test_the_error_does_not_depend_on_the_loss_scale() -> None:
    scaled, plain = (run_ranks(_scaled, is_scaled, world_size=2) for is_scaled in (True, False))
    torch.testing.assert_close(torch.tensor(scaled), torch.tensor(plain), rtol=1e-3, atol=1e-4)


def _one_overflows(world: World) -> Any:
    """Which updates are skipped if the gradient of rank 1 overflows in one, and the state there."""
    skipped, kept = [], []
    with toy_training(
        ToyPairs(200),
        model=TOY_MODEL.model_copy(update={"d_model": 64, "d_ffn": 128}),
        train=TrainConfig(precision="fp16"),
        world=world,
        distributed=_config(),
    ) as training:
        scaler, sync = training.step.scaler, training.step.sync
        assert scaler is not None
        for number, update in zip(range(6), training.stream, strict=False):
            scaler.scale.fill_(1e30 if world.rank == 1 and number == 2 else 1.0)
            before = copy.deepcopy((sync.shared_state(), sync.own_state()))
            if training.step(update, learning_rate=1e-3).skipped.item():
                skipped.append(number)
            after = sync.shared_state(), sync.own_state()
            kept.append(
                all(
                    torch.equal(one, now[name])
                    for was, now in zip(before, after, strict=True)
                    for name, one in was.items()
                )
            )
        finite = all(weight.isfinite().all() for weight in training.model.parameters())
    return [skipped, kept, finite]


def test_an_overflow_is_forgotten_after_its_update() -> None:
    expected = [[2], [False, False, True, False, False, False], True]
    assert run_ranks(_one_overflows, world_size=2) == [expected, expected]
