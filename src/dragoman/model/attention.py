"""Multi-head attention (Vaswani et al. 2017, section 3.2).

Shapes: N tokens in a flat list, B rows, Q cells of a query row, L cells of a key row, D model
width, H heads, K width of a head; I inputs and O outputs of a linear layer.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dragoman.model.config import ModelConfig
from dragoman.model.layout import Layout
from dragoman.model.packed_attention import packed_cross_attention, packed_self_attention
from dragoman.model.products import project
from dragoman.model.varlen_attention import varlen_attention


class Linear(nn.Linear):
    """torch.nn.Linear; on a CPU in fp32 its gradients come out of better shaped products."""

    def forward(self, x_NI: Tensor) -> Tensor:
        """x_NI -> x_NI @ weight.T + bias, (N, O)."""
        if not x_NI.is_cpu or torch.is_autocast_enabled("cpu"):
            return super().forward(x_NI)
        if torch.is_grad_enabled():
            return _LinearFunction.apply(x_NI, self.weight, self.bias)  # type: ignore[no-untyped-call,no-any-return]
        return project(x_NI, self.weight, self.bias)


class _LinearFunction(torch.autograd.Function):
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
            # A product is a seventh faster with its longer side last; transposing it costs little.
            grad_weight_OI = project(x_NI.t(), grad_NO.t()).t()
        else:
            grad_weight_OI = project(grad_NO.t(), x_NI.t())
        # As a product, the sum over tokens reads memory faster than `sum` does.
        ones_N = grad_NO.new_ones(grad_NO.shape[0])
        return grad_x_NI, grad_weight_OI, torch.mv(grad_NO.t(), ones_N) if ctx.has_bias else None


def projection(d_in: int, *d_outs: int, bias: bool) -> Linear:
    """One linear layer for several projections of the same input, side by side in its output.

    Each is initialised by itself (Xavier uniform): as one matrix of their joint height, they
    would start too small.
    """
    linear = Linear(d_in, sum(d_outs), bias=bias)
    for weight in torch.split(linear.weight, list(d_outs)):
        nn.init.xavier_uniform_(weight)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear


class SelfAttention(nn.Module):
    """Every token of a row looks at that row; with `causal`, only at itself and earlier tokens.

    query_key_value: (D) -> (3D), output: (D) -> (D); heads lie side by side in each D.
    """

    def __init__(self, config: ModelConfig, *, causal: bool) -> None:
        super().__init__()
        d, bias = config.d_model, config.attention_bias
        self.num_heads = config.num_heads
        self.causal = causal
        self.dropout = config.attention_dropout
        self.query_key_value = projection(d, d, d, d, bias=bias)
        self.output = projection(d, d, bias=bias)

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        """x_ND -> the output of attention, also (N, D)."""
        query_key_value_N3D = self.query_key_value(x_ND)
        dropout = self.dropout if self.training else 0.0
        if layout.ends_R is not None:
            query_NHK, key_NHK, value_NHK = split(
                split(query_key_value_N3D, 3), self.num_heads
            ).unbind(1)
            mixed_ND = varlen_attention(
                query_NHK, key_NHK, value_NHK, layout, layout, causal=self.causal
            )
        elif layout.packed:
            mixed_ND = packed_self_attention(
                query_key_value_N3D,
                layout,
                num_heads=self.num_heads,
                causal=self.causal,
                dropout=dropout,
            )
        else:
            query_BLD, key_BLD, value_BLD = split(layout.rows(query_key_value_N3D), 3).unbind(2)
            # Padding is at the end of a row, where causal attention does not look.
            mixed_ND = attend(
                query_BLD,
                key_BLD,
                value_BLD,
                num_heads=self.num_heads,
                key_mask_BL=None if self.causal else layout.real_BL,
                causal=self.causal,
                dropout=dropout,
            )
        added_ND: Tensor = self.output(mixed_ND)
        return added_ND


class CrossAttention(nn.Module):
    """Every target token looks at the encoder's output of its own sentence.

    query: (D) -> (D), key_value: (D) -> (2D), output: (D) -> (D); heads side by side in each D.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d, bias = config.d_model, config.attention_bias
        self.num_heads = config.num_heads
        self.dropout = config.attention_dropout
        self.query = projection(d, d, bias=bias)
        self.key_value = projection(d, d, d, bias=bias)
        self.output = projection(d, d, bias=bias)

    def forward(
        self, x_ND: Tensor, layout: Layout, memory_MD: Tensor, memory_layout: Layout
    ) -> Tensor:
        """x_ND, memory_MD (M source tokens) -> the output of attention, (N, D)."""
        query_ND, key_value_M2D = self.query(x_ND), self.key_value(memory_MD)
        dropout = self.dropout if self.training else 0.0
        if layout.ends_R is not None:
            query_NHK = split(query_ND, self.num_heads)
            key_MHK, value_MHK = split(split(key_value_M2D, 2), self.num_heads).unbind(1)
            mixed_ND = varlen_attention(query_NHK, key_MHK, value_MHK, layout, memory_layout)
        elif layout.packed:
            mixed_ND = packed_cross_attention(
                query_ND,
                layout,
                key_value_M2D,
                memory_layout,
                num_heads=self.num_heads,
                dropout=dropout,
            )
        else:
            key_BLD, value_BLD = split(memory_layout.rows(key_value_M2D), 2).unbind(2)
            mixed_ND = attend(
                layout.rows(query_ND),
                key_BLD,
                value_BLD,
                num_heads=self.num_heads,
                key_mask_BL=memory_layout.real_BL,
                dropout=dropout,
            )
        added_ND: Tensor = self.output(mixed_ND)
        return added_ND


def attend(
    query_BQD: Tensor,
    key_BLD: Tensor,
    value_BLD: Tensor,
    *,
    num_heads: int,
    dropout: float,
    key_mask_BL: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """PyTorch's attention over padded rows; returns the mixed values as a list (B * Q, D)."""
    query_BHQK, key_BHLK, value_BHLK = (
        split_heads(x, num_heads) for x in (query_BQD, key_BLD, value_BLD)
    )
    mixed_BHQK = F.scaled_dot_product_attention(
        query_BHQK,
        key_BHLK,
        value_BHLK,
        attn_mask=None if key_mask_BL is None else key_mask_BL[:, None, None],
        dropout_p=dropout,
        is_causal=causal,
    )
    return join_heads(mixed_BHQK).flatten(0, 1)


def split(x: Tensor, parts: int) -> Tensor:
    """(..., parts * X) -> (..., parts, X), a view."""
    return x.view(*x.shape[:-1], parts, x.shape[-1] // parts)


def split_heads(x_BLD: Tensor, num_heads: int) -> Tensor:
    """(B, L, D) -> (B, H, L, K), a view."""
    return split(x_BLD, num_heads).transpose(1, 2)


def join_heads(x_BHLK: Tensor) -> Tensor:
    """(B, H, L, K) -> (B, L, D)."""
    return x_BHLK.transpose(1, 2).flatten(2)
