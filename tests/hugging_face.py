"""Our weights in the architectures of Hugging Face that are ours up to names."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from safetensors.torch import save_file

from dragoman.base.files import write_json
from dragoman.corpus.directions import Direction
from dragoman.formats.huggingface import config_keys, family_of
from dragoman.model.config import CONFIG_FILE
from dragoman.model.transformer import Transformer
from dragoman.model.weights_form import WEIGHTS_FILE, WeightsForm

ENGLISH_TO_GERMAN = Direction("en", "de")


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
    weights = WeightsForm("m2m_100").to_file(dict(model.named_parameters()))
    loaded = theirs.load_state_dict(weights, strict=False)
    assert not loaded.unexpected_keys
    theirs.tie_weights()
    return theirs.eval()


def write_model(
    model: Transformer, directory: Path, *, direction: Direction = ENGLISH_TO_GERMAN
) -> None:
    """Write config.json and the weights, as an export has them."""
    config, embeddings = model.config, model.embeddings
    sizes = len(embeddings.source_matrix), len(embeddings.target_matrix)
    keys = config_keys(config, sizes, direction)
    write_json(directory / CONFIG_FILE, keys | {"max_position_embeddings": 1024})
    form = WeightsForm(family_of(config), num_positions=1024 if config.norm == "pre" else 0)
    weights = form.to_file(dict(model.named_parameters()))
    save_file(weights, directory / WEIGHTS_FILE, metadata={"format": "pt"})


def as_exported(model: Transformer) -> Any:
    """The model as transformers reads it from an export."""
    transformers = pytest.importorskip("transformers")
    with TemporaryDirectory() as folder:
        write_model(model, Path(folder))
        return transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
