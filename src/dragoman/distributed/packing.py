"""Numbers in few bits: codes, and for each block one fp32 scale, which is its largest magnitude.

Blockwise quantisation follows Dettmers et al. 2022. Four bits with three of exponent and none of
mantissa (E3M0) are the format of Streaming DiLoCo (Douillard et al. 2025).

The all-reduce sends such numbers. Each rank sums one part of the tensor and sends the sum to the
others, as in a ring all-reduce (Patarasuk and Yuan 2009); both transfers are packed. The caller can
get the rounding errors and add them to the next numbers: error feedback, for the parts and for
their sums as in 1-bit Adam (Tang et al. 2021).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

BLOCK: Final = 256
"""Numbers that share a scale; short enough that one large number spoils few others."""
_SCALE_BYTES: Final = 4
_LEAST_SCALE: Final = torch.finfo(torch.float32).tiny
"""Replaces the scale of a block of zeros, which would be a division by zero."""


class Fp4:
    """fp32 to bytes and back, with four bits for a number: zero, and plus or minus 1, 1/2 ... 1/64.

    A number becomes the nearest of these, but zero if it is below 3/4 of 1/64. Two neighbours share
    a byte, the first in its lower half. A code is 0 for zero, else 1 for 1/64 up to 7 for 1, plus 8
    if the number is negative.
    """

    block_bytes: Final = BLOCK // 2 + _SCALE_BYTES
    """Bytes of a block with its scale."""
    _CODES_BYTES: Final = BLOCK // 2
    _MANTISSA_BITS: Final = 23
    _BEFORE_FIRST: Final = 120
    """The exponent field, biased by 127, of half the smallest power in fp32."""

    def packed(self, parts: Tensor) -> Tensor:
        """fp32 (parts, numbers), whole blocks, to bytes (parts, codes + scales)."""
        blocks = parts.view(len(parts), -1, BLOCK)
        scales = blocks.abs().amax(2, keepdim=True)
        codes = self._codes(blocks / scales.clamp(min=_LEAST_SCALE))
        return torch.cat([codes.flatten(1), scales.flatten(1).view(torch.uint8)], 1)

    def unpacked(self, packed: Tensor) -> Tensor:
        """Bytes (parts, codes + scales) to fp32 (parts, numbers)."""
        size = packed.shape[1] // self.block_bytes * self._CODES_BYTES
        codes = packed[:, :size].reshape(len(packed), -1, self._CODES_BYTES)
        scales = packed[:, size:].contiguous().view(torch.float32)
        return self._numbers(codes).mul_(scales.unsqueeze(2)).flatten(1)

    def _codes(self, blocks: Tensor) -> Tensor:
        """Numbers from -1 to 1 (..., BLOCK) to bytes; overwrites the input."""
        # Adding half a mantissa rounds up if the next power is nearer; the sign stays before the
        # exponent.
        bits = blocks.view(torch.int32).add_(1 << self._MANTISSA_BITS - 1)
        exponents = bits.bitwise_right_shift_(self._MANTISSA_BITS).to(torch.int16)
        signs = exponents.bitwise_right_shift(5).bitwise_and_(8)
        levels = exponents.bitwise_and_(255).sub_(self._BEFORE_FIRST).clamp_(min=0)
        pairs = levels.bitwise_or_(signs).to(torch.uint8).view(torch.int16)
        return pairs.bitwise_or(pairs.bitwise_right_shift(4)).to(torch.uint8)

    def _numbers(self, codes: Tensor) -> Tensor:
        """The inverse of `_codes`, in fp32."""
        # A table of fp64 holds two numbers, so one lookup gives both.
        pairs = _pairs_of_bytes(codes.device).view(torch.float64).view(-1)
        found = pairs.index_select(0, codes.flatten().to(torch.int32))
        return found.view(torch.float32).view(*codes.shape[:-1], BLOCK)


@cache
def _pairs_of_bytes(device: torch.device) -> Tensor:
    """The two numbers that each byte holds, (256, 2)."""
    powers = torch.tensor([0.0, *(2.0**-k for k in range(6, -1, -1))])
    numbers = torch.cat([powers, -powers])
    codes = torch.arange(256)
    return torch.stack([numbers[codes % 16], numbers[codes // 16]], 1).to(device)


FP4: Final = Fp4()


PIECE: Final = 2**19
"""About this many numbers are sent at a time, so processor and network work side by side."""


def packed_all_reduce(
    tensor: Tensor, group: dist.ProcessGroup, packing: Fp4, *, lost: Tensor | None = None
) -> None:
    """Sum a flat fp32 tensor over a group in place; every rank gets the same bits.

    Each number is rounded once on every rank, and the sum once more.
    lost: as long as the tensor; receives the rounding errors of this rank, in its own numbers and
    in the sums that it has made. Over all ranks it adds up to the error of the sum.
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


def packed_bytes(num_elements: int, num_ranks: int, packing: Fp4) -> int:
    """Bytes of `num_elements` packed numbers and scales, padded to whole blocks for each rank."""
    whole, rest = divmod(num_elements, _piece_size(num_ranks))
    size = whole * _piece_size(num_ranks) + num_ranks * _part_size(rest, num_ranks)
    return size // BLOCK * packing.block_bytes


class _Arriving(NamedTuple):
    """Bytes (ranks, codes + scales) in transit.

    numbers: before packing.
    sent: packed.
    """

    packed: Tensor
    work: dist.Work | None
    numbers: Tensor
    sent: Tensor

    def arrived(self) -> Tensor:
        """Wait for the bytes and return them."""
        if self.work is not None:
            self.work.wait()
        return self.packed


def _exchange(piece: Tensor, group: dist.ProcessGroup, packing: Fp4) -> _Arriving:
    """Send every rank the part that it sums; receives this rank's part from all ranks."""
    num_ranks = dist.get_world_size(group)
    missing = num_ranks * _part_size(len(piece), num_ranks) - len(piece)
    whole = torch.cat([piece, piece.new_zeros(missing)]) if missing else piece
    numbers = whole.view(num_ranks, -1)
    sent = packing.packed(numbers)
    received = torch.empty_like(sent)
    work = dist.all_to_all_single(received, sent, group=group, async_op=True)
    return _Arriving(received, work, numbers, sent)


def _gather_sums(parts: _Arriving, group: dist.ProcessGroup, packing: Fp4) -> _Arriving:
    """Sum this rank's part and send it to the others; receives all sums."""
    numbers = packing.unpacked(parts.arrived()).sum(0, keepdim=True)
    own = packing.packed(numbers)
    sums = torch.empty_like(parts.packed)
    work = dist.all_gather(list(torch.split(sums, 1)), own, group=group, async_op=True)
    return _Arriving(sums, work, numbers, own)


def _lost(parts: _Arriving, sums: _Arriving, group: dist.ProcessGroup, packing: Fp4) -> Tensor:
    lost = parts.numbers - packing.unpacked(parts.sent)
    lost[dist.get_rank(group)] += (sums.numbers - packing.unpacked(sums.sent)).view(-1)
    return lost.view(-1)


def _piece_size(num_ranks: int) -> int:
    return num_ranks * _part_size(PIECE, num_ranks)


def _part_size(num_elements: int, num_ranks: int) -> int:
    return BLOCK * math.ceil(num_elements / (num_ranks * BLOCK))
