"""Bytes that ranks send to each other, as the strategies send them and the planner counts them.

Free of torch.
"""

from __future__ import annotations

from typing import Final

FP32_BYTES: Final = 4
BF16_BYTES: Final = 2
FP4_BYTES: Final = 1 / 2 + FP32_BYTES / 256
"""Four bits, and their share of the scale of a block."""
BUCKET_BYTES: Final = 25 * 2**20
"""Gradients leave in buckets of about this size in fp32 while backward goes on, as those of
DistributedDataParallel do."""
FIRST_BUCKET_BYTES: Final = 2**20
"""The first bucket is small, so that it leaves early."""


def ring_bytes(size_bytes: float, *, num_ranks: int) -> float:
    """Bytes that each rank sends, and receives, to sum a payload: 2 (N - 1) / N of it.

    Patarasuk and Yuan 2009: N - 1 parts of one N-th are passed round twice, first to add, then to
    distribute the result. Headers are not counted.
    """
    return 2 * (num_ranks - 1) / num_ranks * size_bytes
