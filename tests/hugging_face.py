"""Our weights in the architectures of Hugging Face that are ours up to names."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from dragoman.corpus.directions import Direction
from dragoman.formats.huggingface import write_model
from dragoman.importing.weights import layer_weights
from dragoman.model.transformer import Transformer


def to_m2m100(model: Transformer) -> Any:
    """An M2M100ForConditionalGeneration with the weights of a pre-norm, all-tied model."""
    transformers = pytest.importorskip("transformers")
    config = model.config
    assert config.norm == "pre"
    theirs = transformers.M2M100ForConditionalGeneration(
        transformers.M2M100Config(
            vocab_size=len(model.embeddings.target_matrix),
            d_model=config.d_model,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.d_ffn,
            decoder_ffn_dim=config.d_ffn,
            activation_function=config.activation,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=3,
            decoder_start_token_id=2,
        )
    )
    weights = {"model.shared.weight": model.embeddings.target_matrix, **layer_weights(model)}
    loaded = theirs.load_state_dict(weights, strict=False)
    assert not loaded.unexpected_keys
    theirs.tie_weights()
    return theirs.eval()


def as_exported(model: Transformer) -> Any:
    """The model as transformers reads it from an export."""
    transformers = pytest.importorskip("transformers")
    with TemporaryDirectory() as folder:
        write_model(model, Path(folder), direction=Direction("en", "de"))
        return transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
