from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dragoman.model.layout import Layout, make_layout


def layout_of(lengths: list[int], row_cells: int) -> Layout:
    return make_layout(torch.tensor(lengths), row_cells=row_cells, num_tokens=sum(lengths))


@pytest.mark.parametrize("lengths", [[3, 1, 4], [4, 4], [2]])
def test_the_list_is_the_real_cells_row_by_row_and_back(lengths: list[int]) -> None:
    layout = layout_of(lengths, 4)
    x_BLD = torch.arange(len(lengths) * 4 * 2.0).view(len(lengths), 4, 2)
    x_ND = layout.flatten(x_BLD)
    expected = [x_BLD[row, cell] for row, length in enumerate(lengths) for cell in range(length)]
    torch.testing.assert_close(x_ND, torch.stack(expected))
    assert layout.positions_N.tolist() == [cell for length in lengths for cell in range(length)]
    rows_BLD = layout.rows(x_ND)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(rows_BLD[row, :length], x_BLD[row, :length])
        assert rows_BLD[row, length:].eq(0).all()


def test_full_rows_are_views() -> None:
    layout = layout_of([3, 3], 3)
    x_BLD = torch.randn(2, 3, 5)
    assert layout.real_BL is None
    assert layout.flatten(x_BLD).data_ptr() == x_BLD.data_ptr()
    assert layout.rows(layout.flatten(x_BLD)).data_ptr() == x_BLD.data_ptr()


def test_gradients_pass_both_ways() -> None:
    layout = layout_of([3, 1, 2], 3)

    def there_and_back(x_ND: Tensor) -> Tensor:
        return layout.flatten(layout.rows(x_ND).sin())

    x_ND = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(there_and_back, x_ND)


def test_off_the_cpu_the_list_is_the_padded_rows() -> None:
    layout = make_layout(
        torch.empty(3, dtype=torch.int64, device="meta"), row_cells=4, num_tokens=5
    )
    assert not layout.packed
    assert layout.flatten(torch.empty(3, 4, 8, device="meta")).shape == (12, 8)


def test_tokens_are_found_among_the_padding_of_an_unpacked_list() -> None:
    lengths_B = torch.tensor([3, 1])
    padded = make_layout(lengths_B, row_cells=4, num_tokens=4, packed=False)
    x_BLD = torch.randn(2, 4, 5)
    expected_ND = make_layout(lengths_B, row_cells=4, num_tokens=4).flatten(x_BLD)
    torch.testing.assert_close(padded.tokens(padded.flatten(x_BLD)), expected_ND)


@pytest.mark.parametrize("lengths", [[3, 1, 4], [4, 4]])
@pytest.mark.parametrize("parts", [1, 3])
def test_heads_are_found_in_the_rows_and_back_in_the_list(lengths: list[int], parts: int) -> None:
    layout = layout_of(lengths, 4)
    x_NPHK = torch.randn(sum(lengths), parts, 2, 5)
    to_rows, to_list = layout.head_rows(parts, 2)
    rows_PBHLK = x_NPHK.view(-1, 5)[to_rows].view(parts, len(lengths), 2, 4, 5)
    expected_PBHLK = layout.rows(x_NPHK).permute(2, 0, 3, 1, 4)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(
            rows_PBHLK[:, row, :, :length], expected_PBHLK[:, row, :, :length]
        )
    torch.testing.assert_close(rows_PBHLK.reshape(-1, 5)[to_list].view_as(x_NPHK), x_NPHK)


def test_no_rows() -> None:
    layout = layout_of([], 1)
    assert layout.rows(torch.zeros(0, 5)).shape == (0, 1, 5)
    assert layout.flatten(torch.zeros(0, 1, 5)).shape == (0, 5)
