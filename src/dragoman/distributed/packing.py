"""Numbers in few bits: codes, with one fp32 scale a block, which is its largest magnitude.

Blockwise quantisation is that of Dettmers et al. 2022, four bits with three of exponent and none of
mantissa (E3M0) those in which Streaming DiLoCo sends (Douillard et al. 2025).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

import torch
from torch import Tensor

BLOCK: Final = 256
"""Numbers that share a scale; short enough that one large number spoils few others."""
_SCALE_BYTES: Final = 4
_LEAST_SCALE: Final = torch.finfo(torch.float32).tiny
"""A block of zeros has a scale of zero, by which nothing can be divided."""


class Packing(ABC):
    """fp32 to bytes and back. codes_bytes: of the codes of a block."""

    codes_bytes: int

    @property
    def block_bytes(self) -> int:
        """Of a block with its scale."""
        return self.codes_bytes + _SCALE_BYTES

    def packed(self, parts: Tensor) -> Tensor:
        """fp32 (parts, numbers), whole blocks, to bytes (parts, codes + scales)."""
        blocks = parts.view(len(parts), -1, BLOCK)
        scales = blocks.abs().amax(2, keepdim=True)
        codes = self._codes(blocks / scales.clamp(min=_LEAST_SCALE))
        return torch.cat([codes.flatten(1), scales.flatten(1).view(torch.uint8)], 1)

    def unpacked(self, packed: Tensor) -> Tensor:
        """Bytes (parts, codes + scales) to fp32 (parts, numbers)."""
        size = packed.shape[1] // self.block_bytes * self.codes_bytes
        codes = packed[:, :size].reshape(len(packed), -1, self.codes_bytes)
        scales = packed[:, size:].contiguous().view(torch.float32)
        return self._numbers(codes).mul_(scales.unsqueeze(2)).flatten(1)

    @abstractmethod
    def _codes(self, blocks: Tensor) -> Tensor:
        """Numbers from -1 to 1 (..., BLOCK) to bytes (..., codes_bytes); the input is spent."""

    @abstractmethod
    def _numbers(self, codes: Tensor) -> Tensor:
        """The other way round, fp32."""


class Int8(Packing):
    """127 steps of equal size to each side."""

    codes_bytes = BLOCK
    largest: Final = 127

    def _codes(self, blocks: Tensor) -> Tensor:
        return blocks.mul_(self.largest).round_().to(torch.int8).view(torch.uint8)

    def _numbers(self, codes: Tensor) -> Tensor:
        return codes.view(torch.int8).to(torch.float32).div_(self.largest)


class Fp4(Packing):
    """Zero, and seven powers of two to each side: 1, 1/2 ... 1/64.

    A number becomes the nearest of them. Neighbours share a byte, the first in its lower half; a
    code is a sign, 8, and the power, from 1 for 1/64 to 7 for 1.
    """

    codes_bytes = BLOCK // 2
    _MANTISSA_BITS: Final = 23
    _BEFORE_FIRST: Final = 120
    """What fp32 stores as the exponent of half the smallest power: it counts from 127."""

    def __init__(self) -> None:
        powers = torch.tensor([0.0, *(2.0**-k for k in range(6, -1, -1))])
        numbers = torch.cat([powers, -powers])
        codes = torch.arange(256)
        self._pairs = torch.stack([numbers[codes % 16], numbers[codes // 16]], 1)

    def _codes(self, blocks: Tensor) -> Tensor:
        # Half a mantissa more rounds up from where the next power is nearer; the sign stays in
        # front of the exponent.
        bits = blocks.view(torch.int32).add_(1 << self._MANTISSA_BITS - 1)
        exponents = bits.bitwise_right_shift_(self._MANTISSA_BITS).to(torch.int16)
        signs = exponents.bitwise_right_shift(5).bitwise_and_(8)
        levels = exponents.bitwise_and_(255).sub_(self._BEFORE_FIRST).clamp_(min=0)
        pairs = levels.bitwise_or_(signs).to(torch.uint8).view(torch.int16)
        return pairs.bitwise_or(pairs.bitwise_right_shift(4)).to(torch.uint8)

    def _numbers(self, codes: Tensor) -> Tensor:
        # Two numbers are looked up at once, as if they were one of fp64.
        pairs = self._pairs.to(codes.device).view(torch.float64).view(-1)
        found = pairs.index_select(0, codes.flatten().to(torch.int32))
        return found.view(torch.float32).view(*codes.shape[:-1], BLOCK)


INT8: Final = Int8()
FP4: Final = Fp4()
