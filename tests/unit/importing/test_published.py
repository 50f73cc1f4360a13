"""The configurations of published models are read, each key as transformers means it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.importing.config import SpecialIds, read_config

OPUS = {
    "model_type": "marian", "architectures": ["MarianMTModel"], "activation_function": "swish",
    "add_bias_logits": False, "add_final_layer_norm": False, "classif_dropout": 0.0,
    "d_model": 512, "decoder_attention_heads": 8, "decoder_ffn_dim": 2048,
    "decoder_layerdrop": 0.0, "decoder_layers": 6, "dropout": 0.1, "encoder_attention_heads": 8,
    "encoder_ffn_dim": 2048, "encoder_layers": 6, "eos_token_id": 0, "is_encoder_decoder": True,
    "max_position_embeddings": 512, "normalize_before": False, "normalize_embedding": False,
    "num_hidden_layers": 6, "scale_embedding": True, "static_position_embeddings": True,
}  # fmt: skip
M2M100 = {
    "model_type": "m2m_100", "architectures": ["M2M100ForConditionalGeneration"],
    "activation_function": "relu", "attention_dropout": 0.1, "d_model": 1024,
    "decoder_attention_heads": 16, "decoder_start_token_id": 2, "dropout": 0.1,
    "encoder_attention_heads": 16, "encoder_layerdrop": 0.05, "eos_token_id": 2,
    "is_encoder_decoder": True, "max_position_embeddings": 1024, "pad_token_id": 1,
    "scale_embedding": True, "use_cache": True,
}  # fmt: skip


def opus(padding: int, **more: Any) -> dict[str, Any]:
    ids = {"vocab_size": padding + 1, "pad_token_id": padding, "decoder_start_token_id": padding}
    return OPUS | ids | {"bad_words_ids": [[padding]]} | more


def generation(padding: int, end: int = 0) -> dict[str, Any]:
    """As transformers' authors have added it to the models in 2023."""
    return {
        "_from_model_config": True, "bad_words_ids": [[padding]], "bos_token_id": 0,
        "decoder_start_token_id": padding, "eos_token_id": end, "forced_eos_token_id": end,
        "max_length": 512, "num_beams": 4, "pad_token_id": padding, "renormalize_logits": True,
        "transformers_version": "4.32.0.dev0",
    }  # fmt: skip


BIG = {
    "d_model": 1024, "decoder_attention_heads": 16, "decoder_ffn_dim": 4096,
    "encoder_attention_heads": 16, "encoder_ffn_dim": 4096, "activation_function": "relu",
    "eos_token_id": 44670, "forced_eos_token_id": 44670, "max_position_embeddings": 1024,
    "decoder_vocab_size": 54776, "share_encoder_decoder_embeddings": True,
}  # fmt: skip
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any], SpecialIds]] = {
    "opus-mt-en-zh": (
        opus(65000, extra_pos_embeddings=0, max_length=None, num_beams=None),
        generation(65000),
        {"renormalize": True, "end_at_limit": True, "max_length_extra": 511},
        SpecialIds(padding=65000, end=0, start=65000),
    ),
    "opus-mt of 2020, without a file of generation": (
        opus(54687, num_beams=6, max_length=512),
        None,
        {"beam_size": 6, "renormalize": False, "end_at_limit": True, "max_length_extra": 511},
        SpecialIds(padding=54687, end=0, start=54687),
    ),
    "opus-mt-tc-big-en-pt": (
        opus(54775, **BIG),
        generation(54775, 44670),
        {"renormalize": True, "end_at_limit": True, "max_length_extra": 511},
        SpecialIds(padding=54775, end=44670, start=54775),
    ),
    "nllb-200-1.3B": (
        M2M100
        | {
            "vocab_size": 256206, "encoder_layers": 24, "decoder_layers": 24,
            "encoder_ffn_dim": 8192, "decoder_ffn_dim": 8192, "max_length": 200,
        },
        {"decoder_start_token_id": 2, "eos_token_id": 2, "pad_token_id": 1, "max_length": 200},
        {"beam_size": 4, "never_padding": False, "max_length_extra": 199},
        SpecialIds(padding=1, end=2, start=2),
    ),
    "m2m100 with few decoder layers": (
        M2M100
        | {
            "vocab_size": 128112, "encoder_layers": 12, "decoder_layers": 3,
            "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096,
        },
        {"decoder_start_token_id": 2, "eos_token_id": 2, "num_beams": 5, "max_length": 256},
        {"beam_size": 5, "never_padding": False, "max_length_extra": 255},
        SpecialIds(padding=1, end=2, start=2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_configuration_is_read(tmp_path: Path, name: str) -> None:
    config, search_settings, expected, special = PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    if search_settings is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(search_settings))
    found = read_config(tmp_path)
    search = found.search
    common = {"length_penalty": "power", "length_penalty_alpha": 1.0, "max_length_ratio": 0.0}
    if config["model_type"] == "marian":
        common |= {"never_padding": True}
    for key, value in (common | expected).items():
        assert getattr(search, key) == value, key
    assert search.early_stopping is False, "not set is false in transformers"
    assert found.special == special
    assert found.model.d_model == config["d_model"]
    assert found.model.encoder_layers == config["encoder_layers"]
    assert found.model.decoder_layers == config["decoder_layers"]
    assert found.model.activation == config["activation_function"].replace("swish", "silu")
