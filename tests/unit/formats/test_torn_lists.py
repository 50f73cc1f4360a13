"""Lists in a bundle, of digests and of pieces, that are torn or never were one."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from dragoman.base.errors import CheckpointError
from dragoman.formats.bundle import Bundle
from served import served_bundle


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        '{"a\\u0000b": {"bytes": 3, "sha256": ""}}',
        '{"a\\ud800b": {"bytes": 3, "sha256": ""}}',
        '{"../recipe.toml": {"bytes": 3, "sha256": ""}}',
        '{"..": {"bytes": 3, "sha256": ""}}',
        '{"README.md": {"bytes": true, "sha256": ""}}',
        '{"README.md": {"bytes": -1, "sha256": ""}}',
        '{"README.md": {"bytes": 1' + "0" * 400 + ', "sha256": ""}}',
        '{"' + "a" * 256 + '": {"bytes": 3, "sha256": ""}}',
    ],
    ids=["nested", "nul", "surrogate", "elsewhere", "parent", "bool", "negative", "huge", "long"],
)
def test_a_malformed_list_of_digests_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "digests.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"digests\.json: is missing or torn"):
        Bundle.open(tmp_path)


@pytest.mark.parametrize("content", ["", "[" * 100_000, "{}"], ids=["empty", "nested", "object"])
def test_a_torn_list_of_pieces_is_a_wrong_vocabulary(tmp_path: Path, content: str) -> None:
    torn = tmp_path / "torn"
    shutil.copytree(served_bundle(), torn)
    (torn / "shared_vocabulary.json").write_text(content)
    digests = json.loads((torn / "digests.json").read_bytes())
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    digests["shared_vocabulary.json"] = {"sha256": sha256, "bytes": len(content)}
    (torn / "digests.json").write_text(json.dumps(digests))
    with pytest.raises(CheckpointError, match="vocabulary"):
        Bundle.open(torn)
