"""fp32 products of training on a CPU: MKL beside oneDNN, in turn, in one process.

    benchmarks/products.py [--threads 2] [--rounds 7] [--tokens 2048]

For the shapes of linear layers it prints GFLOP/s of the forward pass, of the gradient of the input
and of that of the weights (medians of the rounds), and the median of the rounds' ratios. The last
line says which of the two dragoman uses on this machine (model/products.py).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from dragoman.model.products import mkl_is_slow, onednn_project

SHAPES = [(192, 192), (192, 768), (256, 1024), (512, 512), (512, 2048), (2048, 512), (512, 8000)]
"""Inputs and outputs: the demo's and Transformer-base's layers, and a softmax."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=2048)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("inputs x outputs: GFLOP/s of MKL -> oneDNN (ratio)")
    for inputs, outputs in SHAPES:
        x_NI = torch.randn(options.tokens, inputs)
        weight_OI = torch.randn(outputs, inputs)
        grad_NO = torch.randn(options.tokens, outputs)
        cells = [
            _beside(x_NI, weight_OI, options.rounds),
            _beside(grad_NO, weight_OI.t(), options.rounds),
            _beside(x_NI.t(), grad_NO.t(), options.rounds),
        ]
        names = ("forward", "input's gradient", "weights' gradient")
        line = "   ".join(f"{name} {cell}" for name, cell in zip(names, cells, strict=True))
        print(f"{inputs:4} x {outputs:4}   {line}", flush=True)
    print(f"dragoman takes {'oneDNN' if mkl_is_slow() else 'MKL'} here")


def _beside(left: Tensor, right: Tensor, rounds: int) -> str:
    """left @ right.T by both."""
    gflop = 2e-9 * left.numel() * right.shape[0]
    mkl, onednn = [], []
    for _ in range(rounds + 1):
        mkl.append(gflop / _seconds(lambda: left @ right.t()))
        onednn.append(gflop / _seconds(lambda: onednn_project(left, right)))
    ratios = [new / old for old, new in zip(mkl[1:], onednn[1:], strict=True)]
    return (
        f"{statistics.median(mkl[1:]):4.0f} -> {statistics.median(onednn[1:]):4.0f} "
        f"({statistics.median(ratios):.2f})"
    )


def _seconds(product: Callable[[], Tensor]) -> float:
    began = time.perf_counter()
    product()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
