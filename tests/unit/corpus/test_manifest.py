from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.base.errors import CorpusError
from dragoman.corpus.manifest import Manifest, TextSize
from dragoman.corpus.prepare import prepare
from parallel_text import small_corpus


def test_a_size_has_both_mb_and_mib() -> None:
    size = TextSize.of(1_023_000_000)
    assert (size.num_bytes, size.mb, size.mib) == (1_023_000_000, 1023.0, 975.609)


def test_a_directory_without_manifest_is_not_prepared(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="is not a prepared corpus; run dragoman prepare first"):
        Manifest.load(tmp_path)


@pytest.mark.parametrize("change", ["torn", "version", "foreign"])
def test_a_manifest_of_another_kind_is_refused_and_made_again(tmp_path: Path, change: str) -> None:
    config = small_corpus(tmp_path)
    manifest = prepare(config, tmp_path / "out", workers=1)
    path = tmp_path / "out/manifest.json"
    text = path.read_text()
    path.write_text(
        {
            "torn": text[:-30],
            "version": json.dumps(json.loads(text) | {"format_version": 2}),
            "foreign": "[]",
        }[change]
    )
    with pytest.raises(CorpusError, match=r"manifest\.json: is not a manifest that this version"):
        Manifest.load(tmp_path / "out")
    assert prepare(config, tmp_path / "out", workers=1) == manifest
    assert path.read_text() == text
