"""Lists of the digests of a bundle that are torn or never were one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.base.errors import CheckpointError
from dragoman.formats.bundle import Bundle


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
