"""How many rows CTranslate2 searches together, from the model and the cores."""

from __future__ import annotations

import pytest

from dragoman.formats import ctranslate2_engine
from dragoman.model.config import ModelConfig


def test_a_small_model_is_searched_in_larger_batches() -> None:
    base = ModelConfig()
    assert ctranslate2_engine.fitting_cells(base) == pytest.approx(2048, rel=0.01)
    half = ModelConfig(d_model=256, decoder_layers=3)
    assert ctranslate2_engine.fitting_cells(half) == pytest.approx(4 * 2048, rel=0.01)


def test_no_core_waits_long_for_the_last_batch_of_another() -> None:
    shares = {
        (rows, cores): ctranslate2_engine.share_of_rows(rows, cores)
        for rows, cores in [(1000, 1), (2048, 2), (300, 2), (300, 6), (300, 16)]
    }
    assert [*shares.values()] == [1000, 256, 64, 50, 32]
