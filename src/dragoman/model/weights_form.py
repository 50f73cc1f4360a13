"""Weights as they stand in model.safetensors: under the names of transformers, from training on.

Projections of one input are one matrix in our model and several in a file: the parts are views of
the matrix. Zeros stand for biases that a model lacks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from dragoman.model.transformer import sinusoids

Family = Literal["marian", "m2m_100", "pegasus", "fsmt"]
Orders = tuple[Sequence[int], Sequence[int]]
"""The original id of each of our ids: for the source, and for the target."""
WEIGHTS_FILE: Final = "model.safetensors"
SHARED: Final = "model.shared.weight"
SOURCE: Final = "model.encoder.embed_tokens.weight"
TARGET: Final = "model.decoder.embed_tokens.weight"
OUTPUT: Final = "lm_head.weight"
FSMT_OUTPUT: Final = "model.decoder.output_projection.weight"
BIAS: Final = "final_logits_bias"
POSITIONS: Final = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
_PARAMETER: Final = re.compile(r"((?:encoder|decoder)\.(?:layers\.\d+\.)?)(.+)\.(weight|bias)")
_MODULES: Final = {
    "self_attention.query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention.output": ("self_attn.out_proj",),
    "self_attention_residual.norm": ("self_attn_layer_norm",),
    "cross_attention.query": ("encoder_attn.q_proj",),
    "cross_attention.key_value": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_attention.output": ("encoder_attn.out_proj",),
    "cross_attention_residual.norm": ("encoder_attn_layer_norm",),
    "feed_forward.input": ("fc1",),
    "feed_forward.output": ("fc2",),
    "feed_forward_residual.norm": ("final_layer_norm",),
    "norm": ("layer_norm",),
}
"""The modules of transformers that the rows of one of ours belong to, from the top."""
_EMBEDDINGS: Final = {
    "embeddings.shared": SHARED,
    "embeddings.source": SOURCE,
    "embeddings.target": TARGET,
    "embeddings.output": OUTPUT,
    "embeddings.output_bias": BIAS,
}
_OF_FSMT: Final = {"embeddings.shared": TARGET, "embeddings.output": FSMT_OUTPUT}


@dataclass(frozen=True, slots=True)
class WeightsForm:
    """The form in which a file has the weights of a model.

    family: `model_type` of config.json; the names differ a little between architectures.
    orders: if ids of the model are others in the file.
    num_positions: rows of the tables of positions, which Pegasus alone has in its file.
    """

    family: Family = "m2m_100"
    orders: Orders | None = None
    num_positions: int = 0

    def views(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parts of our weights by their names in a file; to write to them changes the weights.

        Rows of embeddings are in our order.
        """
        views: dict[str, Tensor] = {}
        for name, weight in weights.items():
            names = self._names(name)
            parts = weight[None] if name == "embeddings.output_bias" else weight
            views |= zip(names, parts.chunk(len(names)), strict=True)
        return views

    def shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """The shapes of `views`, by arithmetic; shapes: those of the weights."""
        parts: dict[str, tuple[int, ...]] = {}
        for name, shape in shapes.items():
            names = self._names(name)
            first = (1, *shape) if name == "embeddings.output_bias" else shape
            parts |= dict.fromkeys(names, (first[0] // len(names), *first[1:]))
        return parts

    def to_file(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Everything that a file has: views of our weights where it has them as they are."""
        tensors = {name: view.detach() for name, view in self.views(weights).items()}
        for name, rows in tensors.items():
            if (order := self._order(name)) is not None:
                there = torch.empty_like(rows)
                there[(slice(None), order) if name == BIAS else order] = rows
                tensors[name] = there
        # safetensors takes no memory twice, and these architectures tie less than we do.
        if self.family == "fsmt" and SOURCE in tensors and FSMT_OUTPUT not in tensors:
            tensors[FSMT_OUTPUT] = tensors[TARGET].clone()
        if self.family == "m2m_100" and SOURCE in tensors:
            tensors[SHARED] = tensors[SOURCE].clone()
        for name in [name for name in tensors if name.endswith("_proj.weight")]:
            bias = name.removesuffix("weight") + "bias"
            tensors.setdefault(bias, torch.zeros(len(tensors[name])))
        if self.family in ("marian", "pegasus") and BIAS not in tensors:
            vocab_size = len(tensors[TARGET if TARGET in tensors else SHARED])
            tensors[BIAS] = torch.zeros(1, vocab_size)
        if self.num_positions:
            d_model = tensors[SHARED].shape[1]
            tensors |= {name: sinusoids(self.num_positions, d_model) for name in POSITIONS}
        return tensors

    def in_our_order(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor of a file with its rows in the order of our ids."""
        order = self._order(name)
        if order is None:
            return tensor
        return tensor[:, order] if name == BIAS else tensor[order]

    def _names(self, name: str) -> tuple[str, ...]:
        match = _PARAMETER.fullmatch(name)
        if match is None:
            renamed = (_OF_FSMT if self.family == "fsmt" else {}).get(name)
            return (renamed or _EMBEDDINGS.get(name, name),)
        stack, module, kind = match.groups()
        return tuple(f"model.{stack}{part}.{kind}" for part in _MODULES[module])

    def _order(self, name: str) -> Tensor | None:
        """The original ids of the rows of this tensor; None if they are ours, or it has no ids."""
        if self.orders is None or name not in (SHARED, SOURCE, TARGET, OUTPUT, BIAS):
            return None
        return torch.tensor(self.orders[0 if name in (SHARED, SOURCE) else 1])


def is_extra(name: str) -> bool:
    """Whether a file has such a tensor although a model may lack it: a copy, zeros or positions."""
    others = (SHARED, OUTPUT, FSMT_OUTPUT, BIAS, *POSITIONS)
    return name in others or name.endswith("_proj.bias")
