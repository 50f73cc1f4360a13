"""Padded rows <-> the flat list of their real tokens.

Everything but attention works on single tokens, so it is given a flat list of them and never sees
padding; attention alone is given rows.

Shapes: B rows, L cells in a padded row, N tokens in the flat list, ... any further dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the tokens of a flat list lie in padded rows.

    positions_N: the cell of each token inside its row, from 0.
    cells_N: the cell of each token in the whole B x L rectangle; None where the list holds every
        cell, so that both forms are views of the same memory.
    real_BL: which cells hold a token; None where all do.
    """

    num_rows: int
    row_cells: int
    positions_N: Tensor
    cells_N: Tensor | None
    real_BL: Tensor | None

    @property
    def token_mask(self) -> Tensor | None:
        """(N,), true where the list holds a token and not padding; None where all are tokens."""
        if self.cells_N is not None or self.real_BL is None:
            return None
        return self.real_BL.view(-1)

    def flatten(self, x_BL: Tensor) -> Tensor:
        """Rows (B, L, ...) -> list (N, ...)."""
        x_C = x_BL.reshape(self.num_rows * self.row_cells, *x_BL.shape[2:])
        return x_C if self.cells_N is None else x_C.index_select(0, self.cells_N)

    def rows(self, x_N: Tensor) -> Tensor:
        """List (N, ...) -> rows (B, L, ...); cells without a token are zero."""
        if self.cells_N is not None:
            x_C = x_N.new_zeros(self.num_rows * self.row_cells, *x_N.shape[1:])
            x_N = x_C.index_copy(0, self.cells_N, x_N)
        return x_N.view(self.num_rows, self.row_cells, *x_N.shape[1:])


def make_layout(lengths_B: Tensor, *, row_cells: int, num_tokens: int) -> Layout:
    """The layout of rows that hold `lengths_B` tokens each, `num_tokens` in all.

    On a CPU the list holds real tokens only: padding would be multiplied for nothing. On other
    devices it holds every cell: shapes stay fixed, and moving data costs more than multiplying.
    """
    num_rows = lengths_B.shape[0]
    cells_L = torch.arange(row_cells, device=lengths_B.device)
    on_cpu = lengths_B.device.type == "cpu"
    if on_cpu and num_tokens == num_rows * row_cells:
        return Layout(num_rows, row_cells, cells_L.repeat(num_rows), None, None)
    real_BL = cells_L < lengths_B[:, None]
    if not on_cpu:
        return Layout(num_rows, row_cells, cells_L.repeat(num_rows), None, real_BL)
    cells_N = real_BL.view(-1).nonzero().view(-1)
    return Layout(num_rows, row_cells, cells_N % row_cells, cells_N, real_BL)
