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

    A number becomes the nearest of them. They are worked out in the bits of fp32, whose exponent
    begins at bit 23 and counts from 127. Two codes are a byte: one of the first half of the block,
    one of the second.
    """

    codes_bytes = BLOCK // 2
    _MANTISSA_BITS: Final = 23
    _BEFORE_FIRST: Final = 120  # the exponent, as it is stored, of half the smallest power

    def _codes(self, blocks: Tensor) -> Tensor:
        bits = blocks.view(torch.int32)
        signs = bits.lt(0).to(torch.uint8).mul_(8)
        magnitudes = blocks.abs_().view(torch.int32)
        # Half a mantissa more rounds up from where the next power is nearer.
        exponents = magnitudes.add_(1 << self._MANTISSA_BITS - 1).bitwise_right_shift_(
            self._MANTISSA_BITS
        )
        levels = exponents.sub_(self._BEFORE_FIRST).clamp_(min=0).to(torch.uint8)
        codes = levels.add_(signs)
        first, second = codes.chunk(2, dim=-1)
        return second.mul(16).add_(first)

    def _numbers(self, codes: Tensor) -> Tensor:
        both = torch.cat([codes.bitwise_and(15), codes.bitwise_right_shift(4)], dim=-1)
        levels = both.bitwise_and(7).to(torch.int32)
        bits = levels.add(self._BEFORE_FIRST).bitwise_left_shift_(self._MANTISSA_BITS)
        numbers = bits.mul_(levels.ne(0)).view(torch.float32)
        return numbers.mul_(both.lt(8).to(torch.float32).mul_(2).sub_(1))


INT8: Final = Int8()
FP4: Final = Fp4()
