"""The attention of a decoder to the source, for a given translation.

Shapes: B rows, S source cells, T target cells, D model width, H heads, K width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.corpus.shards import EOS, PAD
from dragoman.model.attention import split, split_heads
from dragoman.model.incremental import inference
from dragoman.model.layout import make_layout
from dragoman.model.transformer import DecoderLayer, Transformer

_TOGETHER = 16


def attention_to_source(
    models: Sequence[Transformer],
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
) -> list[NDArray[np.float32]]:
    """The attention from each piece of each target to those of its source: (target, source) pieces.

    It is that of the last layer of the decoder, the mean over its heads and over the models.
    sources, targets: ids without end of sentence.
    """
    found: list[NDArray[np.float32]] = []
    with inference(models):
        for start in range(0, len(sources), _TOGETHER):
            rows = slice(start, start + _TOGETHER)
            mean = torch.stack(
                [_attention(model, sources[rows], targets[rows]) for model in models]
            ).mean(0)
            first = len(models[0].config.start_ids) - 1
            found += [
                weights_TS[first : first + len(target), : len(source)].numpy()
                for weights_TS, source, target in zip(
                    mean.float().cpu(), sources[rows], targets[rows], strict=True
                )
            ]
    return found


def _attention(
    model: Transformer, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> Tensor:
    """The attention of the last layer, (B, T, S), from the step before each piece."""
    device = model.embeddings.target_matrix.device
    embeddings = model.embeddings
    source_BS, source_lengths_B = _padded([[*source, EOS] for source in sources], device)
    target_BT, target_lengths_B = _padded(
        [[*model.config.start_ids, *target] for target in targets], device
    )
    source_layout, layout = (
        make_layout(lengths_B, row_cells=ids_BL.shape[1], num_tokens=int(lengths_B.sum()))
        for ids_BL, lengths_B in ((source_BS, source_lengths_B), (target_BT, target_lengths_B))
    )
    embedded_MD = embeddings.embed(source_BS, embeddings.source_matrix, source_layout)
    # Not model.encoder(...): a compiled encoder would be compiled again for each shape met here.
    memory_MD = model.encoder.forward(embedded_MD, source_layout)
    x_ND = embeddings.embed(target_BT, embeddings.target_matrix, layout)
    *others, last = model.decoder.layers
    for layer in others:
        x_ND = layer(x_ND, layout, memory_MD, source_layout)
    assert isinstance(last, DecoderLayer)
    residual = last.self_attention_residual
    x_ND = residual.leave(x_ND, last.self_attention(residual.enter(x_ND), layout))
    attention = last.cross_attention
    query_ND = attention.query(last.cross_attention_residual.enter(x_ND))
    key_BSD = split(source_layout.rows(attention.key_value(memory_MD)), 2)[:, :, 0]
    query_BHTK, key_BHSK = (
        split_heads(x_BLD, attention.num_heads) for x_BLD in (layout.rows(query_ND), key_BSD)
    )
    scores_BHTS = query_BHTK @ key_BHSK.transpose(2, 3) * key_BHSK.shape[3] ** -0.5
    if source_layout.padding_bias is not None:
        scores_BHTS = scores_BHTS + source_layout.padding_bias
    weights_BTS: Tensor = scores_BHTS.softmax(3).mean(1)
    return weights_BTS


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids in rows, and how many each row has."""
    longest = max(map(len, rows))
    padded = [[*row, *[PAD] * (longest - len(row))] for row in rows]
    return torch.tensor(padded, device=device), torch.tensor([*map(len, rows)], device=device)
