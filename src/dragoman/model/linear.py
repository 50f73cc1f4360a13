"""Linear layers whose backward pass suits a CPU.

Shapes: N tokens in a flat list, I inputs, O outputs of a layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dragoman.model.products import project


class Linear(nn.Linear):
    """torch.nn.Linear; on a CPU in fp32 its gradients come out of better shaped products."""

    def forward(self, x_NI: Tensor) -> Tensor:
        """x_NI -> x_NI @ weight.T + bias, (N, O)."""
        if not x_NI.is_cpu or torch.is_autocast_enabled("cpu"):
            return super().forward(x_NI)
        if torch.is_grad_enabled():
            return _Linear.apply(x_NI, self.weight, self.bias)  # type: ignore[no-untyped-call,no-any-return]
        return project(x_NI, self.weight, self.bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_NI, weight_OI)
        ctx.has_bias = bias_O is not None
        return project(x_NI, weight_OI, bias_O)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NO: Tensor) -> tuple[Tensor | None, ...]:
        x_NI, weight_OI = ctx.saved_tensors
        grad_x_NI = project(grad_NO, weight_OI.t()) if ctx.needs_input_grad[0] else None
        if grad_NO.shape[1] > x_NI.shape[1]:
            # A product is a seventh faster with its longer side last; to turn it costs little.
            grad_weight_OI = project(x_NI.t(), grad_NO.t()).t()
        else:
            grad_weight_OI = project(grad_NO.t(), x_NI.t())
        # As a product, the sum over tokens reads memory faster than `sum` does.
        ones_N = grad_NO.new_ones(grad_NO.shape[0])
        return grad_x_NI, grad_weight_OI, torch.mv(grad_NO.t(), ones_N) if ctx.has_bias else None
