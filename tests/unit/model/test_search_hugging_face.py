"""On real text our search gives what Hugging Face's `generate` gives with the same weights."""

from __future__ import annotations

from itertools import groupby

import pytest
import torch

from dragoman.corpus.shards import EOS, PAD
from dragoman.model.config import SearchConfig
from dragoman.model.search import translate_batch
from hugging_face import to_m2m100
from real_text import real_lines
from trained_model import train_on_real_text

NUM_SENTENCES = 100
NUM_HYPOTHESES = 3


def cut(ids: list[int]) -> list[int]:
    """The pieces before the end of sentence; a row cut by the limit has no such end."""
    return ids[: ids.index(EOS)] if EOS in ids else [piece for piece in ids if piece != PAD]


@pytest.mark.parametrize(
    ("beam_size", "alpha"),
    [
        pytest.param(1, 1.0, marks=pytest.mark.system),
        pytest.param(5, 1.0, marks=pytest.mark.system),
        (4, 0.6),
    ],
)
def test_100_of_100_sentences_are_equal(beam_size: int, alpha: float) -> None:
    trained = train_on_real_text()
    lines = real_lines("test", "en")[:NUM_SENTENCES]
    sources = sorted(trained.subword.encode(lines), key=len)
    count = min(beam_size, NUM_HYPOTHESES)
    config = SearchConfig(
        beam_size=beam_size, length_penalty="power", length_penalty_alpha=alpha, batch_tokens=2000
    )
    ours = translate_batch([trained.model], sources, config, num_hypotheses=count)

    theirs: list[tuple[list[int], float]] = []
    generator = to_m2m100(trained.model)
    for length, group in groupby(sources, key=len):  # generate has one limit for a whole batch
        answer = generator.generate(
            torch.tensor([[*source, EOS] for source in group]),
            num_beams=beam_size,
            length_penalty=alpha,
            early_stopping=beam_size > 1,
            max_new_tokens=int(config.max_length_ratio * length) + config.max_length_extra,
            num_return_sequences=count,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
        ids = [cut(row[1:]) for row in answer.sequences.tolist()]
        scores = answer.sequences_scores.tolist() if beam_size > 1 else [0.0] * len(ids)
        theirs.extend(zip(ids, scores, strict=True))

    flat = [hypothesis for hypotheses in ours for hypothesis in hypotheses]
    assert len(flat) == NUM_SENTENCES * count
    assert [hypothesis.ids for hypothesis in flat] == [ids for ids, _ in theirs]
    if beam_size > 1:
        for hypothesis, (_, score) in zip(flat, theirs, strict=True):
            assert hypothesis.score == pytest.approx(score, abs=2e-5)
