"""Multi-head attention (Vaswani et al. 2017, section 3.2).

Shapes: N tokens in a flat list, B rows, Q cells of a query row, L cells of a key row, D model
width, H heads, K width of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.model.config import ModelConfig
from dragoman.model.layout import Layout


def projection(d_in: int, *d_outs: int, bias: bool) -> nn.Linear:
    """One linear layer for several projections of the same input, side by side in its output.

    Each of them is initialised by itself (Xavier uniform): as one matrix of their joint height
    they would start too small.
    """
    linear = nn.Linear(d_in, sum(d_outs), bias=bias)
    for weight in torch.split(linear.weight, list(d_outs)):
        nn.init.xavier_uniform_(weight)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear


class SelfAttention(nn.Module):
    """Every token of a row looks at the tokens of that row; with `causal`, at the earlier ones.

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
        """x_ND -> what attention adds to it, also (N, D)."""
        x_BL3D = split(layout.rows(self.query_key_value(x_ND)), 3)
        query_BHLK, key_BHLK, value_BHLK = (
            split_heads(x_BLD, self.num_heads) for x_BLD in x_BL3D.unbind(2)
        )
        # Padding is at the end of a row, where causal attention does not look.
        key_mask = None if self.causal or layout.real_BL is None else layout.real_BL[:, None, None]
        mixed_BHLK = F.scaled_dot_product_attention(
            query_BHLK,
            key_BHLK,
            value_BHLK,
            attn_mask=key_mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal,
        )
        mixed_ND: Tensor = self.output(layout.flatten(join_heads(mixed_BHLK)))
        return mixed_ND


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
        """x_ND, memory_MD (M source tokens) -> what attention adds to x_ND."""
        query_BHQK = split_heads(layout.rows(self.query(x_ND)), self.num_heads)
        memory_BL2D = split(memory_layout.rows(self.key_value(memory_MD)), 2)
        key_BHLK, value_BHLK = (
            split_heads(x_BLD, self.num_heads) for x_BLD in memory_BL2D.unbind(2)
        )
        real_BL = memory_layout.real_BL
        mixed_BHQK = F.scaled_dot_product_attention(
            query_BHQK,
            key_BHLK,
            value_BHLK,
            attn_mask=None if real_BL is None else real_BL[:, None, None],
            dropout_p=self.dropout if self.training else 0.0,
        )
        mixed_ND: Tensor = self.output(layout.flatten(join_heads(mixed_BHQK)))
        return mixed_ND


def split(x: Tensor, parts: int) -> Tensor:
    """(..., parts * X) -> (..., parts, X), a view."""
    return x.view(*x.shape[:-1], parts, x.shape[-1] // parts)


def split_heads(x_BLD: Tensor, num_heads: int) -> Tensor:
    """(B, L, D) -> (B, H, L, K), a view."""
    return split(x_BLD, num_heads).transpose(1, 2)


def join_heads(x_BHLK: Tensor) -> Tensor:
    """(B, H, L, K) -> (B, L, D)."""
    return x_BHLK.transpose(1, 2).flatten(2)
