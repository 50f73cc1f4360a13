"""`powersgd`: gradients travel as products of thin matrices (Vogels et al. 2019), for experts.

For each matrix of gradients M (m x n), plus the error that this rank has kept from the last update:

    P = sum over ranks of M Q        m x r, then made orthonormal
    Q = sum over ranks of M^T P      n x r, where the next update starts
    gradient = P Q^T,  error = M - gradient / ranks

The error is kept without the loss scale of fp16, which changes. If a gradient overflows, all ranks
skip the step: then Q and the error stay as they were.

Vectors, and matrices that would not shrink by half, are sent as they are. PyTorch's own hook is
bound to DistributedDataParallel, which reorders its buckets after the first update: its state does
not fit the buckets of a resumed run. Here each weight has its own state, by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dragoman.distributed.gradient_sync import GradientSync, Tensors
from dragoman.distributed.wire import POWERSGD_LEAST_GAIN, ring_bytes
from dragoman.distributed.world import World

_SEED: Final = 0


class PowersgdSync(GradientSync):
    """Sums low-rank approximations of gradients over all ranks; their errors are sent later.

    rank: columns of the thin matrices.
    """

    def __init__(self, model: nn.Module, world: World, *, rank: int) -> None:
        super().__init__(model)
        self._world = world
        generator = torch.Generator().manual_seed(_SEED)
        self._factors: list[_Factors] = []
        self._plain: list[nn.Parameter] = []
        for name, weight in model.named_parameters():
            if not weight.requires_grad:
                continue
            if _is_compressed(weight.shape, rank):
                self._factors.append(_Factors.start(name, weight, rank, generator))
            else:
                self._plain.append(weight)

    @contextmanager
    def micro_step(self, *, last: bool) -> Iterator[None]:
        """All micro-steps add to the local gradients; the last then sums them over all ranks."""
        yield
        if last:
            self._reduce()

    def shared_state(self) -> dict[str, Tensor]:
        """The matrices from which the next update starts."""
        return {factors.name: factors.q for factors in self._factors}

    def own_state(self) -> dict[str, Tensor]:
        """The compression errors that this rank adds to its next gradient (error feedback), by
        weight."""
        return {factors.name: factors.error for factors in self._factors}

    def load_state(self, shared: Tensors, own: Tensors | None, *, step: int) -> None:
        """Without saved errors, a rank starts without any."""
        for factors in self._factors:
            if factors.name in shared:
                factors.q.copy_(shared[factors.name])
            if own is not None:
                factors.error.copy_(own[factors.name])

    @torch.no_grad()
    def _reduce(self) -> None:
        factors, scale = self._factors, self.loss_scale
        matrices = [one.owed(scale) for one in factors]
        plain = [_gradient(weight) for weight in self._plain]
        ps = [matrix @ one.q for matrix, one in zip(matrices, factors, strict=True)]
        summed = self._sum([*plain, *ps])
        for weight, gradient in zip(self._plain, summed, strict=False):
            weight.grad = gradient
        ps = [torch.linalg.qr(p).Q for p in summed[len(plain) :]]
        qs = self._sum([matrix.T @ p for matrix, p in zip(matrices, ps, strict=True)])
        # P is orthonormal, so this is also the norm of the gradient, which decides on the step.
        finite = torch.nn.utils.get_total_norm([*summed[: len(plain)], *qs]).isfinite()
        for one, matrix, p, q in zip(factors, matrices, ps, qs, strict=True):
            gradient = p @ q.T
            if scale is None:
                one.q.copy_(q)
                torch.sub(matrix, gradient, alpha=1 / self._world.world_size, out=one.error)
            else:
                error = torch.sub(matrix, gradient, alpha=1 / self._world.world_size).div_(scale)
                one.q.copy_(torch.where(finite, q, one.q))
                one.error.copy_(torch.where(finite, error, one.error))
            one.weight.grad = gradient.view_as(one.weight)

    def _sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sum of each over all ranks, in one collective."""
        if not tensors:
            return []
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        size = flat.numel() * flat.element_size()
        self.bytes_sent += round(ring_bytes(size, num_ranks=self._world.world_size))
        self.waits.start()
        dist.all_reduce(flat)
        self.waits.stop()
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]


@dataclass(frozen=True, slots=True)
class _Factors:
    """One compressed weight as a matrix of m x n: q is n x r, error m x n."""

    name: str
    weight: nn.Parameter
    q: Tensor
    error: Tensor

    @classmethod
    def start(
        cls, name: str, weight: nn.Parameter, rank: int, generator: torch.Generator
    ) -> _Factors:
        """A random start, the same on every rank."""
        error = torch.zeros_like(weight.detach().flatten(1))
        drawn = torch.randn(error.shape[1], rank, generator=generator)
        q = torch.linalg.qr(drawn).Q.contiguous()
        return cls(name, weight, q.to(weight.device), error)

    def owed(self, scale: Tensor | None) -> Tensor:
        """The gradient plus the kept error; scale: the loss scale that is in the gradient."""
        error = self.error if scale is None else self.error * scale
        return _gradient(self.weight).flatten(1) + error


def _gradient(weight: nn.Parameter) -> Tensor:
    return torch.zeros_like(weight) if weight.grad is None else weight.grad


def _is_compressed(shape: torch.Size, rank: int) -> bool:
    rows, columns = shape[0], shape[1:].numel()
    return len(shape) > 1 and (rows + columns) * rank * POWERSGD_LEAST_GAIN < rows * columns
