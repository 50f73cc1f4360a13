"""A decoder that is asked for one token after another and keeps its earlier results.

The hypotheses of a sentence share its caches. Each step adds one column of keys and values for
every hypothesis, and a mask says which columns are the past of which hypothesis. So a beam is
reordered by reordering the rows of that mask: no keys or values are moved, those of the source
exist once per sentence, and attention over a whole beam is one matrix product.

Shapes: B sentences, W hypotheses of each, N = B * W, S source cells, P columns so far, D model
width, H heads, K width of a head, V target vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.model.attention import CrossAttention, SelfAttention, join_heads, split, split_heads
from dragoman.model.layout import make_layout
from dragoman.model.transformer import DecoderLayer, Transformer

FIRST_COLUMNS = 64
"""Columns of a new cache; it doubles when they are used up."""


@dataclass(slots=True)
class LayerCache:
    """Keys and values of one decoder layer.

    Keys lie as their products with queries need them, already scaled by K^-0.5.

    keys_BHKP, values_BHPK: keys and values of the target so far; columns from
        `DecoderState.num_columns` on are not written yet.
    memory_keys_BHKS, memory_values_BHSK: keys and values of the source.
    """

    keys_BHKP: Tensor
    values_BHPK: Tensor
    memory_keys_BHKS: Tensor
    memory_values_BHSK: Tensor

    def append(self, keys_BHWK: Tensor, values_BHWK: Tensor, start: int) -> None:
        """Write the columns from `start` on."""
        end, width = start + keys_BHWK.shape[2], keys_BHWK.shape[3]
        if end > self.keys_BHKP.shape[3]:
            spare = max(end, 2 * self.keys_BHKP.shape[3]) - self.keys_BHKP.shape[3]
            self.keys_BHKP = F.pad(self.keys_BHKP, (0, spare))
            self.values_BHPK = F.pad(self.values_BHPK, (0, 0, 0, spare))
        torch.mul(keys_BHWK.transpose(2, 3), width**-0.5, out=self.keys_BHKP[..., start:end])
        self.values_BHPK[:, :, start:end] = values_BHWK

    def keep(self, sentences: Tensor) -> None:
        """Forget all sentences but these."""
        self.keys_BHKP = self.keys_BHKP.index_select(0, sentences)
        self.values_BHPK = self.values_BHPK.index_select(0, sentences)
        self.memory_keys_BHKS = self.memory_keys_BHKS.index_select(0, sentences)
        self.memory_values_BHSK = self.memory_values_BHSK.index_select(0, sentences)


@dataclass(slots=True)
class DecoderState:
    """The cache of a decoder for B sentences.

    logits_NV: memory for the logits, used again in each step.
    num_tokens: tokens seen in each hypothesis.
    num_columns: columns written to the caches.
    memory_mask_B11S: 0 on source tokens, -inf on padding; None if there is no padding.
    past_mask_BWP: 0 on the columns that are the past of a hypothesis, -inf on all others.
    """

    layers: list[LayerCache]
    memory_mask_B11S: Tensor | None
    past_mask_BWP: Tensor
    logits_NV: Tensor
    num_tokens: int = 0
    num_columns: int = 0

    def select(self, parents_BW: Tensor) -> None:
        """Go on with these hypotheses, numbered inside their sentence; W may change."""
        columns = parents_BW[:, :, None].expand(-1, -1, self.num_columns)
        self.past_mask_BWP = self.past_mask_BWP.gather(1, columns)

    def keep(self, sentences: Tensor) -> None:
        """Go on with these sentences only, numbered 0 to B - 1."""
        for layer in self.layers:
            layer.keep(sentences)
        self.past_mask_BWP = self.past_mask_BWP.index_select(0, sentences)
        if self.memory_mask_B11S is not None:
            self.memory_mask_B11S = self.memory_mask_B11S.index_select(0, sentences)


@contextmanager
def inference(models: Sequence[nn.Module]) -> Iterator[None]:
    """No dropout and no gradients inside the block; each model's mode is restored after it."""
    modes = [model.training for model in models]
    try:
        for model in models:
            model.eval()
        with torch.no_grad():
            yield
    finally:
        for model, mode in zip(models, modes, strict=True):
            model.train(mode)


def start_decoding(model: Transformer, source_BS: Tensor, source_lengths_B: Tensor) -> DecoderState:
    """Encode the sources; returns a state in which each sentence has one hypothesis, still empty.

    source_BS: ids with end of sentence, then PAD; source_lengths_B counts the end of sentence.
    Call it inside `inference`.
    """
    num_rows, row_cells = source_BS.shape
    layout = make_layout(
        source_lengths_B, row_cells=row_cells, num_tokens=int(source_lengths_B.sum())
    )
    embeddings = model.embeddings
    embedded_MD = embeddings.embed(source_BS, embeddings.source_matrix, layout)
    # Not model.encoder(...): a compiled encoder would be compiled again for each shape met here.
    memory_MD = model.encoder.forward(embedded_MD, layout)
    layers = []
    for layer in _layers(model):
        attention = layer.cross_attention
        memory_BS2D = split(layout.rows(attention.key_value(memory_MD)), 2)
        keys_BHSK, values_BHSK = (
            split_heads(x_BSD, attention.num_heads) for x_BSD in memory_BS2D.unbind(2)
        )
        heads, width = keys_BHSK.shape[1], keys_BHSK.shape[3]
        layers.append(
            LayerCache(
                keys_BHSK.new_empty(num_rows, heads, width, FIRST_COLUMNS),
                keys_BHSK.new_empty(num_rows, heads, FIRST_COLUMNS, width),
                keys_BHSK.transpose(2, 3).contiguous() * width**-0.5,
                values_BHSK.contiguous(),
            )
        )
    return DecoderState(
        layers,
        memory_mask_B11S=layout.padding_bias,
        past_mask_BWP=torch.empty(num_rows, 1, 0, device=memory_MD.device),
        logits_NV=memory_MD.new_empty(0, len(embeddings.output_matrix)),
    )


def decode_step(model: Transformer, ids_BW: Tensor, state: DecoderState) -> Tensor:
    """Give each hypothesis its next token; returns the fp32 logits (B, W, V) of what follows.

    The logits are valid until the next step, which may overwrite them.
    ids_BW: first the model's start tokens, one per step; later the tokens chosen for the
        hypotheses given to `state.select`.
    """
    num_rows, width = ids_BW.shape
    own_WW = torch.full((width, width), -math.inf, device=ids_BW.device).fill_diagonal_(0)
    own_BWW = own_WW.expand(num_rows, -1, -1)
    state.past_mask_BWP = torch.cat([state.past_mask_BWP, own_BWW], dim=2)
    embeddings = model.embeddings
    x_ND = embeddings.vectors(ids_BW.reshape(-1), embeddings.target_matrix)
    x_ND = x_ND + embeddings.positions(state.num_tokens + 1)[state.num_tokens]
    for layer, cache in zip(_layers(model), state.layers, strict=True):
        residual = layer.self_attention_residual
        mixed_ND = _look_back(layer.self_attention, residual.enter(x_ND), width, cache, state)
        x_ND = residual.leave(x_ND, mixed_ND)
        residual = layer.cross_attention_residual
        mixed_ND = _look_up(layer.cross_attention, residual.enter(x_ND), width, cache, state)
        x_ND = residual.leave(x_ND, mixed_ND)
        residual = layer.feed_forward_residual
        x_ND = residual.leave(x_ND, layer.feed_forward(residual.enter(x_ND)))
    state.num_tokens += 1
    state.num_columns += width
    if len(state.logits_NV) < len(x_ND):
        state.logits_NV = x_ND.new_empty(len(x_ND), len(embeddings.output_matrix))
    logits_NV = embeddings.logits(model.decoder.norm(x_ND), memory_NV=state.logits_NV[: len(x_ND)])
    return logits_NV.float().view(num_rows, width, -1)


def _look_back(
    attention: SelfAttention, x_ND: Tensor, width: int, cache: LayerCache, state: DecoderState
) -> Tensor:
    """Self-attention of the newest token of each hypothesis."""
    x_BW3D = split(attention.query_key_value(x_ND).view(-1, width, 3 * x_ND.shape[1]), 3)
    query_BHWK, keys_BHWK, values_BHWK = (
        split_heads(x_BWD, attention.num_heads) for x_BWD in x_BW3D.unbind(2)
    )
    cache.append(keys_BHWK, values_BHWK, state.num_columns)
    columns = state.num_columns + width
    mixed_NX = _mix(
        query_BHWK,
        cache.keys_BHKP[..., :columns],
        cache.values_BHPK[:, :, :columns],
        state.past_mask_BWP[:, None],
    )
    mixed_ND: Tensor = attention.output(mixed_NX)
    return mixed_ND


def _look_up(
    attention: CrossAttention, x_ND: Tensor, width: int, cache: LayerCache, state: DecoderState
) -> Tensor:
    """Attention to the source."""
    query_BHWK = split_heads(
        attention.query(x_ND).view(-1, width, x_ND.shape[1]), attention.num_heads
    )
    mixed_ND: Tensor = attention.output(
        _mix(query_BHWK, cache.memory_keys_BHKS, cache.memory_values_BHSK, state.memory_mask_B11S)
    )
    return mixed_ND


def _mix(query_BHWK: Tensor, keys_BHKP: Tensor, values_BHPK: Tensor, mask: Tensor | None) -> Tensor:
    """Attention to scaled keys; the heads of each hypothesis side by side, (N, D)."""
    weights_BHWP = torch.matmul(query_BHWK, keys_BHKP)
    if mask is not None:
        weights_BHWP += mask
    mixed_BHWK = torch.matmul(weights_BHWP.softmax(3), values_BHPK)
    return join_heads(mixed_BHWK).flatten(0, 1)


def _layers(model: Transformer) -> Iterator[DecoderLayer]:
    for layer in model.decoder.layers:
        assert isinstance(layer, DecoderLayer)
        yield layer
