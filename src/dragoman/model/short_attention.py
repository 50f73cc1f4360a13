"""Attention over rows that are short enough to lie in one tile, as sentences do: a Triton kernel.

FlashAttention takes 128 queries at a time and walks over the keys; a sentence of thirty pieces
leaves three quarters of that idle. Here a program holds one head of one row whole: it reads
queries, keys and values once. The backward pass computes the weights again. It needs nothing from
the forward pass but its inputs, no second pass and no atomic sum; so it repeats itself to the bit.

Shapes: N tokens in a flat list (M of them on the key side), H heads, K width of a head, R rows + 1;
in a kernel Q queries and L keys of a row.
"""

# A kernel is written in Triton's language, whose types are not Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

_LEAST_TILE: Final = 16
_LOG2_E: Final = 1.4426950408889634


@triton.jit
def _tokens(ends, HEADS: tl.constexpr, COUNT: tl.constexpr):
    """Indices of COUNT tokens from the start of this program's row, and a mask of those in it."""
    row = tl.program_id(0) // HEADS
    tokens = tl.load(ends + row) + tl.arange(0, COUNT)
    return tokens.to(tl.int64), tokens < tl.load(ends + row + 1)


@triton.jit
def _places(tokens, stride, HEADS: tl.constexpr, WIDTH: tl.constexpr):
    """The places of this program's head in a list of tokens."""
    head = tl.program_id(0) % HEADS
    return tokens[:, None] * stride + head * WIDTH + tl.arange(0, WIDTH)[None, :]


@triton.jit
def _load(x, tokens, real, stride, HEADS: tl.constexpr, WIDTH: tl.constexpr):
    """This program's head of these tokens; zeros for tokens outside the row."""
    return tl.load(x + _places(tokens, stride, HEADS, WIDTH), mask=real[:, None], other=0.0)


@triton.jit
def _store(x, tile, tokens, real, stride, HEADS: tl.constexpr, WIDTH: tl.constexpr):
    places = x + _places(tokens, stride, HEADS, WIDTH)
    tl.store(places, tile.to(x.dtype.element_ty), mask=real[:, None])


@triton.jit
def _weights(query_QK, key_LK, queries, keys, real_keys, scale, CAUSAL: tl.constexpr):
    """softmax(query @ key.T * scale) over the keys that may be looked at; scale is for base 2."""
    scores_QL = tl.dot(query_QK, tl.trans(key_LK)) * scale
    seen = real_keys[None, :]
    if CAUSAL:
        seen = seen & (keys[None, :] <= queries[:, None])
    scores_QL = tl.where(seen, scores_QL, float("-inf"))
    weights_QL = tl.exp2(scores_QL - tl.max(scores_QL, 1)[:, None])
    return weights_QL / tl.sum(weights_QL, 1)[:, None]


@triton.jit
def _forward_kernel(
    query, key, value, mixed, query_ends, key_ends,
    query_stride, key_stride, value_stride, mixed_stride, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    queries, real_queries = _tokens(query_ends, HEADS, QUERIES)
    keys, real_keys = _tokens(key_ends, HEADS, KEYS)
    query_QK = _load(query, queries, real_queries, query_stride, HEADS, WIDTH)
    key_LK = _load(key, keys, real_keys, key_stride, HEADS, WIDTH)
    value_LK = _load(value, keys, real_keys, value_stride, HEADS, WIDTH)
    weights_QL = _weights(query_QK, key_LK, queries, keys, real_keys, scale, CAUSAL)
    mixed_QK = tl.dot(weights_QL.to(value_LK.dtype), value_LK)
    _store(mixed, mixed_QK, queries, real_queries, mixed_stride, HEADS, WIDTH)


@triton.jit
def _backward_kernel(
    grad_mixed, query, key, value, grad_query, grad_key, grad_value, query_ends, key_ends,
    grad_mixed_stride, query_stride, key_stride, value_stride,
    grad_query_stride, grad_key_stride, grad_value_stride, scale, natural_scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    queries, real_queries = _tokens(query_ends, HEADS, QUERIES)
    keys, real_keys = _tokens(key_ends, HEADS, KEYS)
    query_QK = _load(query, queries, real_queries, query_stride, HEADS, WIDTH)
    key_LK = _load(key, keys, real_keys, key_stride, HEADS, WIDTH)
    value_LK = _load(value, keys, real_keys, value_stride, HEADS, WIDTH)
    grad_QK = _load(grad_mixed, queries, real_queries, grad_mixed_stride, HEADS, WIDTH)
    weights_QL = _weights(query_QK, key_LK, queries, keys, real_keys, scale, CAUSAL)
    grad_value_LK = tl.dot(tl.trans(weights_QL.to(grad_QK.dtype)), grad_QK)
    _store(grad_value, grad_value_LK, keys, real_keys, grad_value_stride, HEADS, WIDTH)
    grad_weights_QL = tl.dot(grad_QK, tl.trans(value_LK))
    pulled_QL = weights_QL * grad_weights_QL
    grad_scores_QL = pulled_QL - weights_QL * tl.sum(pulled_QL, 1)[:, None]
    grad_scores_QL = (grad_scores_QL * natural_scale).to(query_QK.dtype)
    grad_query_QK = tl.dot(grad_scores_QL, key_LK)
    _store(grad_query, grad_query_QK, queries, real_queries, grad_query_stride, HEADS, WIDTH)
    grad_key_LK = tl.dot(tl.trans(grad_scores_QL), query_QK)
    _store(grad_key, grad_key_LK, keys, real_keys, grad_key_stride, HEADS, WIDTH)


@torch.library.custom_op("dragoman::short_attention", mutates_args=())
def short_attention(
    query_NHK: Tensor,
    key_MHK: Tensor,
    value_MHK: Tensor,
    query_ends_R: Tensor,
    key_ends_R: Tensor,
    longest_query: int,
    longest_key: int,
    causal: bool,
) -> Tensor:
    """Each query looks at the keys of its own row; the mixed values (N, H, K).

    query_ends_R, key_ends_R: 0, then where each row ends in its list, int32.
    longest_query, longest_key: tokens in the longest row; a program can hold 128 with K = 64.
    K is a power of two, 16 at least; heads and numbers of a token lie side by side.
    """
    mixed_NHK = query_NHK.new_empty(query_NHK.shape)
    scale = query_NHK.shape[2] ** -0.5
    shape = _shape(query_NHK, longest_query, longest_key)
    _forward_kernel[_grid(query_NHK, query_ends_R)](
        query_NHK, key_MHK, value_MHK, mixed_NHK, query_ends_R, key_ends_R,
        query_NHK.stride(0), key_MHK.stride(0), value_MHK.stride(0), mixed_NHK.stride(0),
        scale * _LOG2_E, CAUSAL=causal, **shape,
    )  # fmt: skip
    return mixed_NHK


@torch.library.custom_op("dragoman::short_attention_backward", mutates_args=())
def _backward(
    grad_NHK: Tensor,
    query_NHK: Tensor,
    key_MHK: Tensor,
    value_MHK: Tensor,
    query_ends_R: Tensor,
    key_ends_R: Tensor,
    longest_query: int,
    longest_key: int,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    grad_NHK = grad_NHK.contiguous()
    grad_query_NHK = query_NHK.new_empty(query_NHK.shape)
    grad_key_MHK, grad_value_MHK = (
        key_MHK.new_empty(key_MHK.shape),
        value_MHK.new_empty(value_MHK.shape),
    )
    scale = query_NHK.shape[2] ** -0.5
    shape = _shape(query_NHK, longest_query, longest_key)
    _backward_kernel[_grid(query_NHK, query_ends_R)](
        grad_NHK, query_NHK, key_MHK, value_MHK, grad_query_NHK, grad_key_MHK, grad_value_MHK,
        query_ends_R, key_ends_R, grad_NHK.stride(0),
        query_NHK.stride(0), key_MHK.stride(0), value_MHK.stride(0),
        grad_query_NHK.stride(0), grad_key_MHK.stride(0), grad_value_MHK.stride(0),
        scale * _LOG2_E, scale, CAUSAL=causal, **shape,
    )  # fmt: skip
    return grad_query_NHK, grad_key_MHK, grad_value_MHK


@short_attention.register_fake
def _(query: Tensor, *_rest: Any) -> Tensor:
    return query.new_empty(query.shape)


@_backward.register_fake
def _(
    _grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs[:5])
    ctx.rest = inputs[5:]


def _differentiate(ctx: Any, grad_NHK: Tensor) -> tuple[Tensor | None, ...]:
    return (*_backward(grad_NHK, *ctx.saved_tensors, *ctx.rest), *[None] * 5)


short_attention.register_autograd(_differentiate, setup_context=_keep)


def _grid(query_NHK: Tensor, ends_R: Tensor) -> tuple[int]:
    return ((len(ends_R) - 1) * query_NHK.shape[1],)


def _shape(query_NHK: Tensor, longest_query: int, longest_key: int) -> dict[str, int]:
    """Tiles large enough for the longest rows, and a warp per 16 tokens of the larger tile."""
    queries, keys = (
        max(_LEAST_TILE, triton.next_power_of_2(size)) for size in (longest_query, longest_key)
    )
    return {
        "HEADS": query_NHK.shape[1],
        "WIDTH": query_NHK.shape[2],
        "QUERIES": queries,
        "KEYS": keys,
        "num_warps": max(queries, keys) // 16,
        "num_stages": 1,
    }
