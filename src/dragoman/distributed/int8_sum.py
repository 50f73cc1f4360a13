"""All-reduce of numbers that travel as int8, a quarter of their bytes in fp32.

Each rank adds up one part of the tensor and tells the others the sum, as in a ring all-reduce
(Patarasuk and Yuan 2009); what travels, both times, are codes of one byte with one fp32 scale a
block, which is its largest magnitude over 127 (blockwise quantisation, Dettmers et al. 2022).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

BLOCK: Final = 256
"""Numbers that share a scale; short enough that one large number spoils few others."""
PIECE: Final = 2**19
"""About so many numbers travel together: processor and network work at the same time."""
_LARGEST_CODE: Final = 127
_LEAST_SCALE: Final = torch.finfo(torch.float32).tiny
"""A block of zeros has a scale of zero, by which nothing can be divided."""


def int8_all_reduce(tensor: Tensor, group: dist.ProcessGroup) -> None:
    """Sum a flat fp32 tensor over a group in place; every rank gets the same bits.

    Each number is off by at most half a scale of its block for every rank, and half of the sum's.
    """
    pieces = torch.split(tensor, _piece_size(dist.get_world_size(group)))
    exchanged = [_exchange(piece, group) for piece in pieces]
    gathered = [_gather_sums(parts, group) for parts in exchanged]
    for piece, sums in zip(pieces, gathered, strict=True):
        piece.copy_(_unpacked(sums.arrived()).view(-1)[: len(piece)])


def packed_bytes(num_elements: int, num_ranks: int) -> int:
    """Of so many numbers with their scales, a whole number of blocks for each rank."""
    whole, rest = divmod(num_elements, _piece_size(num_ranks))
    size = whole * _piece_size(num_ranks) + num_ranks * _part_size(rest, num_ranks)
    return size // BLOCK * (BLOCK + torch.float32.itemsize)


class _Arriving(NamedTuple):
    """Bytes (ranks, numbers + scales) that are on their way."""

    packed: Tensor
    work: dist.Work | None

    def arrived(self) -> Tensor:
        """Wait for them."""
        if self.work is not None:
            self.work.wait()
        return self.packed


def _exchange(piece: Tensor, group: dist.ProcessGroup) -> _Arriving:
    """Send every rank the part that it adds up; it will have that part of all ranks."""
    num_ranks = dist.get_world_size(group)
    missing = num_ranks * _part_size(len(piece), num_ranks) - len(piece)
    whole = torch.cat([piece, piece.new_zeros(missing)]) if missing else piece
    sent = _packed(whole.view(num_ranks, -1))
    received = torch.empty_like(sent)
    work = dist.all_to_all_single(received, sent, group=group, async_op=True)
    return _Arriving(received, work)


def _gather_sums(parts: _Arriving, group: dist.ProcessGroup) -> _Arriving:
    """Add up this rank's part and send it to the others; it will have all sums."""
    own = _packed(_unpacked(parts.arrived()).sum(0, keepdim=True))
    sums = torch.empty_like(parts.packed)
    return _Arriving(
        sums, dist.all_gather(list(torch.split(sums, 1)), own, group=group, async_op=True)
    )


def _piece_size(num_ranks: int) -> int:
    return num_ranks * _part_size(PIECE, num_ranks)


def _part_size(num_elements: int, num_ranks: int) -> int:
    return BLOCK * math.ceil(num_elements / (num_ranks * BLOCK))


def _packed(parts: Tensor) -> Tensor:
    """fp32 (parts, numbers), whole blocks, to bytes (parts, numbers + scales)."""
    blocks = parts.view(len(parts), -1, BLOCK)
    scales = blocks.abs().amax(2, keepdim=True) / _LARGEST_CODE
    codes = (blocks / scales.clamp(min=_LEAST_SCALE)).round_().to(torch.int8)
    return torch.cat([codes.flatten(1).view(torch.uint8), scales.flatten(1).view(torch.uint8)], 1)


def _unpacked(packed: Tensor) -> Tensor:
    """Bytes (parts, numbers + scales) to fp32 (parts, numbers)."""
    size = packed.shape[1] // (BLOCK + torch.float32.itemsize) * BLOCK
    codes = packed[:, :size].reshape(len(packed), -1, BLOCK).view(torch.int8)
    scales = packed[:, size:].contiguous().view(torch.float32)
    return codes.mul(scales.unsqueeze(2)).flatten(1)
