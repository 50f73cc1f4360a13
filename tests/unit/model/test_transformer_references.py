"""The same weights in implementations that we did not write give the same logits."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.data.batch import Batch
from dragoman.model.config import ModelConfig
from dragoman.model.transformer import Transformer
from hugging_face import to_m2m100
from token_batches import random_batch

VOCAB_SIZE = 97


@pytest.fixture
def batch() -> Batch:
    return random_batch([5, 3, 9, 1, 0], [4, 9, 2, 6, 1], vocab_size=VOCAB_SIZE)


def make_model(config: ModelConfig) -> Transformer:
    """Every weight random, those included that a new model starts with 0 or 1."""
    torch.manual_seed(1)
    model = Transformer(config, source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE)
    for name, parameter in model.named_parameters():
        if name.endswith(".bias") or ".norm" in name:
            nn.init.normal_(parameter, mean=0.0 if name.endswith(".bias") else 1.0, std=0.2)
    return model.eval()


def assert_same_logits(model: Transformer, batch: Batch, expected_BTV: Tensor) -> None:
    real_BT = batch.target_BT != 0
    with torch.no_grad():
        logits_BTV = model.logits(batch)
    torch.testing.assert_close(logits_BTV[real_BT], expected_BTV[real_BT], atol=1e-5, rtol=1e-5)


# --- Hugging Face: M2M100 is pre-norm with sinusoidal positions -------------------------------


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_logits_equal_hugging_face_m2m100(
    activation: Literal["relu", "gelu"], batch: Batch
) -> None:
    config = ModelConfig(
        d_model=32,
        num_heads=4,
        d_ffn=48,
        encoder_layers=2,
        decoder_layers=3,
        activation=activation,
    )
    model = make_model(config)
    theirs = to_m2m100(model)
    with torch.no_grad():
        expected_BTV = theirs(
            input_ids=batch.source_BS,
            attention_mask=(batch.source_BS != 0).long(),
            decoder_input_ids=batch.decoder_input_BT,
            decoder_attention_mask=(batch.target_BT != 0).long(),
        ).logits
    assert_same_logits(model, batch, expected_BTV)


# --- PyTorch: nn.Transformer is pre-norm or post-norm, without embeddings -----------------------


def torch_weights(model: Transformer) -> dict[str, Tensor]:
    """Our weights under the names of nn.Transformer."""
    renamed = {}
    for name, weight in model.state_dict().items():
        if name.startswith("embeddings."):
            continue
        for ours, its in (
            ("self_attention.query_key_value.", "self_attn.in_proj_"),
            ("self_attention.output", "self_attn.out_proj"),
            ("cross_attention.output", "multihead_attn.out_proj"),
            ("feed_forward.input", "linear1"),
            ("feed_forward.output", "linear2"),
            ("self_attention_residual.norm", "norm1"),
            ("cross_attention_residual.norm", "norm2"),
            ("feed_forward_residual.norm", "norm3" if "decoder" in name else "norm2"),
        ):
            name = name.replace(ours, its)
        if "cross_attention.key_value" not in name:
            renamed[name] = weight
    for name in [name for name in renamed if "cross_attention.query" in name]:
        layer, kind = name.split(".cross_attention.query.")
        key_value = model.state_dict()[f"{layer}.cross_attention.key_value.{kind}"]
        query = renamed.pop(name)
        renamed[f"{layer}.multihead_attn.in_proj_{kind}"] = torch.cat([query, key_value])
    return renamed


def vaswani_positions(length: int, d_model: int) -> Tensor:
    """Number by number, sines then cosines."""
    half = d_model // 2
    angles = [
        [position / 10000 ** (i / (half - 1)) for i in range(half)]
        for position in range(1, length + 1)
    ]
    return torch.tensor(
        [[*map(math.sin, row), *map(math.cos, row)] for row in angles], dtype=torch.float32
    )


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_logits_equal_torch_nn_transformer(
    norm: Literal["pre", "post"], activation: Literal["relu", "gelu"], batch: Batch
) -> None:
    config = ModelConfig(
        d_model=32,
        num_heads=2,
        d_ffn=48,
        encoder_layers=3,
        decoder_layers=2,
        norm=norm,
        activation=activation,
        tied_embeddings="none",
    )
    model = make_model(config)
    theirs = nn.Transformer(
        32, 2, 3, 2, 48, activation=activation, batch_first=True, norm_first=norm == "pre"
    ).eval()
    if norm == "post":
        # nn.Transformer ends a post-norm stack with one norm more than the paper.
        theirs.encoder.norm = theirs.decoder.norm = None
    theirs.load_state_dict(torch_weights(model))

    def embed(ids: Tensor, name: str) -> Tensor:
        vectors = F.embedding(ids, model.embeddings.get_parameter(name)) * math.sqrt(32)
        return vectors + vaswani_positions(ids.shape[1], 32)

    padding_BS = batch.source_BS == 0
    with torch.no_grad():
        output_BTD = theirs(
            embed(batch.source_BS, "source"),
            embed(batch.decoder_input_BT, "target"),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(batch.target_BT.shape[1]),
            src_key_padding_mask=padding_BS,
            memory_key_padding_mask=padding_BS,
            tgt_is_causal=True,
        )
    assert_same_logits(model, batch, F.linear(output_BTD, model.embeddings.get_parameter("output")))
