"""Matrix products, by the faster of the two libraries that PyTorch has for them on a CPU.

PyTorch hands fp32 products to MKL, which uses half the width of the vector units of a processor
that Intel did not make. oneDNN, which PyTorch carries for bf16 and for its own compiler, asks what
the processor can do and not who made it: on an AMD EPYC (Zen 5) it multiplies twice as fast
(benchmarks/products.py). The choice depends on the machine and on shapes alone, so that a resumed
run repeats itself bit by bit.

Shapes: N rows, I inputs, O outputs.
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST_MULTIPLICATIONS = 1 << 25
"""Smaller products are over before oneDNN has written its code for their shape (0.3 ms)."""


def project(
    x_NI: Tensor,
    weight_OI: Tensor,
    bias_O: Tensor | None = None,
    *,
    memory_NO: Tensor | None = None,
) -> Tensor:
    """x_NI @ weight_OI.T + bias_O, (N, O); no gradient is promised.

    memory_NO: memory that the result may be written to, if there is no bias.
    """
    if prefers_onednn(x_NI, weight_OI):
        return onednn_project(x_NI, weight_OI, bias_O)
    if memory_NO is not None and bias_O is None:
        return torch.mm(x_NI, weight_OI.t(), out=memory_NO)
    return F.linear(x_NI, weight_OI, bias_O)


def onednn_project(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`project` by oneDNN: the operator that torch.compile, too, uses for fp32 on a CPU."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x_NI, weight_OI, bias_O, "none", [], "")
    return product


def prefers_onednn(x_NI: Tensor, weight_OI: Tensor) -> bool:
    """Whether oneDNN is faster: for a large fp32 product, if MKL is slow on this processor."""
    return (
        x_NI.is_cpu
        and x_NI.dtype == weight_OI.dtype == torch.float32
        and x_NI.numel() * weight_OI.shape[0] >= LEAST_MULTIPLICATIONS
        and mkl_is_slow()
        and not torch.compiler.is_compiling()
    )


@functools.cache
def mkl_is_slow() -> bool:
    """Whether PyTorch's products are MKL's, on a processor with AVX-512 that is not Intel's."""
    return (
        torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        and _vendor() not in (None, "GenuineIntel")
    )


def _vendor() -> str | None:
    """The maker of the processor as Linux names it; None if it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("vendor_id"))
    return next(names, None)
