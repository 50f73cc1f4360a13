"""config.json of our exports leaves nothing to the defaults of transformers' classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from dragoman.corpus.directions import Direction
from dragoman.formats.imported_form import training_keys
from dragoman.model.config import ModelConfig
from dragoman.model.transformer import Transformer
from hugging_face import write_model

transformers = pytest.importorskip("transformers")

OF_NO_EFFECT = {
    "init_std": "of weights that a file lacks, and it lacks none",
    "use_cache": "the same translations, slower",
    "max_length": "generation_config.json has the limit", "num_beams": "generation_config.json",
    "length_penalty": "generation_config.json", "early_stopping": "generation_config.json",
    "is_decoder": "false unless somebody builds a part of a model",
    "model_type": "of the class", "keys_to_ignore_at_inference": "of the class",
    "attribute_map": "of the class",
}  # fmt: skip


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_every_key_of_the_class_that_matters_is_written(
    norm: Literal["pre", "post"], tmp_path: Path
) -> None:
    shape = ModelConfig(d_model=32, num_heads=4, d_ffn=48, encoder_layers=1, decoder_layers=2)
    torch.manual_seed(1)
    model = Transformer(
        shape.model_copy(update={"norm": norm}), source_vocab_size=50, target_vocab_size=50
    )
    write_model(model, tmp_path, direction=Direction("fr", "nl"))
    written = json.loads((tmp_path / "config.json").read_bytes())
    kind: Any = transformers.PegasusConfig if norm == "pre" else transformers.FSMTConfig
    assert {*kind.__annotations__} - {*written} - {*OF_NO_EFFECT} == set()
    # Nor does a class of this version change what it reads.
    read = transformers.AutoConfig.from_pretrained(tmp_path)
    assert {key: getattr(read, key, None) for key in written if key != "dtype"} == {
        key: value for key, value in written.items() if key != "dtype"
    }


def test_no_layer_is_dropped_in_a_training_of_any_export() -> None:
    """M2M100 drops one in twenty if nothing is said."""
    keys = training_keys(ModelConfig())
    assert (keys["encoder_layerdrop"], keys["decoder_layerdrop"]) == (0.0, 0.0)
    assert transformers.M2M100Config().encoder_layerdrop > 0
