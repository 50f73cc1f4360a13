"""The graphs of a model with its matrices in int8, a quarter of their size.

Each row o of a matrix has a scale of its own: w[o, i] = s[o] * q[o, i], with s[o] the largest
|w[o, i]| over 127. Activations stay in fp32: onnxruntime widens the matrices once, when it loads a
graph. If activations were rounded too, as by onnxruntime's tool for dynamic quantization, many more
translations would change (benchmarks/web.py: 23 of 200 instead of none).
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor

from dragoman.formats.onnx import ModelGraph
from dragoman.model.transformer import Transformer


class Int8ModelGraph(ModelGraph):
    """The same operators with matrices in int8; a matrix that is used twice is stored once."""

    def __init__(self, model: Transformer) -> None:
        super().__init__(model)
        self._written: dict[tuple[int, bool], tuple[str, str]] = {}

    def _matrix(self, matrix: Tensor, *, transposed: bool = False) -> str:
        numbers, scales = self._quantized(matrix, transposed=transposed)
        return self.add("Mul", self.add("Cast", numbers, to=1), scales)

    def _rows(self, matrix: Tensor, ids: str) -> str:
        numbers, scales = self._quantized(matrix, transposed=False)
        rows = self.add("Cast", self.add("Gather", numbers, ids), to=1)
        return self.add("Mul", rows, self.add("Gather", scales, ids))

    def _quantized(self, matrix: Tensor, *, transposed: bool) -> tuple[str, str]:
        key = (matrix.data_ptr(), transposed)
        if key not in self._written:
            parts = [part.t() if transposed else part for part in quantized(matrix)]
            numbers, scales = (self.constant(part.cpu().contiguous().numpy()) for part in parts)
            self._written[key] = (numbers, scales)
        return self._written[key]


def quantized(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Round a matrix (O, I) to int8.

    Returns the integers and one fp32 scale for each row, (O, 1).
    """
    wide = matrix.detach().float()
    scales = wide.abs().amax(dim=1, keepdim=True) / 127
    scales[scales == 0] = 1.0
    return (wide / scales).round().to(torch.int8), scales


def rounded(model: Transformer) -> Transformer:
    """A copy of a model whose matrices have the values of their int8 forms."""
    copy = deepcopy(model)
    with torch.no_grad():
        for parameter in copy.parameters():
            if parameter.dim() == 2:
                numbers, scales = quantized(parameter)
                parameter.copy_(numbers.float() * scales)
    return copy
