"""The description of an export, for tests of what is said of it."""

from __future__ import annotations

from typing import Any

from dragoman.formats.bundle import BundleInfo, Verified


def bundle_info(**changes: Any) -> BundleInfo:
    """An export into Norwegian, some values changed."""
    values: dict[str, Any] = {
        "kind": "ctranslate2",
        "name": "fjord",
        "dragoman_version": "1",
        "created": "2026-01-01T00:00:00+00:00",
        "source_language": "en",
        "target_language": "no",
        "licence": "CC0",
        "run": "run",
        "checkpoint": "step-1",
        "step": 1,
        "num_parameters": 1,
        "quantization": "float32",
        "vocabularies": {},
        "scores": (),
        "verified": Verified(sentences=1, identical=1, chrf=100.0),
    }
    return BundleInfo(**values | changes)
