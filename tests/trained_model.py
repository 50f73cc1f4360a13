"""A small model that has learned a little from real text, for tests of search and scores."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
import sentencepiece
import torch

from dragoman.corpus.special_ids import BOS, EOS, PAD, UNK
from dragoman.data.batch import make_batch
from dragoman.model.config import ModelConfig
from dragoman.model.transformer import Transformer

VOCAB_SIZE = 1000
NUM_PAIRS = 6000
NUM_STEPS = 300
ROWS = 64


@dataclass(frozen=True)
class TrainedModel:
    """A model in eval mode and its joint subwords."""

    model: Transformer
    subwords: sentencepiece.SentencePieceProcessor

    def encode(self, lines: list[str]) -> list[list[int]]:
        """Pieces of each line, without end of sentence."""
        pieces: list[list[int]] = self.subwords.encode(lines)
        return pieces


@cache
def train_on_multi30k(shared_data: Path, *, steps: int = NUM_STEPS) -> TrainedModel:
    """English to German, for a minute at most."""
    texts = [
        (shared_data / f"multi30k/train.{language}").read_text("utf-8").split("\n")[:NUM_PAIRS]
        for language in ("en", "de")
    ]
    written = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts[0] + texts[1]),
        model_writer=written,
        vocab_size=VOCAB_SIZE,
        model_type="bpe",
        pad_id=PAD,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        num_threads=1,
        minloglevel=2,
    )
    subwords = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    sources, targets = (subwords.encode(text) for text in texts)
    torch.manual_seed(1)
    config = ModelConfig(
        d_model=64, num_heads=4, d_ffn=128, encoder_layers=2, decoder_layers=2, dropout=0.0
    )
    model = Transformer(config, source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    order = sorted(range(NUM_PAIRS), key=lambda pair: len(targets[pair]))
    starts = np.random.default_rng(1).integers(0, NUM_PAIRS - ROWS, steps)
    for start in starts:
        rows = order[start : start + ROWS]
        sides = [[side[row] for row in rows] for side in (sources, targets)]
        flat = [np.array([p for pieces in side for p in pieces], np.int64) for side in sides]
        lengths = [np.array([len(pieces) for pieces in side]) for side in sides]
        batch = make_batch(flat[0], lengths[0], flat[1], lengths[1])
        optimizer.zero_grad()
        (model(batch).loss / batch.num_target_tokens).backward()
        optimizer.step()
    return TrainedModel(model.eval(), subwords)
