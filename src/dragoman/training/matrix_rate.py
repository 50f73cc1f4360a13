"""The rate of matrix products on one device, against which useful FLOPs are judged."""

from __future__ import annotations

import socket
import statistics
import time
from typing import Final

import torch

from dragoman.model.products import project
from dragoman.telemetry.events import Alert, DeviceMeasured
from dragoman.training.config import Precision

_DTYPES: Final[dict[Precision, torch.dtype]] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
_SIZES: Final = {"cuda": 8192, "cpu": 1024}
"""Square matrices that fill the device and take little time to make."""
_TRIES: Final = 7
_ENOUGH_S: Final = 1.0
"""After this time no product begins: a type without instructions on the device (fp16 on most CPUs)
is tried only once."""
_CLEARLY_SLOWER: Final = 1.25
"""Half precision over fp32: a smaller slowdown may be noise."""


def measure_device(device: torch.device, precision: Precision) -> DeviceMeasured:
    """The rate of matrix products in the precision of training.

    It is measured for about a second, or with two products if these take longer.
    If several ranks share a host, each calls this at the same time and measures its own part.
    """
    size = _size(device)
    return DeviceMeasured(
        device=str(device),
        matrix_flop_per_s=matrix_flop_per_s(device, precision)[0],
        alone_tokens_per_s=None,
        method=f"products of {size} x {size} matrices in {precision}, before the first step",
    )


def matrix_flop_per_s(device: torch.device, *precisions: Precision) -> list[float]:
    """The rate of matrix products in each of these precisions, measured in turns: other programs
    disturb all of them alike."""
    size = _size(device)
    wide = torch.randn(size, size, device=device)
    matrices = [wide.to(_DTYPES[precision]) for precision in precisions]
    for matrix in matrices:
        _product_s(matrix)  # loads the library
    turns: list[list[float]] = []
    while len(turns) < _TRIES and sum(map(sum, turns)) < _ENOUGH_S:
        turns.append([_product_s(matrix) for matrix in matrices])
    return [2.0 * size**3 / statistics.median(seconds) for seconds in zip(*turns, strict=True)]


def slow_precision(measured: DeviceMeasured, precision: Precision) -> Alert | None:
    """The alert if a product takes longer in half precision than in fp32.

    A processor without instructions for bf16 (AVX2 alone) computes it number by number: an EPYC of
    2021 takes up to 15 times as long as in fp32, and nothing else shows why training is so slow.
    """
    if precision == "fp32":
        return None
    (fp32,) = matrix_flop_per_s(torch.device(measured.device), "fp32")
    times = fp32 / measured.matrix_flop_per_s
    if times < _CLEARLY_SLOWER:
        return None
    return Alert(
        severity="warning",
        cause=f"on {socket.gethostname()} products of matrices take {times:.1f} times as long in "
        f"{precision} as in fp32",
        remedy="train in fp32 (train.precision)",
    )


def _size(device: torch.device) -> int:
    return _SIZES.get(device.type, _SIZES["cpu"])


def _product_s(matrix: torch.Tensor) -> float:
    _wait(matrix.device)
    began = time.perf_counter()
    project(matrix, matrix)
    _wait(matrix.device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
