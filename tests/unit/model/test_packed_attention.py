from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.model.layout import Layout, make_layout
from dragoman.model.packed_attention import packed_cross_attention, packed_self_attention

HEADS, WIDTH = 2, 3
D = HEADS * WIDTH


def layout_of(lengths: list[int]) -> Layout:
    return make_layout(torch.tensor(lengths), row_cells=max(lengths), num_tokens=sum(lengths))


def row_by_row(
    query_ND: Tensor, key_MD: Tensor, value_MD: Tensor, lengths: list[list[int]], causal: bool
) -> Tensor:
    """PyTorch's attention on each row by itself, so that nothing is padded."""
    mixed = []
    for query_QD, key_LD, value_LD in zip(
        torch.split(query_ND, lengths[0]),
        torch.split(key_MD, lengths[1]),
        torch.split(value_MD, lengths[1]),
        strict=True,
    ):
        query, key, value = (
            x.view(-1, HEADS, WIDTH).transpose(0, 1) for x in (query_QD, key_LD, value_LD)
        )
        row = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        mixed.append(row.transpose(0, 1).reshape(-1, D))
    return torch.cat(mixed)


@pytest.mark.parametrize("lengths", [[3, 1, 5], [4, 4], [1]])
@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_equals_pytorch_row_by_row(lengths: list[int], causal: bool) -> None:
    x_N3D = torch.randn(sum(lengths), 3 * D, dtype=torch.float64, requires_grad=True)
    ours = packed_self_attention(
        x_N3D, layout_of(lengths), num_heads=HEADS, causal=causal, dropout=0.0
    )
    theirs = row_by_row(
        x_N3D[:, :D], x_N3D[:, D : 2 * D], x_N3D[:, 2 * D :], [lengths, lengths], causal
    )
    torch.testing.assert_close(ours, theirs)
    upstream = torch.randn_like(ours)
    torch.testing.assert_close(
        torch.autograd.grad(ours, x_N3D, upstream), torch.autograd.grad(theirs, x_N3D, upstream)
    )


@pytest.mark.parametrize(
    ("lengths", "memory_lengths"), [([3, 1, 5], [2, 6, 1]), ([4, 4], [3, 3]), ([2, 5], [4, 4])]
)
def test_cross_attention_equals_pytorch_row_by_row(
    lengths: list[int], memory_lengths: list[int]
) -> None:
    query_ND = torch.randn(sum(lengths), D, dtype=torch.float64, requires_grad=True)
    memory_M2D = torch.randn(sum(memory_lengths), 2 * D, dtype=torch.float64, requires_grad=True)
    ours = packed_cross_attention(
        query_ND,
        layout_of(lengths),
        memory_M2D,
        layout_of(memory_lengths),
        num_heads=HEADS,
        dropout=0.0,
    )
    key_MD, value_MD = memory_M2D[:, :D], memory_M2D[:, D:]
    theirs = row_by_row(query_ND, key_MD, value_MD, [lengths, memory_lengths], False)
    torch.testing.assert_close(ours, theirs)
    upstream = torch.randn_like(ours)
    torch.testing.assert_close(
        torch.autograd.grad(ours, [query_ND, memory_M2D], upstream),
        torch.autograd.grad(theirs, [query_ND, memory_M2D], upstream),
    )


def test_attention_with_dropout_has_the_gradient_of_its_output() -> None:
    layout = layout_of([3, 1, 4])

    def attend(x_N3D: Tensor) -> Tensor:
        torch.manual_seed(0)
        return packed_self_attention(x_N3D, layout, num_heads=HEADS, causal=False, dropout=0.4)

    x_N3D = torch.randn(8, 3 * D, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(attend, x_N3D)
    assert not attend(x_N3D).equal(
        packed_self_attention(x_N3D, layout, num_heads=HEADS, causal=False, dropout=0.0)
    )


def test_dropout_leaves_the_mean_as_it_is() -> None:
    torch.manual_seed(0)
    layout = layout_of([6] * 2000)
    row = torch.randn(6, 3 * D)
    dropped, plain = (
        packed_self_attention(row.repeat(2000, 1), layout, num_heads=HEADS, causal=False, dropout=p)
        for p in (0.3, 0.0)
    )
    torch.testing.assert_close(
        dropped.view(2000, 6, D).mean(0), plain.view(2000, 6, D)[0], atol=0.05, rtol=0
    )
