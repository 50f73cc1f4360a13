"""Our model as two ONNX graphs, written node by node.

encoder.onnx    source_ids (B, S) -> memory_keys, memory_values (L, B, H, S, K)
decoder.onnx    one step with a cache:
                ids (B,), source_ids (B, S), memory_keys, memory_values,
                past_keys, past_values (L, B, H, P, K)
                -> logits (B, V), present_keys, present_values (L, B, H, P + 1, K)

Shapes: B rows, S source cells (end of sentence included, 0 is padding), P target tokens so far, L
decoder layers, H heads, K width of a head, V target vocabulary. A decoding begins with a past of no
tokens and the start ids of the model one after the other: <s> if it was trained here. Rows of a
beam are rows of B.
"""

# torch.onnx.export is worse (PyTorch 2.11 and 2.13): with dynamo=True it takes a minute for a model
# that takes a second here, needs onnxscript, and writes no opset below 18; with dynamo=False it is
# the old tracer, and greedy translation with its graphs is a tenth slower.

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.base import units
from dragoman.base.errors import ConfigError, MachineError
from dragoman.base.version import VERSION
from dragoman.corpus.shards import BOS, EOS, PAD
from dragoman.model.attention import CrossAttention, SelfAttention
from dragoman.model.config import SearchConfig, length_limit
from dragoman.model.transformer import DecoderLayer, EncoderLayer, FeedForward, Transformer

ENCODER_FILE: Final = "encoder.onnx"
DECODER_FILE: Final = "decoder.onnx"
_LEAST: Final = float(np.finfo(np.float32).min)
_CACHES: Final = ("past_keys", "past_values")
_OPSET: Final = 17
"""The first with LayerNormalization; onnxruntime has had it since 1.12."""
_MOST_BYTES: Final = 2**31 - 2**20
"""Bytes of weights: protobuf reads no message of 2 GiB, and the operators need the rest of it."""
_IR_VERSION: Final = 8
"""The version of the file format that came with opset 17: runtimes of that time read no newer."""


def write_onnx(
    model: Transformer,
    directory: Path,
    *,
    metadata: dict[str, str],
    kind: type[ModelGraph] | None = None,
) -> None:
    """Write both graphs into an existing directory.

    metadata: written into both files. kind: the class of the graphs; None: `ModelGraph`.
    Raises MachineError if onnx is not installed.
    """
    made = kind or ModelGraph
    save_graph(made(model).encoder(), directory / ENCODER_FILE, metadata=metadata)
    save_graph(made(model).decoder(), directory / DECODER_FILE, metadata=metadata)


def save_graph(graph: Graph, path: Path, *, metadata: dict[str, str]) -> None:
    """Write a graph after onnx has checked it; raises ConfigError if it is too large for a file."""
    onnx = _onnx_module()
    if graph.num_bytes > _MOST_BYTES:
        raise ConfigError(
            f"would hold {units.SIZE.text(graph.num_bytes)} of weights, and an ONNX file holds "
            "at most 2 GiB",
            place=path.name,
            remedy="export it for ctranslate2 or huggingface",
        )
    made = graph.proto(metadata)
    onnx.checker.check_model(made)
    onnx.save(made, str(path))


def translate_with_onnx(
    directory: Path,
    sources: list[list[int]],
    search: SearchConfig,
    start_ids: Sequence[int] = (BOS,),
) -> list[list[int]]:
    """Greedy translations by onnxruntime, with all sources in one padded batch.

    Returns ids without the end of sentence. search: only its length limit and `never_padding` are
    used. start_ids: those of the model.
    Raises MachineError if onnxruntime is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MachineError(
            "onnxruntime is not installed", remedy="install it: pip install 'dragoman[onnx]'"
        ) from error
    encoder, decoder = (
        onnxruntime.InferenceSession(str(directory / name), providers=["CPUExecutionProvider"])
        for name in (ENCODER_FILE, DECODER_FILE)
    )
    longest = max(len(source) for source in sources) + 1
    rows = [[*source, EOS] + [PAD] * (longest - len(source) - 1) for source in sources]
    given: dict[str, Any] = {"source_ids": np.array(rows, dtype=np.int64)}
    given["memory_keys"], given["memory_values"] = encoder.run(None, dict(given))
    shape = list(given["memory_keys"].shape)
    given |= {name: np.zeros([*shape[:3], 0, shape[4]], np.float32) for name in _CACHES}

    def step(ids: NDArray[np.int64]) -> NDArray[np.float32]:
        logits, given["past_keys"], given["past_values"] = decoder.run(None, {**given, "ids": ids})
        if search.never_padding:
            logits[:, PAD] = _LEAST
        return cast("NDArray[np.float32]", logits)

    for start_id in start_ids:
        logits = step(np.full(len(sources), start_id, dtype=np.int64))
    others = len(start_ids) - 1  # they count towards the length
    limits = [max(1, length_limit(len(source), search) - others) for source in sources]
    found: list[list[int]] = [[] for _ in sources]
    ended = [False] * len(sources)
    while True:
        ids = logits.argmax(axis=1).astype(np.int64)
        for row, piece in enumerate(ids.tolist()):
            if not ended[row] and piece != EOS:
                found[row].append(piece)
            ended[row] = ended[row] or piece == EOS or len(found[row]) == limits[row]
        if all(ended):
            return found
        logits = step(ids)


def _onnx_module() -> Any:
    """The package onnx; raises MachineError if it is not installed."""
    try:
        import onnx
    except ImportError as error:
        raise MachineError(
            "onnx is not installed", remedy="install it: pip install 'dragoman[onnx]'"
        ) from error
    return onnx


class Graph:
    """An ONNX graph in the making. Values are known by their names, which every method returns.

    Raises MachineError if onnx is not installed.
    """

    def __init__(self) -> None:
        self._onnx = _onnx_module()
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self.num_bytes = 0
        """The size of all constants."""

    def input(self, name: str, dtype: type[np.generic], shape: Sequence[str | int]) -> str:
        """Declare an input of the graph."""
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._inputs.append(self._onnx.helper.make_tensor_value_info(name, kind, list(shape)))
        return name

    def output(self, value: str, name: str, shape: Sequence[str | int]) -> None:
        """Declare a value, in fp32, as the graph's output of this name."""
        self._nodes.append(self._onnx.helper.make_node("Identity", [value], [name]))
        kind = self._onnx.TensorProto.FLOAT
        self._outputs.append(self._onnx.helper.make_tensor_value_info(name, kind, list(shape)))

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Append an operator with one output."""
        return self._add(operator, inputs, 1, attributes)[0]

    def split(self, value: str, parts: int, *, axis: int) -> list[str]:
        """Split a value into equal parts."""
        return self._add("Split", (value,), parts, {"axis": axis})

    def stack(self, values: Sequence[str]) -> str:
        """Stack values of one shape along a new first axis."""
        first = self.vector([0])
        return self.add("Concat", *(self.add("Unsqueeze", one, first) for one in values), axis=0)

    def scalar(self, value: float) -> str:
        """A constant: int64 for an int, fp32 for a float."""
        return self.constant(np.array(value, np.int64 if isinstance(value, int) else np.float32))

    def vector(self, values: Sequence[int]) -> str:
        """A constant vector of int64."""
        return self.constant(np.array(values, dtype=np.int64))

    def constant(self, array: NDArray[Any]) -> str:
        """A constant array, stored in the file."""
        self.num_bytes += array.nbytes
        name = f"constant_{len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def proto(self, metadata: dict[str, str]) -> Any:
        """The whole graph as an onnx.ModelProto with this metadata."""
        helper = self._onnx.helper
        graph = helper.make_graph(
            self._nodes, "dragoman", self._inputs, self._outputs, self._constants
        )
        made = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", _OPSET)],
            ir_version=_IR_VERSION,
            producer_name="dragoman",
            producer_version=VERSION,
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


class ModelGraph(Graph):
    """The parts of one model as operators."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model
        self.heads = model.config.num_heads
        self.width = model.config.d_model // self.heads
        self._weights: dict[tuple[int, tuple[int, ...], tuple[int, ...]], str] = {}

    def encoder(self) -> ModelGraph:
        """Source ids -> keys and values of the source for every decoder layer."""
        model = self.model
        ids = self.input("source_ids", np.int64, ["rows", "source"])
        mask = self._mask(ids)
        length = self.add("Gather", self.add("Shape", ids), self.scalar(1))
        numbers = self.add("Range", self.scalar(0), length, self.scalar(1))
        x = self._embed(model.embeddings.source_matrix, ids, numbers)
        for layer in model.encoder.layers:
            assert isinstance(layer, EncoderLayer)
            attention, residual = layer.self_attention, layer.self_attention_residual
            entered = self._enter(residual, x)
            query, key, value = self._project(attention.query_key_value, entered, 3)
            mixed = self._attend(attention, query, key, value, mask)
            x = self._leave(residual, x, mixed)
            x = self._feed_forward(layer, x)
        memory = self._final(model.encoder.norm, x)
        keys, values = [], []
        for layer in model.decoder.layers:
            assert isinstance(layer, DecoderLayer)
            key, value = self._project(layer.cross_attention.key_value, memory, 2)
            keys.append(key)
            values.append(value)
        shape = ["layers", "rows", "heads", "source", "width"]
        self.output(self.stack(keys), "memory_keys", shape)
        self.output(self.stack(values), "memory_values", shape)
        return self

    def decoder(self) -> ModelGraph:
        """The graph of one step: the logits of the next token, from the keys and values so far."""
        model = self.model
        sizes: list[str | int] = [len(model.decoder.layers), "rows", self.heads]
        ids = self.input("ids", np.int64, ["rows"])
        source_ids = self.input("source_ids", np.int64, ["rows", "source"])
        memory = [
            self.input(name, np.float32, [*sizes, "source", self.width])
            for name in ("memory_keys", "memory_values")
        ]
        past = [self.input(name, np.float32, [*sizes, "past", self.width]) for name in _CACHES]
        mask = self._mask(source_ids)
        length = self.add("Gather", self.add("Shape", past[0]), self.scalar(3))
        column = self.add("Unsqueeze", ids, self.vector([1]))
        number = self.add("Unsqueeze", length, self.vector([0]))
        x = self._embed(model.embeddings.target_matrix, column, number)
        present: tuple[list[str], list[str]] = ([], [])
        for index, layer in enumerate(model.decoder.layers):
            assert isinstance(layer, DecoderLayer)
            own, residual = layer.self_attention, layer.self_attention_residual
            query, *new = self._project(own.query_key_value, self._enter(residual, x), 3)
            for kept, old, one in zip(present, past, new, strict=True):
                before = self.add("Gather", old, self.scalar(index), axis=0)
                kept.append(self.add("Concat", before, one, axis=2))
            mixed = self._attend(own, query, present[0][-1], present[1][-1], None)
            x = self._leave(residual, x, mixed)
            cross, residual = layer.cross_attention, layer.cross_attention_residual
            (query,) = self._project(cross.query, self._enter(residual, x), 1)
            key, value = (self.add("Gather", side, self.scalar(index), axis=0) for side in memory)
            x = self._leave(residual, x, self._attend(cross, query, key, value, mask))
            x = self._feed_forward(layer, x)
        last = self.add("Squeeze", self._final(model.decoder.norm, x), self.vector([1]))
        output = self._matrix(model.embeddings.output_matrix)
        bias = model.embeddings.output_bias
        biases = [] if bias is None else [self._weight(bias)]
        logits = self.add("Gemm", last, output, *biases, transB=1)
        self.output(logits, "logits", ["rows", "vocabulary"])
        shape = ["layers", "rows", "heads", "past_and_present", "width"]
        for values, name in zip(present, ("present_keys", "present_values"), strict=True):
            self.output(self.stack(values), name, shape)
        return self

    def _mask(self, ids: str) -> str:
        """(B, S) -> (B, 1, 1, S): 0 on tokens, the least number on padding."""
        padding = self.add("Equal", ids, self.scalar(PAD))
        mask = self.add("Where", padding, self.scalar(_LEAST), self.scalar(0.0))
        return self.add("Unsqueeze", mask, self.vector([1, 2]))

    def _embed(self, matrix: Tensor, ids: str, numbers: str) -> str:
        """ids (B, L), positions from 0 on (L,) -> embeddings (B, L, D); `transformer.sinusoids`."""
        config = self.model.config
        scale = self.scalar(float(self.model.embeddings.scale))
        embedded = self.add("Mul", self._rows(matrix, ids), scale)
        half = config.d_model // 2
        steps = half if config.positions == "marian" else max(half - 1, 1)
        step = math.log(10_000) / steps
        rates = np.exp(np.arange(half, dtype=np.float32) * np.float32(-step))
        first = self.scalar(float(config.first_position))
        place = self.add("Add", self.add("Cast", numbers, to=1), first)
        column = self.add("Unsqueeze", place, self.vector([1]))
        angles = self.add("Mul", column, self.constant(rates))
        table = self.add("Concat", self.add("Sin", angles), self.add("Cos", angles), axis=1)
        return self.add("Add", embedded, table)

    def _project(self, linear: nn.Linear, x: str, parts: int) -> list[str]:
        """(B, L, D) -> parts of (B, H, L, K)."""
        projected = self._linear(linear, x)
        whole = self.split(projected, parts, axis=2) if parts > 1 else [projected]
        shape = self.vector([0, 0, self.heads, self.width])
        return [
            self.add("Transpose", self.add("Reshape", one, shape), perm=[0, 2, 1, 3])
            for one in whole
        ]

    def _attend(
        self, attention: SelfAttention | CrossAttention, query: str, key: str, value: str,
        mask: str | None,
    ) -> str:  # fmt: skip
        """Query, key and value (B, H, L, K) -> the output of attention (B, L, D)."""
        scaled = self.add("Mul", query, self.scalar(self.width**-0.5))
        weights = self.add("MatMul", scaled, self.add("Transpose", key, perm=[0, 1, 3, 2]))
        if mask is not None:
            weights = self.add("Add", weights, mask)
        mixed = self.add("MatMul", self.add("Softmax", weights, axis=-1), value)
        rows = self.add("Transpose", mixed, perm=[0, 2, 1, 3])
        joined = self.add("Reshape", rows, self.vector([0, 0, self.model.config.d_model]))
        return self._linear(attention.output, joined)

    def _feed_forward(self, layer: EncoderLayer | DecoderLayer, x: str) -> str:
        residual = layer.feed_forward_residual
        return self._leave(
            residual, x, self._activated(layer.feed_forward, self._enter(residual, x))
        )

    def _activated(self, part: FeedForward, x: str) -> str:
        hidden = self._linear(part.input, x)
        if part.activation == "swiglu":
            gate, up = self.split(hidden, 2, axis=2)
            hidden = self.add("Mul", self.add("Mul", gate, self.add("Sigmoid", gate)), up)
        elif part.activation == "gelu":
            bent = self.add("Erf", self.add("Mul", hidden, self.scalar(math.sqrt(0.5))))
            half = self.add("Mul", hidden, self.scalar(0.5))
            hidden = self.add("Mul", half, self.add("Add", bent, self.scalar(1.0)))
        elif part.activation == "silu":
            hidden = self.add("Mul", hidden, self.add("Sigmoid", hidden))
        else:
            hidden = self.add("Relu", hidden)
        return self._linear(part.output, hidden)

    def _enter(self, residual: Any, x: str) -> str:
        return self._norm(residual.norm, x) if residual.pre_norm else x

    def _leave(self, residual: Any, x: str, added: str) -> str:
        after = self.add("Add", x, added)
        return after if residual.pre_norm else self._norm(residual.norm, after)

    def _final(self, norm: nn.Module, x: str) -> str:
        return self._norm(norm, x) if isinstance(norm, nn.LayerNorm) else x

    def _norm(self, norm: nn.LayerNorm, x: str) -> str:
        weights = (self._weight(norm.weight), self._weight(norm.bias))
        return self.add("LayerNormalization", x, *weights, axis=-1, epsilon=norm.eps)

    def _linear(self, linear: nn.Linear, x: str) -> str:
        product = self.add("MatMul", x, self._matrix(linear.weight, transposed=True))
        bias: Tensor | None = linear.bias
        return product if bias is None else self.add("Add", product, self._weight(bias))

    def _matrix(self, matrix: Tensor, *, transposed: bool = False) -> str:
        """A matrix of weights, to multiply with."""
        return self._weight(matrix.t() if transposed else matrix)

    def _rows(self, matrix: Tensor, ids: str) -> str:
        """Rows of a matrix of weights."""
        return self.add("Gather", self._weight(matrix), ids)

    def _weight(self, tensor: Tensor) -> str:
        """Weights as a constant; those used twice, such as tied embeddings, are stored once."""
        key = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if key not in self._weights:
            array = tensor.detach().float().cpu().contiguous().numpy()
            self._weights[key] = self.constant(array)
        return self._weights[key]
