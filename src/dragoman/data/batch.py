"""Rows of token ids -> one padded batch.

Shapes: B rows (sentence pairs), S longest source, T longest target, both with end of sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.corpus.shards import BOS, EOS, PAD


class RowGroup(NamedTuple):
    """Rows of like length that follow each other in a batch.

    first_row, end_row: the rows. source_cells, target_cells: cells of each padded row.
    num_source_tokens, num_target_tokens: tokens of all rows.
    """

    first_row: int
    end_row: int
    source_cells: int
    target_cells: int
    num_source_tokens: int
    num_target_tokens: int

    @property
    def num_rows(self) -> int:
        """The number of its rows."""
        return self.end_row - self.first_row


@dataclass(frozen=True, slots=True)
class Batch:
    """One rank's rows of one micro-batch. Ids are int64; lengths count the end of sentence.

    source_BS: pieces, EOS, then PAD.
    decoder_input_BT: BOS, pieces, then PAD: the input of the decoder.
    target_BT: pieces, EOS, then PAD: the expected output.
    groups: rows that attention on a CPU pads to one length; () if all rows are one group.
    """

    source_BS: Tensor
    decoder_input_BT: Tensor
    target_BT: Tensor
    source_lengths_B: Tensor
    target_lengths_B: Tensor
    num_source_tokens: int
    num_target_tokens: int
    groups: tuple[RowGroup, ...] = ()

    @property
    def num_cells(self) -> int:
        """Cells of both sides, each group padded by itself; cells minus tokens are padding."""
        if not self.groups:
            return self.source_BS.numel() + self.target_BT.numel()
        return sum(
            group.num_rows * (group.source_cells + group.target_cells) for group in self.groups
        )

    def split(self) -> list[Batch]:
        """One batch per group, as views; this batch if its rows are one group."""
        if not self.groups:
            return [self]
        return [
            Batch(
                self.source_BS[group.first_row : group.end_row, : group.source_cells],
                self.decoder_input_BT[group.first_row : group.end_row, : group.target_cells],
                self.target_BT[group.first_row : group.end_row, : group.target_cells],
                self.source_lengths_B[group.first_row : group.end_row],
                self.target_lengths_B[group.first_row : group.end_row],
                group.num_source_tokens,
                group.num_target_tokens,
            )
            for group in self.groups
        ]

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device; copies from pinned memory do not block."""
        return self._moved(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> Batch:
        """The same batch in page-locked memory, from which a GPU copies without waiting."""
        return self._moved(Tensor.pin_memory)

    def _moved(self, move: Callable[[Tensor], Tensor]) -> Batch:
        return replace(
            self,
            source_BS=move(self.source_BS),
            decoder_input_BT=move(self.decoder_input_BT),
            target_BT=move(self.target_BT),
            source_lengths_B=move(self.source_lengths_B),
            target_lengths_B=move(self.target_lengths_B),
        )


def make_batch(
    source_pieces: NDArray[np.integer],
    source_lengths: NDArray[np.integer],
    target_pieces: NDArray[np.integer],
    target_lengths: NDArray[np.integer],
    *,
    length_multiple: int = 1,
    group_rows: Sequence[int] = (),
) -> Batch:
    """Pad rows of pieces into a Batch.

    source_pieces, target_pieces: the rows end to end, without special ids.
    source_lengths, target_lengths: pieces in each row, shape (B,); B may be 0.
    length_multiple: padded lengths are rounded up to a multiple of this.
    group_rows: the number of rows in each group; () if all rows are one group.
    """
    source_BS = _pad(source_pieces, source_lengths, length_multiple)
    target_BT = _pad(target_pieces, target_lengths, length_multiple)
    rows = np.arange(len(source_lengths))
    source_BS[rows, source_lengths] = EOS
    decoder_input_BT = np.empty_like(target_BT)
    decoder_input_BT[:, 0] = BOS
    decoder_input_BT[:, 1:] = target_BT[:, :-1]
    target_BT[rows, target_lengths] = EOS
    groups = []
    for first, end in pairwise(accumulate(group_rows, initial=0)):
        source, target = source_lengths[first:end], target_lengths[first:end]
        widths = _width(source, length_multiple), _width(target, length_multiple)
        tokens = int(source.sum()) + end - first, int(target.sum()) + end - first
        groups.append(RowGroup(first, end, *widths, *tokens))
    return Batch(
        torch.from_numpy(source_BS),
        torch.from_numpy(decoder_input_BT),
        torch.from_numpy(target_BT),
        torch.from_numpy(source_lengths.astype(np.int64) + 1),
        torch.from_numpy(target_lengths.astype(np.int64) + 1),
        num_source_tokens=int(source_lengths.sum()) + len(source_lengths),
        num_target_tokens=int(target_lengths.sum()) + len(target_lengths),
        groups=tuple(groups),
    )


def _width(lengths: NDArray[np.integer], length_multiple: int) -> int:
    """Cells of a padded row: the longest of these lengths with its end of sentence, rounded up."""
    longest = int(lengths.max(initial=0)) + 1
    return -(-longest // length_multiple) * length_multiple


def _pad(
    pieces: NDArray[np.integer], lengths: NDArray[np.integer], length_multiple: int
) -> NDArray[np.int64]:
    """Rows of pieces, shape (B, longest + 1 rounded up); the last cells of a row are PAD."""
    width = _width(lengths, length_multiple)
    padded = np.full((len(lengths), width), PAD, dtype=np.int64)
    padded[np.arange(width) < lengths[:, None]] = pieces
    return padded
