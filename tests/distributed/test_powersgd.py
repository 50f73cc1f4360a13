"""PowerSGD against PyTorch's own hook, on ranks of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

from dragoman.cluster import step_time
from dragoman.distributed.config import DistributedConfig, PowersgdConfig
from dragoman.distributed.powersgd import PowersgdSync
from dragoman.distributed.strategies import gradient_sync
from dragoman.distributed.world import World
from ranks import run_ranks

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
    config = DistributedConfig(strategy="powersgd", powersgd=PowersgdConfig(rank=RANK))
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


def test_it_computes_what_pytorch_does() -> None:
    ours = run_ranks(_ours, world_size=2)
    theirs = run_ranks(_theirs, ours[0][2], world_size=2)
    shapes = [tuple(weight.shape) for weight in _model().parameters()]
    for (seen, sent, _), expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(torch.tensor(seen), torch.tensor(expected), rtol=1e-3, atol=1e-4)
        assert sent == UPDATES * step_time.powersgd_bytes(shapes, rank=RANK)
    assert PowersgdSync.own_optimizer is False
