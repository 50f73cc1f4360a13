"""Attention over flat lists of tokens on a GPU: padding is neither multiplied nor moved.

Rows of unlike length lie end to end. Sentences are short enough for a kernel of our own, several
times as fast; longer rows go through PyTorch's FlashAttention (Dao 2023). Both want half precision
and have no dropout; everything else is given padded rows.

Shapes: N tokens in a flat list (M of them on the key side), H heads, K width of a head, D model
width.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

import torch
from torch import Tensor

from dragoman.model.config import ModelConfig
from dragoman.model.layout import Layout

if find_spec("triton") is not None:  # comes with the PyTorch for GPUs
    from dragoman.model.short_attention import short_attention

_LEAST_CAPABILITY: Final = (8, 0)
"""Ampere: FlashAttention 2 knows no older GPUs."""
_HEAD_WIDTHS: Final = (16, 32, 64, 128)
_LONGEST_ROW: Final = 128
_MOST_NUMBERS: Final = 128 * 64
"""Most numbers of one head in a row that a program of short_attention has registers for."""
_EVERYTHING: Final = (-1, -1)
_THE_PAST: Final = (-1, 0)


def has_varlen_attention(device: torch.device, config: ModelConfig) -> bool:
    """Whether a model of this config can be given tokens without padding here and now."""
    return (
        device.type == "cuda"
        and torch.is_autocast_enabled("cuda")
        and config.attention_dropout == 0.0
        and config.d_model // config.num_heads in _HEAD_WIDTHS
        and torch.cuda.get_device_capability(device) >= _LEAST_CAPABILITY
        and find_spec("triton") is not None
    )


def are_short(longest_row: int, config: ModelConfig) -> bool:
    """Whether rows of at most this many tokens suit the kernel for short ones."""
    head_width = config.d_model // config.num_heads
    return longest_row <= _LONGEST_ROW and longest_row * head_width <= _MOST_NUMBERS


def varlen_attention(
    query_NHK: Tensor,
    key_MHK: Tensor,
    value_MHK: Tensor,
    layout: Layout,
    memory_layout: Layout,
    *,
    causal: bool = False,
) -> Tensor:
    """Each token looks at its own row; with `causal`, not ahead. Mixed values as a list (N, D)."""
    assert layout.ends_R is not None
    assert memory_layout.ends_R is not None
    where = layout.ends_R, memory_layout.ends_R, layout.row_cells, memory_layout.row_cells
    if layout.short:
        mixed_NHK: Tensor = short_attention(query_NHK, key_MHK, value_MHK, *where, causal)
        return mixed_NHK.flatten(1)
    # Its module brings all of torch's compiler along, which takes a second.
    from torch.nn.attention.varlen import varlen_attn

    window = _THE_PAST if causal else _EVERYTHING
    mixed = varlen_attn(query_NHK, key_MHK, value_MHK, *where, window_size=window)
    assert isinstance(mixed, Tensor)
    return mixed.flatten(1)
