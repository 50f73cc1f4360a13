"""Dropout (Srivastava et al. 2014), cheap on a CPU.

PyTorch draws one random number after another for dropout, which on a CPU takes a tenth of the
training time. Here one 64-bit draw decides about four elements. An element is dropped if its 16
bits lie below p * 65536, rounded, so p is met to within 1/131072. The kept elements are scaled for
this rounded p.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_STEPS = 1 << 16
"""Values of the 16 random bits of an element."""


def dropout(x: Tensor, p: float, *, training: bool) -> Tensor:
    """Zeroes each element with probability p and scales the rest by 1 / (1 - p), if training."""
    if not training or p == 0.0:
        return x
    return _Dropout.apply(x, None, p) if x.is_cpu else F.dropout(x, p)  # type: ignore[no-untyped-call]


def add_dropped(x: Tensor, added: Tensor, p: float, *, training: bool) -> Tensor:
    """x + dropout(added): a sub-layer's output joins the residual stream."""
    if not training or p == 0.0:
        return x + added
    if x.is_cpu:
        return _Dropout.apply(added, x, p)  # type: ignore[no-untyped-call,no-any-return]
    return x + F.dropout(added, p)


def keep_mask(shape: torch.Size, p: float) -> Tensor:
    """A mask in uint8 on the CPU: 1 with probability 1 - p, else 0.

    PyTorch's generator gives only the seed; the stream is NumPy's SFC64, twice as fast.
    """
    seed = int(torch.empty((), dtype=torch.int64).random_())
    num_words = -(-shape.numel() // 4)
    words = np.random.SFC64(seed).random_raw(num_words)
    bits = torch.from_numpy(words.view(np.int16))[: shape.numel()].view(shape)
    return (bits >= round(p * _STEPS) - _STEPS // 2).view(torch.uint8)


def keep_scale(p: float) -> float:
    """The factor of a kept element."""
    return _STEPS / (_STEPS - round(p * _STEPS))


class _Dropout(torch.autograd.Function):
    """dropout(x), or residual + dropout(x) in the same pass; only the mask is kept, in bytes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, p: float) -> Tensor:
        keep = keep_mask(x.shape, p)
        ctx.save_for_backward(keep)
        ctx.scale, ctx.dtype, ctx.has_residual = keep_scale(p), x.dtype, residual is not None
        if residual is None:
            return keep.to(x.dtype).mul_(x).mul_(ctx.scale)
        # A byte turns into a float faster than a bool does.
        factor = keep.to(residual.dtype)
        return torch.addcmul(residual, factor, x.to(residual.dtype), value=ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (keep,) = ctx.saved_tensors
        grad_x = keep.to(grad.dtype).mul_(grad).mul_(ctx.scale).to(ctx.dtype)
        return grad_x, grad if ctx.has_residual else None, None
