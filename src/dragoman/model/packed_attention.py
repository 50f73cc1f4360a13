"""Attention on a CPU, over many short rows: the aim is to move little memory.

Tokens are gathered from the flat list straight into rows of one head each, and back, so nothing is
transposed or filled with zeros on the way. The weights of short rows fit into the cache; they are
kept for the backward pass, which computes nothing twice.

Shapes: N query tokens, M key tokens, B rows, H heads, X = B * H rows of one head, Q and L cells of
a query row and of a key row, K width of a head, D = H * K.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dragoman.model.dropout import keep_mask, keep_scale
from dragoman.model.layout import Layout


def packed_self_attention(
    query_key_value_N3D: Tensor, layout: Layout, *, num_heads: int, causal: bool, dropout: float
) -> Tensor:
    """Mixed values (N, D) of tokens that look at the tokens of their own row."""
    if layout.groups is not None:
        parts = torch.split(query_key_value_N3D, [group.num_tokens for group in layout.groups])
        return torch.cat(
            [
                packed_self_attention(
                    part, group, num_heads=num_heads, causal=causal, dropout=dropout
                )
                for part, group in zip(parts, layout.groups, strict=True)
            ]
        )
    heads_3XLK = _to_heads(query_key_value_N3D, layout, parts=3, num_heads=num_heads)
    mixed_XLK = _Attend.apply(  # type: ignore[no-untyped-call]
        heads_3XLK, None, layout.causal_bias if causal else layout.padding_bias, layout, dropout
    )
    return _to_tokens(mixed_XLK, layout, num_heads=num_heads)


def packed_cross_attention(
    query_ND: Tensor,
    layout: Layout,
    key_value_M2D: Tensor,
    memory_layout: Layout,
    *,
    num_heads: int,
    dropout: float,
) -> Tensor:
    """Mixed values (N, D) of tokens that look at the same row of another layout."""
    if layout.groups is not None and memory_layout.groups is not None:
        queries = torch.split(query_ND, [group.num_tokens for group in layout.groups])
        memories = torch.split(key_value_M2D, [one.num_tokens for one in memory_layout.groups])
        return torch.cat(
            [
                packed_cross_attention(
                    query, group, memory, memory_group, num_heads=num_heads, dropout=dropout
                )
                for query, group, memory, memory_group in zip(
                    queries, layout.groups, memories, memory_layout.groups, strict=True
                )
            ]
        )
    query_1XQK = _to_heads(query_ND, layout, parts=1, num_heads=num_heads)
    memory_2XLK = _to_heads(key_value_M2D, memory_layout, parts=2, num_heads=num_heads)
    mixed_XQK = _Attend.apply(  # type: ignore[no-untyped-call]
        query_1XQK, memory_2XLK, memory_layout.padding_bias, layout, dropout
    )
    return _to_tokens(mixed_XQK, layout, num_heads=num_heads)


def _to_heads(x_ND: Tensor, layout: Layout, *, parts: int, num_heads: int) -> Tensor:
    """Tokens (N, parts * D) -> (parts, X, L, K)."""
    to_heads, to_tokens = layout.head_rows(parts, num_heads)
    width = x_ND.shape[1] // (parts * num_heads)
    shape = (parts, layout.num_rows * num_heads, layout.row_cells, width)
    heads: Tensor = _Gather.apply(x_ND, to_heads, to_tokens, width, shape)  # type: ignore[no-untyped-call]
    return heads


def _to_tokens(x_XQK: Tensor, layout: Layout, *, num_heads: int) -> Tensor:
    """(X, Q, K) -> tokens (N, D)."""
    to_heads, to_tokens = layout.head_rows(1, num_heads)
    width = x_XQK.shape[2]
    shape = (layout.positions_N.shape[0], num_heads * width)
    tokens: Tensor = _Gather.apply(x_XQK, to_tokens, to_heads, width, shape)  # type: ignore[no-untyped-call]
    return tokens


class _Gather(torch.autograd.Function):
    """Blocks of `width` numbers, picked from x by their index.

    The backward pass is a gather too, because each block is used once: the blocks that stand for
    padding get no gradient. PyTorch's own backward pass would add gradients up.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, forth: Tensor, back: Tensor, width: int, shape: tuple[int, ...]
    ) -> Tensor:
        ctx.back, ctx.width, ctx.shape = back, width, x.shape
        return x.view(-1, width).index_select(0, forth).view(shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_x = grad.reshape(-1, ctx.width).index_select(0, ctx.back).view(ctx.shape)
        return grad_x, None, None, None, None


class _Attend(torch.autograd.Function):
    """softmax(query @ key.T / sqrt(K) + bias) @ value for every row of one head.

    heads: (3, X, L, K) queries, keys and values; or (1, X, Q, K) queries, with keys and values in
    memory_2XLK. Projections stay together, so their gradients need no copy to come together.
    """

    @staticmethod
    def forward(
        ctx: Any,
        heads: Tensor,
        memory_2XLK: Tensor | None,
        bias: Tensor | None,
        layout: Layout,
        dropout: float,
    ) -> Tensor:
        query_XQK, key_XLK, value_XLK = _parts(heads, memory_2XLK)
        scale = 1.0 / math.sqrt(query_XQK.shape[2])
        weights_XQL = torch.bmm(query_XQK, key_XLK.transpose(1, 2)).mul_(scale)
        num_heads = weights_XQL.shape[0] // max(1, layout.num_rows)
        weights_BHQL = weights_XQL.view(layout.num_rows, num_heads, *weights_XQL.shape[1:])
        if bias is not None:
            weights_BHQL.add_(bias)
        torch.softmax(weights_XQL, -1, out=weights_XQL)
        if layout.real_BL is not None:
            # A query without a token would send a gradient to the keys.
            weights_BHQL.mul_(layout.real_BL[:, None, :, None])
        keep_XQL = keep_mask(weights_XQL.shape, dropout) if dropout > 0.0 else None
        ctx.save_for_backward(heads, memory_2XLK, weights_XQL, keep_XQL)
        ctx.scale, ctx.dropout = scale, dropout
        return torch.bmm(_dropped(weights_XQL, keep_XQL, dropout), value_XLK)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_XQK: Tensor) -> tuple[Tensor | None, ...]:
        heads, memory_2XLK, weights_XQL, keep_XQL = ctx.saved_tensors
        query_XQK, key_XLK, value_XLK = _parts(heads, memory_2XLK)
        grad_heads = torch.empty_like(heads)
        grad_memory = None if memory_2XLK is None else torch.empty_like(memory_2XLK)
        grad_query_XQK, grad_key_XLK, grad_value_XLK = _parts(grad_heads, grad_memory)
        dropped_XQL = _dropped(weights_XQL, keep_XQL, ctx.dropout)
        torch.bmm(dropped_XQL.transpose(1, 2), grad_XQK, out=grad_value_XLK)
        grad_XQL = torch.bmm(grad_XQK, value_XLK.transpose(1, 2))
        grad_XQL = _dropped(grad_XQL, keep_XQL, ctx.dropout)
        # Through the softmax: weights * (grad - sum of grad * weights over the row).
        grad_XQL = torch._softmax_backward_data(grad_XQL, weights_XQL, -1, grad_XQL.dtype)
        grad_XQL.mul_(ctx.scale)
        torch.bmm(grad_XQL, key_XLK, out=grad_query_XQK)
        torch.bmm(grad_XQL.transpose(1, 2), query_XQK, out=grad_key_XLK)
        return grad_heads, grad_memory, None, None, None


def _parts(heads: Tensor, memory_2XLK: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as views."""
    if memory_2XLK is None:
        return heads[0], heads[1], heads[2]
    return heads[0], memory_2XLK[0], memory_2XLK[1]


def _dropped(x: Tensor, keep: Tensor | None, p: float) -> Tensor:
    """x after dropout with a given mask; x itself without one."""
    return x if keep is None else keep.to(x.dtype).mul_(x).mul_(keep_scale(p))
