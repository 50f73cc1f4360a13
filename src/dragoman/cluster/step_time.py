"""Bytes on the wire and seconds of a step, as formulas; nothing here knows a recipe or a machine.

S bytes of gradients (DiLoCo: of their sums, or of movements), N ranks of which each sends and
receives at B bytes/s, k collectives, alpha the latency of one message, Tc the compute of a step, T
the time its synchronisation takes:

    W        = 2 (N-1)/N S                           bytes through each interface, each direction
    T        = W / B + k 2 (N-1) alpha
    sync     = Tc + max(0, T - overlap)              overlap <= 0.9 of backward, 2/3 of Tc,
                                                     and never the last bucket
    accum K  = Tc + max(0, T - overlap) / K          a step is one micro-batch
    diloco   = Tc + (T + w) / H                      H local steps between synchronisations,
                                                     w its own work on what it sends
    stream   = Tc + (F max(0, T(S/F) - tau Tc) + w) / H         F fragments, tau <= H/F steps late

Ring all-reduce: Patarasuk and Yuan 2009. DiLoCo: Douillard et al. 2023; streaming: Douillard et
al. 2025. PowerSGD: Vogels et al. 2019.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

from dragoman.distributed.wire import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    FP32_BYTES,
    POWERSGD_LEAST_GAIN,
    ring_bytes,
)

BACKWARD_SHARE: Final = 2 / 3
"""The share of backward in a step's compute; forward is the other third."""
OVERLAP_SHARE: Final = 0.9
"""The share of backward during which gradients can be on the wire: the first ones are ready only
after a while."""
OVERLAP_SOURCE: Final = "assumed"
POWERSGD_COMPUTE: Final = 1.08
"""A step's compute with its products, orthogonalisation and error feedback, over that without.

These depend on the weights, not on the batch: 3.6 to 6.2 ns per weight on one core of an AMD EPYC
(Zen 5), 2.9 to 4.1 on two (they wait for memory). On a processor with large batches this factor is
too high.
"""
POWERSGD_SOURCE: Final = "measured: one processor (Zen 5); assumed for others and for GPUs"
DILOCO_WEIGHT_S: Final = {"cpu": 18e-9, "gpu": 0.5e-9}
"""Seconds of DiLoCo's work per weight that is sent, whatever the batch, if it was not measured;
`auto` and doctor measure it (distributed/diloco_work.py)."""
DILOCO_SOURCES: Final = {
    "cpu": "measured: a core of an AMD EPYC (Zen 3) beside a busy neighbour; assumed for others",
    "gpu": "assumed: 330 bytes of memory a weight, 40 kernels for each half a million",
}
GPU_SPREAD: Final = 0.127
"""The standard deviation over steps of like GPUs, divided by their mean: the slowest of eight takes
1.18 times the mean. Fitted to one line of NVIDIA's table: 8 x A100 in one host train 6.72 times as
fast as one (DeepLearningExamples, PyTorch, Transformer big, mixed precision). Not measured with
dragoman. For processors nothing is known, and no spread is counted.
"""
SPREAD_SOURCE: Final = "assumed: fitted to one line of NVIDIA's table, 8 x A100"
SAVE_BYTES_PER_S: Final = 200e6
"""The rate of a disk, if doctor has not measured the hosts' own."""
SAVE_SOURCE: Final = "assumed: 200 MB/s"


def largest_of_draws(count: int) -> float:
    """The expected largest of a number of draws from a normal distribution (Blom 1958)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def bucket_bytes(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """Bytes of each collective of DistributedDataParallel for fp32 gradients of these weights.

    shapes: in the model's order; gradients are complete from its end to its beginning. A bucket
    is closed when it has reached its size; no weight is split.
    """
    buckets = [0]
    for shape in reversed(shapes):
        if buckets[-1] >= (FIRST_BUCKET_BYTES if len(buckets) == 1 else BUCKET_BYTES):
            buckets.append(0)
        buckets[-1] += math.prod(shape) * FP32_BYTES
    return buckets


def ring_s(
    size_bytes: float,
    *,
    num_ranks: int,
    bytes_per_s: float,
    latency_s: float = 0.0,
    num_collectives: int = 1,
) -> float:
    """Seconds of an all-reduce of `size_bytes`, cut into this many collectives."""
    messages = num_collectives * 2 * (num_ranks - 1)
    return ring_bytes(size_bytes, num_ranks=num_ranks) / bytes_per_s + messages * latency_s


def sync_exposed_s(compute_s: float, network_s: float, *, last_share: float) -> float:
    """Seconds of one synchronisation that backward does not hide.

    last_share: the share of the gradients in the last bucket, which is complete only when backward
        ends.
    """
    overlap_s = OVERLAP_SHARE * BACKWARD_SHARE * compute_s
    return max(last_share * network_s, network_s - overlap_s)


def streaming_exposed_s(
    compute_s: float, fragment_s: float, *, sync_every: int, num_fragments: int, delay: int
) -> float:
    """Mean seconds of waiting in a step of streaming DiLoCo.

    fragment_s: synchronisation of one fragment.
    delay: steps that go on meanwhile, at most sync_every / num_fragments.
    """
    assert delay <= sync_every / num_fragments
    return num_fragments * max(0.0, fragment_s - delay * compute_s) / sync_every


def powersgd_bytes(shapes: Sequence[tuple[int, ...]], *, rank: int) -> int:
    """Bytes that PowerSGD reduces instead of gradients of these shapes, in fp32.

    An m x n matrix becomes factors of (m + n) x rank if that is less than half of it; vectors stay
    as they are. powerSGD_hook of torch.distributed decides in the same way.
    """
    numbers = 0
    for shape in shapes:
        whole = math.prod(shape)
        rows = shape[0]
        factors = (rows + whole // rows) * rank
        compressed = len(shape) > 1 and factors * POWERSGD_LEAST_GAIN < whole
        numbers += factors if compressed else whole
    return numbers * FP32_BYTES
