"""A graph of ONNX operators, built one by one. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dragoman import __version__
from dragoman.base.errors import MachineError

_OPSET: Final = 17
"""The first with LayerNormalization; onnxruntime has had it since 1.12."""
_IR_VERSION: Final = 8
"""Of the file format, that belongs to it: the newest that older runtimes read."""


def onnx_module() -> Any:
    """The package onnx; raises MachineError where it is not installed."""
    try:
        import onnx
    except ImportError as error:
        raise MachineError(
            "onnx is not installed", remedy="install it: pip install 'dragoman[onnx]'"
        ) from error
    return onnx


class Graph:
    """Values are known by their names, which every method returns."""

    def __init__(self) -> None:
        self._onnx = onnx_module()
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def input(self, name: str, dtype: type[np.generic], shape: Sequence[str | int]) -> str:
        """A value that is given from outside."""
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._inputs.append(self._onnx.helper.make_tensor_value_info(name, kind, list(shape)))
        return name

    def output(self, value: str, name: str, shape: Sequence[str | int]) -> None:
        """Give a value, in fp32, to the outside under this name."""
        self._nodes.append(self._onnx.helper.make_node("Identity", [value], [name]))
        kind = self._onnx.TensorProto.FLOAT
        self._outputs.append(self._onnx.helper.make_tensor_value_info(name, kind, list(shape)))

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """An operator with one output."""
        return self._add(operator, inputs, 1, attributes)[0]

    def split(self, value: str, parts: int, *, axis: int) -> list[str]:
        """Equal parts of a value."""
        return self._add("Split", (value,), parts, {"axis": axis})

    def stack(self, values: Sequence[str]) -> str:
        """Values of one shape along a new first axis."""
        first = self.vector([0])
        return self.add("Concat", *(self.add("Unsqueeze", one, first) for one in values), axis=0)

    def scalar(self, value: float) -> str:
        """An int64 or an fp32, as it is given."""
        return self.constant(np.array(value, np.int64 if isinstance(value, int) else np.float32))

    def vector(self, values: Sequence[int]) -> str:
        """Whole numbers."""
        return self.constant(np.array(values, dtype=np.int64))

    def constant(self, array: NDArray[Any]) -> str:
        """An array that is kept in the file."""
        name = f"constant_{len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def model(self, metadata: dict[str, str]) -> Any:
        """The whole as onnx.ModelProto."""
        helper = self._onnx.helper
        graph = helper.make_graph(
            self._nodes, "dragoman", self._inputs, self._outputs, self._constants
        )
        made = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", _OPSET)],
            ir_version=_IR_VERSION,
            producer_name="dragoman",
            producer_version=__version__,
        )
        helper.set_model_props(made, metadata)
        return made

    def _add(
        self, operator: str, inputs: Sequence[str], outputs: int, attributes: dict[str, Any]
    ) -> list[str]:
        start = len(self._nodes)
        names = [f"{operator.lower()}_{start}_{number}" for number in range(outputs)]
        node = self._onnx.helper.make_node(operator, list(inputs), names, **attributes)
        self._nodes.append(node)
        return names
