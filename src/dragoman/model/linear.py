"""Linear layers whose backward pass suits a CPU.

Shapes: N tokens in a flat list, I inputs, O outputs of a layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Linear(nn.Linear):
    """torch.nn.Linear; on a CPU in fp32 its gradients come out of better shaped products."""

    def forward(self, x_NI: Tensor) -> Tensor:
        """x_NI -> x_NI @ weight.T + bias, (N, O)."""
        if x_NI.is_cpu and torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu"):
            return _Linear.apply(x_NI, self.weight, self.bias)  # type: ignore[no-untyped-call,no-any-return]
        return super().forward(x_NI)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_NI, weight_OI)
        ctx.has_bias = bias_O is not None
        return nn.functional.linear(x_NI, weight_OI, bias_O)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NO: Tensor) -> tuple[Tensor | None, ...]:
        x_NI, weight_OI = ctx.saved_tensors
        grad_x_NI = torch.mm(grad_NO, weight_OI) if ctx.needs_input_grad[0] else None
        if grad_NO.shape[1] > x_NI.shape[1]:
            # A product is a seventh faster with its longer side last; to turn it costs little.
            grad_weight_OI = torch.mm(x_NI.t(), grad_NO).t()
        else:
            grad_weight_OI = torch.mm(grad_NO.t(), x_NI)
        # As a product, the sum over tokens reads memory faster than `sum` does.
        ones_N = grad_NO.new_ones(grad_NO.shape[0])
        return grad_x_NI, grad_weight_OI, torch.mv(grad_NO.t(), ones_N) if ctx.has_bias else None
