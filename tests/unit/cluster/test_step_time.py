"""The formulas against measured runs, published algorithms' own identities and a simulation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import _compute_bucket_assignment_by_size  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torch_powersgd

from dragoman.cluster import step_time
from dragoman.cluster.workload import weight_shapes
from dragoman.model.config import ModelConfig

FP32_GRADIENTS = 4 * 60_880_896
REFERENCE_RUNS = [
    (2, 215e6, 1.198),
    (3, 215e6, 1.5625),
    (4, 215e6, 1.70),
    (4, 12.0e6, 30.0),
    (4, 12.0e6, 31.0),
]


@pytest.mark.parametrize(("num_ranks", "bytes_per_s", "measured_s"), REFERENCE_RUNS)
def test_the_reference_runs_follow_from_link_and_rank_count_alone(
    num_ranks: int, bytes_per_s: float, measured_s: float
) -> None:
    network_s = step_time.ring_s(FP32_GRADIENTS, num_ranks=num_ranks, bytes_per_s=bytes_per_s)
    assert network_s == pytest.approx(measured_s, rel=0.10)


@pytest.mark.parametrize(("num_ranks", "megabytes"), [(2, 243.5), (3, 324.7), (4, 365.3), (1, 0.0)])
def test_ring_bytes_of_the_reference_model(num_ranks: int, megabytes: float) -> None:
    sent = step_time.ring_bytes(FP32_GRADIENTS, num_ranks=num_ranks)
    assert sent / 1e6 == pytest.approx(megabytes, abs=0.05)


@given(num_ranks=st.integers(1, 512), size=st.integers(0, 10**12))
def test_ring_bytes_are_those_of_a_ring_walked_chunk_by_chunk(num_ranks: int, size: int) -> None:
    chunk = size / num_ranks
    reduce_scatter = gather = (num_ranks - 1) * chunk
    assert step_time.ring_bytes(size, num_ranks=num_ranks) == pytest.approx(reduce_scatter + gather)


@pytest.mark.parametrize("d_model", [64, 512, 1024])
@pytest.mark.parametrize("tied_embeddings", ["all", "none"])
def test_buckets_are_those_of_pytorch(d_model: int, tied_embeddings: Any) -> None:
    config = ModelConfig(
        d_model=d_model, d_ffn=4 * d_model, tied_embeddings=tied_embeddings, attention_bias=False
    )
    shapes = weight_shapes(config, source_vocab_size=32_768, target_vocab_size=32_768)
    weights = [torch.empty(shape, device="meta") for shape in reversed(shapes)]
    limits = [step_time.FIRST_BUCKET_BYTES, step_time.BUCKET_BYTES]
    assigned, _ = _compute_bucket_assignment_by_size(weights, limits)
    expected = [sum(4 * weights[index].numel() for index in bucket) for bucket in assigned]
    assert step_time.bucket_bytes(shapes) == expected


@pytest.mark.parametrize("rank", [1, 4, 32])
def test_powersgd_compresses_what_pytorch_compresses(rank: int) -> None:
    shapes = weight_shapes(ModelConfig(), source_vocab_size=32_768, target_vocab_size=32_768)
    expected = 0
    for shape in shapes:
        whole = torch.empty(shape, device="meta").numel()
        if len(shape) == 1:
            expected += whole
            continue
        compress, before, after = torch_powersgd._should_compress(  # type: ignore[no-untyped-call]
            shape[0], shape[1], rank, 2
        )
        expected += after if compress else before
    assert step_time.powersgd_bytes(shapes, rank=rank) == 4 * expected
