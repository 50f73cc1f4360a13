"""What programs read of a model card."""

from __future__ import annotations

from pathlib import Path

import yaml

from dragoman.corpus.manifest import Manifest
from dragoman.export.bundle import BundleInfo, Verified
from dragoman.export.card import model_card
from small_run import small_run


def test_every_language_in_the_header_is_text(shared_data: Path) -> None:
    """Norwegian is written as YAML writes false."""
    run = small_run(shared_data)
    info = BundleInfo(
        kind="bundle",
        name="fjord",
        dragoman_version="1",
        created="2026-01-01T00:00:00+00:00",
        source_language="en",
        target_language="no",
        licence="CC0",
        run="run",
        checkpoint="step-1",
        step=1,
        num_parameters=1,
        quantization="float32",
        vocabularies={},
        scores=(),
        verified=Verified(sentences=1, identical=1, chrf=100.0),
    )
    _, header, _ = model_card(info, run.recipe(), Manifest.load(run.path)).split("---", 2)
    assert yaml.safe_load(header)["language"] == ["en", "no"]
