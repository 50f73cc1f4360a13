"""Our weights in the architecture of Hugging Face's M2M100, which is ours up to names."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.formats.huggingface import to_huggingface
from dragoman.model.transformer import Transformer


def to_m2m100(model: Transformer) -> Any:
    """An M2M100ForConditionalGeneration with the weights of a pre-norm, all-tied model."""
    pytest.importorskip("transformers")
    assert model.config.norm == "pre"
    return to_huggingface(model)
