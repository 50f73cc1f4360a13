"""Token by token the decoder says what it says of the whole row at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dragoman.data.batch import Batch
from dragoman.model.config import ModelConfig
from dragoman.model.incremental import FIRST_COLUMNS, decode_step, inference, start_decoding
from dragoman.model.transformer import Transformer
from token_batches import random_batch

VOCAB_SIZE = 40


def make_model(**changes: Any) -> Transformer:
    torch.manual_seed(3)
    settings: dict[str, Any] = {
        "d_model": 16,
        "num_heads": 2,
        "d_ffn": 24,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "dropout": 0.3,
        "attention_dropout": 0.3,
    }
    config = ModelConfig(**(settings | changes))
    return Transformer(config, source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE)


def whole_logits(model: Transformer, batch: Batch) -> torch.Tensor:
    with inference([model]):
        return model.logits(batch)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "post", "activation": "gelu", "tied_embeddings": "none"},
        {"activation": "swiglu", "attention_bias": False, "tied_embeddings": "decoder"},
    ],
)
def test_steps_equal_the_whole_row(changes: dict[str, Any]) -> None:
    model = make_model(**changes)
    long = FIRST_COLUMNS + 5  # the caches have to grow
    batch = random_batch([7, 3, 5], [long, long, long], vocab_size=VOCAB_SIZE)
    expected_BTV = whole_logits(model, batch)
    with inference([model]):
        state = start_decoding(model, batch.source_BS, batch.source_lengths_B)
        steps = [
            decode_step(model, ids_B[:, None], state)[:, 0].clone()
            for ids_B in batch.decoder_input_BT.unbind(1)
        ]
    assert steps[0].dtype == torch.float32
    torch.testing.assert_close(torch.stack(steps, 1), expected_BTV, atol=1e-5, rtol=1e-5)


def test_hypotheses_keep_their_own_past() -> None:
    """Three hypotheses of each sentence are reordered, then a sentence leaves."""
    model = make_model()
    sources = random_batch([4, 6, 2], [1, 1, 1], vocab_size=VOCAB_SIZE)
    generator = torch.Generator().manual_seed(0)
    ids_BWT = torch.full((3, 1, 1), 2)
    sentences = torch.arange(3)
    with inference([model]):
        state = start_decoding(model, sources.source_BS, sources.source_lengths_B)
        for step in range(6):
            logits_BWV = decode_step(model, ids_BWT[:, :, -1], state)
            rows, width, length = ids_BWT.shape
            for hypothesis in range(width):
                batch = Batch(
                    sources.source_BS[sentences],
                    ids_BWT[:, hypothesis],
                    ids_BWT[:, hypothesis],
                    sources.source_lengths_B[sentences],
                    torch.full((rows,), length),
                    int(sources.source_lengths_B[sentences].sum()),
                    rows * length,
                )
                expected_BV = model.logits(batch)[:, -1]
                torch.testing.assert_close(
                    logits_BWV[:, hypothesis], expected_BV, atol=1e-5, rtol=1e-5
                )
            if step == 3:
                keep = torch.tensor([0, 2])
                state.keep(keep)
                sentences, ids_BWT, rows = sentences[keep], ids_BWT[keep], 2
            parents_BW = torch.randint(0, width, (rows, 3), generator=generator)
            state.select(parents_BW)
            past_BWT = ids_BWT.gather(1, parents_BW[:, :, None].expand(-1, -1, length))
            new_BW1 = torch.randint(4, VOCAB_SIZE, (rows, 3, 1), generator=generator)
            ids_BWT = torch.cat([past_BWT, new_BW1], 2)


def test_inference_gives_each_model_its_mode_back() -> None:
    models = [make_model().train(), make_model().eval()]
    with inference(models):
        inside = [model.training for model in models], torch.is_grad_enabled()
    assert inside == ([False, False], False)
    assert [model.training for model in models] == [True, False]
    assert models[0].decoder.training
    assert torch.is_grad_enabled()
