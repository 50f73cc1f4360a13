"""Padded rows <-> the flat list of their real tokens.

All layers but attention work on single tokens. They are given a flat list, which can leave padding
out. Attention is given rows, or the list and the end of each row in it.

Shapes: B rows, L cells in a padded row, N tokens in the flat list, H heads, P projections side by
side, ... any further dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """The places of the tokens of a flat list in padded rows.

    num_tokens: the real tokens of all rows.
    positions_N: the cell of each token inside its row, from 0.
    cells_N: the cell of each token in the whole B x L rectangle; None if the list holds every
        cell, so that both forms are views of the same memory.
    real_BL: which cells hold a token; None if all do.
    ends_R: 0, then the end of each row in the list of real tokens, (B + 1) in int32; only on a
        GPU, where attention over such a list needs it.
    short: whether all rows of the batch, on both sides, are short enough for short_attention.
    groups: layouts of rows of like length, whose tokens follow each other in the list; attention
        on a CPU pads each of them by itself. None if all rows are one group.
    """

    num_rows: int
    row_cells: int
    num_tokens: int
    positions_N: Tensor
    cells_N: Tensor | None
    real_BL: Tensor | None
    ends_R: Tensor | None = None
    short: bool = False
    groups: tuple[Layout, ...] | None = None
    _head_rows: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def packed(self) -> bool:
        """Whether the list holds real tokens only."""
        return self.cells_N is not None or self.real_BL is None

    def flatten(self, x_BL: Tensor) -> Tensor:
        """Rows (B, L, ...) -> list (N, ...)."""
        x_C = x_BL.reshape(self.num_rows * self.row_cells, *x_BL.shape[2:])
        return x_C if self.cells_N is None else x_C.index_select(0, self.cells_N)

    def tokens(self, x_N: Tensor) -> Tensor:
        """The members of a list (N, ...) that are tokens and not padding."""
        if self.packed or self.real_BL is None:
            return x_N
        return x_N.index_select(0, _numbers_of(self.real_BL.view(-1), self.num_tokens))

    def rows(self, x_N: Tensor) -> Tensor:
        """List (N, ...) -> rows (B, L, ...); cells without a token are zero."""
        if self.cells_N is not None:
            x_C = x_N.new_zeros(self.num_rows * self.row_cells, *x_N.shape[1:])
            x_N = x_C.index_copy(0, self.cells_N, x_N)
        return x_N.view(self.num_rows, self.row_cells, *x_N.shape[1:])

    @cached_property
    def padding_bias(self) -> Tensor | None:
        """(B, 1, 1, L), -inf on padding, else 0; None if there is no padding."""
        if self.real_BL is None:
            return None
        bias_BL = torch.zeros(self.real_BL.shape, device=self.real_BL.device)
        return bias_BL.masked_fill_(~self.real_BL, -torch.inf)[:, None, None]

    @cached_property
    def causal_bias(self) -> Tensor:
        """(query, key) (L, L), -inf on keys later than the query, else 0."""
        shape = (self.row_cells, self.row_cells)
        return torch.full(shape, -torch.inf, device=self.positions_N.device).triu(1)

    def head_rows(self, parts: int, num_heads: int) -> tuple[Tensor, Tensor]:
        """Index maps between the list and the padded rows, for single heads.

        parts: P, the projections. The heads of the list (N, P, H) and those of the rows
        (P, B, H, L) are numbered in that order.
        Returns two maps: (P x B x H x L), for each head of the rows its number in the list, or that
        of some other token for padding; and (N x P x H), for each head of the list its number in
        the rows.
        """
        key = (parts, num_heads)
        if key not in self._head_rows:
            self._head_rows[key] = self._number_heads(parts, num_heads)
        return self._head_rows[key]

    def _number_heads(self, parts: int, num_heads: int) -> tuple[Tensor, Tensor]:
        num_tokens, device = self.positions_N.shape[0], self.positions_N.device
        list_NPH = torch.arange(num_tokens * parts * num_heads, device=device)
        list_NPH = list_NPH.view(num_tokens, parts, num_heads)
        rows_PBHL = torch.arange(
            parts * self.num_rows * num_heads * self.row_cells, device=device
        ).view(parts, self.num_rows, num_heads, self.row_cells)
        list_at_rows_BLPH = self.rows(list_NPH)
        rows_at_list_NPH = self.flatten(rows_PBHL.permute(1, 3, 0, 2))
        return list_at_rows_BLPH.permute(2, 0, 3, 1).reshape(-1), rows_at_list_NPH.reshape(-1)


def make_layout(
    lengths_B: Tensor,
    *,
    row_cells: int,
    num_tokens: int,
    packed: bool | None = None,
    short: bool = False,
    groups: Sequence[tuple[int, int, int]] = (),
) -> Layout:
    """The layout of rows that hold `lengths_B` tokens each, `num_tokens` in all.

    packed: whether the list holds real tokens only. None: it does on a CPU, where padding would be
        multiplied for nothing; elsewhere it holds every cell, which every kind of attention can
        read.
    groups: the rows, cells of a row and tokens of each group of rows; used on a CPU alone.
    """
    num_rows, device = lengths_B.shape[0], lengths_B.device
    packed = device.type == "cpu" if packed is None else packed
    positions_L = torch.arange(row_cells, device=device)
    positions_C = positions_L.repeat(num_rows)
    if packed and device.type == "cpu" and num_tokens == num_rows * row_cells:
        return Layout(num_rows, row_cells, num_tokens, positions_C, None, None)
    real_BL = positions_L < lengths_B[:, None]
    if not packed:
        return Layout(num_rows, row_cells, num_tokens, positions_C, None, real_BL)
    cells_N = _numbers_of(real_BL.view(-1), num_tokens)
    ends_R = None if device.type == "cpu" else F.pad(lengths_B.cumsum(0), (1, 0)).int()
    positions_N = positions_C[cells_N]
    group_layouts = None
    if device.type == "cpu" and groups:
        group_lengths = torch.split(lengths_B, [rows for rows, _, _ in groups])
        group_layouts = tuple(
            make_layout(lengths, row_cells=cells, num_tokens=tokens, packed=True)
            for lengths, (_, cells, tokens) in zip(group_lengths, groups, strict=True)
        )
    return Layout(
        num_rows,
        row_cells,
        num_tokens,
        positions_N,
        cells_N,
        real_BL,
        ends_R,
        short=short,
        groups=group_layouts,
    )


def _numbers_of(chosen_C: Tensor, count: int) -> Tensor:
    """Indices of the true members; as their count is given, nothing waits for a GPU."""
    return torch.nonzero_static(chosen_C, size=count).view(-1)
