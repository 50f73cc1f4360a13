"""The kernel for short rows beside PyTorch's attention; without a GPU in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed: it comes with PyTorch for GPUs")

from dragoman.model.short_attention import short_attention

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.float16 if torch.cuda.is_available() else torch.float32
NEAR = 4e-3 if torch.cuda.is_available() else 1e-5


@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("lengths", [[5, 1, 17, 30], [16, 64, 33], [1], [128, 3]])
@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradients_are_those_of_pytorch(
    width: int, lengths: list[int], causal: bool
) -> None:
    torch.manual_seed(0)
    memory_lengths = lengths if causal else [1 + 3 * length % 40 for length in lengths]
    query = _tokens(lengths, width)
    key, value = _tokens(memory_lengths, width), _tokens(memory_lengths, width)
    ends, memory_ends = _ends(lengths), _ends(memory_lengths)
    found = short_attention(
        query, key, value, ends, memory_ends, max(lengths), max(memory_lengths), causal
    )
    rows = zip(pairwise(ends.tolist()), pairwise(memory_ends.tolist()), strict=True)
    expected = torch.cat(
        [_plain(query[q0:q1], key[k0:k1], value[k0:k1], causal) for (q0, q1), (k0, k1) in rows]
    )
    torch.testing.assert_close(found, expected, atol=NEAR, rtol=0)
    grad = torch.randn_like(found)
    for ours, theirs in zip(
        torch.autograd.grad(found, [query, key, value], grad),
        torch.autograd.grad(expected, [query, key, value], grad),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, atol=4 * NEAR, rtol=0)


def _tokens(lengths: Sequence[int], width: int) -> Tensor:
    """Three heads; tokens lie apart, as those of a joint projection do."""
    joint = torch.randn(sum(lengths), 2, 3, width, device=DEVICE, dtype=DTYPE)
    return joint[:, 1].detach().requires_grad_()


def _ends(lengths: Sequence[int]) -> Tensor:
    return F.pad(torch.tensor(lengths, device=DEVICE).cumsum(0), (1, 0)).int()


def _plain(query_QHK: Tensor, key_LHK: Tensor, value_LHK: Tensor, causal: bool) -> Tensor:
    query_HQK, key_HLK, value_HLK = (x.transpose(0, 1) for x in (query_QHK, key_LHK, value_LHK))
    mixed_HQK = F.scaled_dot_product_attention(query_HQK, key_HLK, value_HLK, is_causal=causal)
    return mixed_HQK.transpose(0, 1)
