"""Our model as two ONNX graphs, written node by node: no tracing, the same with every PyTorch.

encoder.onnx    source_ids (B, S) -> memory_keys, memory_values (L, B, H, S, K)
decoder.onnx    one step with a cache:
                ids (B,), source_ids (B, S), memory_keys, memory_values,
                past_keys, past_values (L, B, H, P, K)
                -> logits (B, V), present_keys, present_values (L, B, H, P + 1, K)

Shapes: B rows, S source cells (end of sentence included, 0 is padding), P target tokens so far, L
decoder layers, H heads, K width of a head, V target vocabulary. A decoding begins with <s> and a
past of no tokens; rows of a beam are rows of B.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import Tensor, nn

from dragoman.base.errors import MachineError
from dragoman.corpus.shards import BOS, EOS, PAD
from dragoman.export.onnx_graph import Graph, onnx_module
from dragoman.model.attention import CrossAttention, SelfAttention
from dragoman.model.config import SearchConfig, length_limit
from dragoman.model.transformer import DecoderLayer, EncoderLayer, FeedForward, Transformer

ENCODER_FILE: Final = "encoder.onnx"
DECODER_FILE: Final = "decoder.onnx"
_LEAST: Final = float(np.finfo(np.float32).min)
_CACHES: Final = ("past_keys", "past_values")


def write_onnx(model: Transformer, directory: Path, *, metadata: dict[str, str]) -> None:
    """Write both graphs into an existing directory.

    metadata: written into both files. Raises MachineError where onnx is not installed.
    """
    onnx = onnx_module()
    for name, graph in (
        (ENCODER_FILE, _Writer(model).encoder()),
        (DECODER_FILE, _Writer(model).decoder()),
    ):
        made = graph.model(metadata)
        onnx.checker.check_model(made)
        onnx.save(made, str(directory / name))


def translate_with_onnx(
    directory: Path, sources: list[list[int]], search: SearchConfig
) -> list[list[int]]:
    """Greedy translations by onnxruntime, all sources as one padded batch; ids without end.

    Raises MachineError where onnxruntime is not installed.
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
    given["ids"] = np.full(len(sources), BOS, dtype=np.int64)
    limits = [length_limit(len(source), search) for source in sources]
    found: list[list[int]] = [[] for _ in sources]
    ended = [False] * len(sources)
    while not all(ended):
        logits, given["past_keys"], given["past_values"] = decoder.run(None, given)
        given["ids"] = logits.argmax(axis=1).astype(np.int64)
        for row, piece in enumerate(given["ids"].tolist()):
            if not ended[row] and piece != EOS:
                found[row].append(piece)
            ended[row] = ended[row] or piece == EOS or len(found[row]) == limits[row]
    return found


class _Writer:
    """Puts the parts of one model into a graph."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.graph = Graph()
        self.heads = model.config.num_heads
        self.width = model.config.d_model // self.heads

    def encoder(self) -> Graph:
        """Source ids -> keys and values of the source for every decoder layer."""
        graph, model = self.graph, self.model
        ids = graph.input("source_ids", np.int64, ["rows", "source"])
        mask = self._mask(ids)
        length = graph.add("Gather", graph.add("Shape", ids), graph.scalar(1))
        numbers = graph.add("Range", graph.scalar(0), length, graph.scalar(1))
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
        graph.output(graph.stack(keys), "memory_keys", shape)
        graph.output(graph.stack(values), "memory_values", shape)
        return graph

    def decoder(self) -> Graph:
        """One token after another, with what was computed before."""
        graph, model = self.graph, self.model
        sizes: list[str | int] = [len(model.decoder.layers), "rows", self.heads]
        ids = graph.input("ids", np.int64, ["rows"])
        source_ids = graph.input("source_ids", np.int64, ["rows", "source"])
        memory = [
            graph.input(name, np.float32, [*sizes, "source", self.width])
            for name in ("memory_keys", "memory_values")
        ]
        past = [graph.input(name, np.float32, [*sizes, "past", self.width]) for name in _CACHES]
        mask = self._mask(source_ids)
        length = graph.add("Gather", graph.add("Shape", past[0]), graph.scalar(3))
        column = graph.add("Unsqueeze", ids, graph.vector([1]))
        number = graph.add("Unsqueeze", length, graph.vector([0]))
        x = self._embed(model.embeddings.target_matrix, column, number)
        present: tuple[list[str], list[str]] = ([], [])
        for index, layer in enumerate(model.decoder.layers):
            assert isinstance(layer, DecoderLayer)
            own, residual = layer.self_attention, layer.self_attention_residual
            query, *new = self._project(own.query_key_value, self._enter(residual, x), 3)
            for kept, old, one in zip(present, past, new, strict=True):
                before = graph.add("Gather", old, graph.scalar(index), axis=0)
                kept.append(graph.add("Concat", before, one, axis=2))
            mixed = self._attend(own, query, present[0][-1], present[1][-1], None)
            x = self._leave(residual, x, mixed)
            cross, residual = layer.cross_attention, layer.cross_attention_residual
            (query,) = self._project(cross.query, self._enter(residual, x), 1)
            key, value = (graph.add("Gather", side, graph.scalar(index), axis=0) for side in memory)
            x = self._leave(residual, x, self._attend(cross, query, key, value, mask))
            x = self._feed_forward(layer, x)
        last = graph.add("Squeeze", self._final(model.decoder.norm, x), graph.vector([1]))
        output = self._weight(model.embeddings.output_matrix)
        logits = graph.add("Gemm", last, output, transB=1)
        graph.output(logits, "logits", ["rows", "vocabulary"])
        shape = ["layers", "rows", "heads", "past_and_present", "width"]
        for values, name in zip(present, ("present_keys", "present_values"), strict=True):
            graph.output(graph.stack(values), name, shape)
        return graph

    def _mask(self, ids: str) -> str:
        """(B, S) -> (B, 1, 1, S): 0 on tokens, the least number on padding."""
        graph = self.graph
        padding = graph.add("Equal", ids, graph.scalar(PAD))
        mask = graph.add("Where", padding, graph.scalar(_LEAST), graph.scalar(0.0))
        return graph.add("Unsqueeze", mask, graph.vector([1, 2]))

    def _embed(self, matrix: Tensor, ids: str, numbers: str) -> str:
        """ids (B, L) at positions from 0 on (L,) -> (B, L, D); see model.positions."""
        graph, d_model = self.graph, self.model.config.d_model
        scale = graph.scalar(math.sqrt(d_model))
        embedded = graph.add("Mul", graph.add("Gather", self._weight(matrix), ids), scale)
        half = d_model // 2
        step = math.log(10_000) / max(half - 1, 1)
        rates = np.exp(np.arange(half, dtype=np.float32) * np.float32(-step))
        place = graph.add("Add", graph.add("Cast", numbers, to=1), graph.scalar(1.0))
        column = graph.add("Unsqueeze", place, graph.vector([1]))
        angles = graph.add("Mul", column, graph.constant(rates))
        table = graph.add("Concat", graph.add("Sin", angles), graph.add("Cos", angles), axis=1)
        return graph.add("Add", embedded, table)

    def _project(self, linear: nn.Linear, x: str, parts: int) -> list[str]:
        """(B, L, D) -> parts of (B, H, L, K)."""
        graph = self.graph
        projected = self._linear(linear, x)
        whole = graph.split(projected, parts, axis=2) if parts > 1 else [projected]
        shape = graph.vector([0, 0, self.heads, self.width])
        return [
            graph.add("Transpose", graph.add("Reshape", one, shape), perm=[0, 2, 1, 3])
            for one in whole
        ]

    def _attend(
        self, attention: SelfAttention | CrossAttention, query: str, key: str, value: str,
        mask: str | None,
    ) -> str:  # fmt: skip
        """All of (B, H, L, K) -> what attention adds, (B, L, D)."""
        graph = self.graph
        scaled = graph.add("Mul", query, graph.scalar(self.width**-0.5))
        weights = graph.add("MatMul", scaled, graph.add("Transpose", key, perm=[0, 1, 3, 2]))
        if mask is not None:
            weights = graph.add("Add", weights, mask)
        mixed = graph.add("MatMul", graph.add("Softmax", weights, axis=-1), value)
        rows = graph.add("Transpose", mixed, perm=[0, 2, 1, 3])
        joined = graph.add("Reshape", rows, graph.vector([0, 0, self.model.config.d_model]))
        return self._linear(attention.output, joined)

    def _feed_forward(self, layer: EncoderLayer | DecoderLayer, x: str) -> str:
        residual = layer.feed_forward_residual
        return self._leave(
            residual, x, self._activated(layer.feed_forward, self._enter(residual, x))
        )

    def _activated(self, part: FeedForward, x: str) -> str:
        graph = self.graph
        hidden = self._linear(part.input, x)
        if part.activation == "swiglu":
            gate, up = graph.split(hidden, 2, axis=2)
            hidden = graph.add("Mul", graph.add("Mul", gate, graph.add("Sigmoid", gate)), up)
        elif part.activation == "gelu":
            bent = graph.add("Erf", graph.add("Mul", hidden, graph.scalar(math.sqrt(0.5))))
            half = graph.add("Mul", hidden, graph.scalar(0.5))
            hidden = graph.add("Mul", half, graph.add("Add", bent, graph.scalar(1.0)))
        else:
            hidden = graph.add("Relu", hidden)
        return self._linear(part.output, hidden)

    def _enter(self, residual: Any, x: str) -> str:
        return self._norm(residual.norm, x) if residual.pre_norm else x

    def _leave(self, residual: Any, x: str, added: str) -> str:
        after = self.graph.add("Add", x, added)
        return after if residual.pre_norm else self._norm(residual.norm, after)

    def _final(self, norm: nn.Module, x: str) -> str:
        return self._norm(norm, x) if isinstance(norm, nn.LayerNorm) else x

    def _norm(self, norm: nn.LayerNorm, x: str) -> str:
        weights = (self._weight(norm.weight), self._weight(norm.bias))
        return self.graph.add("LayerNormalization", x, *weights, axis=-1, epsilon=norm.eps)

    def _linear(self, linear: nn.Linear, x: str) -> str:
        graph = self.graph
        product = graph.add("MatMul", x, self._weight(linear.weight.t()))
        bias: Tensor | None = linear.bias
        return product if bias is None else graph.add("Add", product, self._weight(bias))

    def _weight(self, tensor: Tensor) -> str:
        return self.graph.constant(tensor.detach().float().cpu().contiguous().numpy())
