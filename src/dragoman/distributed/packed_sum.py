"""All-reduce of numbers that travel in few bits.

Each rank adds up one part of the tensor and tells the others the sum, as in a ring all-reduce
(Patarasuk and Yuan 2009); what travels is packed, both times. What rounding has taken away can be
had back, to be added to what is sent next time: error feedback, for the parts and for their sums as
in 1-bit Adam (Tang et al. 2021).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from dragoman.distributed.packing import BLOCK, Packing

PIECE: Final = 2**19
"""About so many numbers travel together: processor and network work at the same time."""


def packed_all_reduce(
    tensor: Tensor, group: dist.ProcessGroup, packing: Packing, *, lost: Tensor | None = None
) -> None:
    """Sum a flat fp32 tensor over a group in place; every rank gets the same bits.

    Each number is rounded once on every rank, and the sum once more.
    lost: as long as the tensor; set to what this rank's rounding has taken from its own numbers and
    from those sums that it has made. Over all ranks it adds up to what the sum is short of.
    """
    size = _piece_size(dist.get_world_size(group))
    pieces = torch.split(tensor, size)
    exchanged = [_exchange(piece, group, packing) for piece in pieces]
    gathered = [_gather_sums(parts, group, packing) for parts in exchanged]
    for number, (piece, sums) in enumerate(zip(pieces, gathered, strict=True)):
        if lost is not None:
            short = _lost(exchanged[number], sums, group, packing)
            lost[number * size :][: len(piece)] = short[: len(piece)]
        piece.copy_(packing.unpacked(sums.arrived()).view(-1)[: len(piece)])


def packed_bytes(num_elements: int, num_ranks: int, packing: Packing) -> int:
    """Of so many numbers with their scales, a whole number of blocks for each rank."""
    whole, rest = divmod(num_elements, _piece_size(num_ranks))
    size = whole * _piece_size(num_ranks) + num_ranks * _part_size(rest, num_ranks)
    return size // BLOCK * packing.block_bytes


class _Arriving(NamedTuple):
    """Bytes (ranks, codes + scales) that are on their way.

    numbers: what was packed. sent: that, packed.
    """

    packed: Tensor
    work: dist.Work | None
    numbers: Tensor
    sent: Tensor

    def arrived(self) -> Tensor:
        """Wait for them."""
        if self.work is not None:
            self.work.wait()
        return self.packed


def _exchange(piece: Tensor, group: dist.ProcessGroup, packing: Packing) -> _Arriving:
    """Send every rank the part that it adds up; it will have that part of all ranks."""
    num_ranks = dist.get_world_size(group)
    missing = num_ranks * _part_size(len(piece), num_ranks) - len(piece)
    whole = torch.cat([piece, piece.new_zeros(missing)]) if missing else piece
    numbers = whole.view(num_ranks, -1)
    sent = packing.packed(numbers)
    received = torch.empty_like(sent)
    work = dist.all_to_all_single(received, sent, group=group, async_op=True)
    return _Arriving(received, work, numbers, sent)


def _gather_sums(parts: _Arriving, group: dist.ProcessGroup, packing: Packing) -> _Arriving:
    """Add up this rank's part and send it to the others; it will have all sums."""
    numbers = packing.unpacked(parts.arrived()).sum(0, keepdim=True)
    own = packing.packed(numbers)
    sums = torch.empty_like(parts.packed)
    work = dist.all_gather(list(torch.split(sums, 1)), own, group=group, async_op=True)
    return _Arriving(sums, work, numbers, own)


def _lost(parts: _Arriving, sums: _Arriving, group: dist.ProcessGroup, packing: Packing) -> Tensor:
    lost = parts.numbers - packing.unpacked(parts.sent)
    lost[dist.get_rank(group)] += (sums.numbers - packing.unpacked(sums.sent)).view(-1)
    return lost.view(-1)


def _piece_size(num_ranks: int) -> int:
    return num_ranks * _part_size(PIECE, num_ranks)


def _part_size(num_elements: int, num_ranks: int) -> int:
    return BLOCK * math.ceil(num_elements / (num_ranks * BLOCK))
