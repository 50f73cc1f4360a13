"""The warning about an export whose translations differ."""

from __future__ import annotations

import pytest

from dragoman.formats.bundle import Verified


@pytest.mark.parametrize(
    ("identical", "chrf", "is_warned"),
    [(100, 100.0, False), (98, 98.9, False), (97, 98.9, True), (82, 95.2, True), (82, 99.0, False),
     (0, 12.0, True)],
)  # fmt: skip
def test_an_export_that_is_not_alike_is_a_warning(
    identical: int, chrf: float, is_warned: bool
) -> None:
    warning = Verified(sentences=100, identical=identical, chrf=chrf).warning
    assert bool(warning) == is_warned
    assert not warning or f"{identical} of 100" in warning
