"""All-reduce of numbers that travel as int8, a quarter of their bytes in fp32.

Each rank adds up one part of the tensor and tells the others the sum, as in a ring all-reduce
(Patarasuk and Yuan 2009); what travels, both times, are codes of one byte with one fp32 scale a
block, which is its largest magnitude over 127 (blockwise quantisation, Dettmers et al. 2022).
"""

from __future__ import annotations

import math
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

BLOCK: Final = 256
"""Numbers that share a scale; short enough that one large number spoils few others."""
_LARGEST_CODE: Final = 127
_LEAST_SCALE: Final = torch.finfo(torch.float32).tiny
"""A block of zeros has a scale of zero, by which nothing can be divided."""


def int8_all_reduce(tensor: Tensor, group: dist.ProcessGroup) -> None:
    """Sum a flat fp32 tensor over a group in place; every rank gets the same bits.

    Each number is off by at most half a scale of its block for every rank, and half of the sum's.
    """
    num_ranks = dist.get_world_size(group)
    parts = tensor.new_zeros(num_ranks, _part_size(tensor.numel(), num_ranks))
    parts.view(-1)[: tensor.numel()] = tensor
    sent = _packed(parts)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    own = _packed(_unpacked(received).sum(0, keepdim=True))
    dist.all_gather_into_tensor(sent, own, group=group)
    tensor.copy_(_unpacked(sent).view(-1)[: tensor.numel()])


def packed_bytes(num_elements: int, num_ranks: int) -> int:
    """Of so many numbers with their scales, a whole number of blocks for each rank."""
    size = num_ranks * _part_size(num_elements, num_ranks)
    return size + size // BLOCK * torch.float32.itemsize


def _part_size(num_elements: int, num_ranks: int) -> int:
    return BLOCK * math.ceil(num_elements / (num_ranks * BLOCK))


def _packed(parts: Tensor) -> Tensor:
    """fp32 (parts, numbers) to bytes (parts, numbers + scales)."""
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
