"""A tiny model learns to copy and to reverse: what is trained is what decodes."""

from __future__ import annotations

from itertools import islice
from typing import Literal

import pytest
import sacrebleu
import torch

from dragoman.data.config import DataConfig
from dragoman.model.config import ModelConfig, SearchConfig
from dragoman.model.search import translate_batch
from dragoman.training.config import OptimizerConfig, TrainConfig
from dragoman.training.schedule import ScheduleConfig, learning_rate
from toy_task import ToyPairs, toy_training

MODEL = ModelConfig(
    d_model=64, num_heads=4, d_ffn=128, encoder_layers=2, decoder_layers=2, dropout=0.0
)
SCHEDULE = ScheduleConfig(kind="linear", peak_learning_rate=3e-3, warmup_steps=60)


def as_text(rows: list[list[int]]) -> list[str]:
    return [" ".join(map(str, row)) for row in rows]


@pytest.mark.parametrize(
    ("task", "max_steps"), [("copy", 300), pytest.param("reverse", 500, marks=pytest.mark.slow)]
)
def test_bleu_above_95_on_unseen_sequences(
    task: Literal["copy", "reverse"], max_steps: int
) -> None:
    torch.set_num_threads(1)
    pairs = ToyPairs(5000, task=task, vocab_size=24, longest=10, seed=1)
    unseen = ToyPairs(200, task=task, vocab_size=24, longest=10, seed=2)
    with toy_training(
        pairs,
        model=MODEL,
        data=DataConfig(batch_tokens=500),
        train=TrainConfig(max_steps=max_steps),
        optimizer=OptimizerConfig(clip_norm=1.0),
    ) as training:
        for update in islice(training.stream, max_steps):
            rate = learning_rate(
                update.update_index, SCHEDULE, d_model=MODEL.d_model, max_steps=max_steps
            )
            training.step(update, learning_rate=rate)
        sources = [row.tolist() for row in unseen.sources]
        found = translate_batch([training.model], sources, SearchConfig(beam_size=4))
    hypotheses = as_text([best[0].ids for best in found])
    references = as_text([row.tolist() for row in unseen.targets])
    bleu = sacrebleu.corpus_bleu(hypotheses, [references], tokenize="none").score
    assert bleu > 95
