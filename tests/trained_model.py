"""A small model that has learned a little from real text, for tests of search and scores."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from dragoman.corpus.config import SubwordConfig
from dragoman.corpus.normalize import normalize
from dragoman.corpus.shards import TokenRows
from dragoman.corpus.subword import Subword, count_words, train_on_words
from dragoman.data.batch import Batch, make_batch
from dragoman.model.config import ModelConfig
from dragoman.model.transformer import Transformer
from kept import kept
from real_text import real_lines

VOCAB_SIZE = 1000
NUM_PAIRS = 6000
NUM_STEPS = 300
ROWS = 32


@dataclass(frozen=True)
class TrainedModel:
    """A model in eval mode, its joint subwords and what it was trained on.

    subword_file: the bytes of the SentencePiece model.
    sources, targets: pieces of each training pair, without end of sentence.
    """

    model: Transformer
    subword: Subword
    subword_file: bytes
    sources: list[list[int]]
    targets: list[list[int]]


def small_model() -> Transformer:
    """The architecture, untrained; the same weights each time."""
    torch.manual_seed(1)
    config = ModelConfig(
        d_model=64, num_heads=4, d_ffn=128, encoder_layers=2, decoder_layers=2, dropout=0.1
    )
    return Transformer(config, source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE)


@cache
def real_pairs() -> tuple[bytes, Subword, list[list[int]], list[list[int]]]:
    """A joint SentencePiece model of the text, its file first, and the pieces of both sides."""
    texts = [
        normalize("\n".join(lines[:NUM_PAIRS])).split("\n")
        for lines in (real_lines("train", "en"), real_lines("train", "de"))
    ]
    words = count_words([line for side in texts for line in side])
    file = train_on_words(words, SubwordConfig(vocab_size=VOCAB_SIZE))
    subword = Subword.parse(file, place=Path())
    sources, targets = (subword.encode(text) for text in texts)
    return file, subword, sources, targets


@cache
def train_on_real_text() -> TrainedModel:
    """Train English to German, for some seconds; an earlier test's model if nothing has changed."""
    file, subword, sources, targets = real_pairs()
    with kept("trained-model", _train, Path(__file__)) as folder:
        model = small_model().eval()
        model.load_state_dict(load_file(folder / "model.safetensors"))
    return TrainedModel(model, subword, file, sources, targets)


def _train(folder: Path) -> None:
    """Write the weights."""
    _, _, sources, targets = real_pairs()
    model = small_model().eval()  # so short a training needs no dropout
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    order = sorted(range(NUM_PAIRS), key=lambda pair: len(targets[pair]))
    for start in np.random.default_rng(1).integers(0, NUM_PAIRS - ROWS, NUM_STEPS):
        rows = order[start : start + ROWS]
        batch = batch_of([sources[row] for row in rows], [targets[row] for row in rows])
        optimizer.zero_grad()
        (model(batch).loss / batch.num_target_tokens).backward()
        optimizer.step()
    save_file(dict(model.named_parameters()), folder / "model.safetensors")


def batch_of(sources: list[list[int]], targets: list[list[int]]) -> Batch:
    """These pairs as one batch."""
    source_rows, target_rows = token_rows(sources), token_rows(targets)
    return make_batch(source_rows.ids, source_rows.lengths, target_rows.ids, target_rows.lengths)


def token_rows(rows: list[list[int]]) -> TokenRows:
    """Rows of pieces as shards hold them."""
    ids = np.array([piece for row in rows for piece in row], dtype=np.uint16)
    return TokenRows(ids, np.array([len(row) for row in rows], dtype=np.int32))
