"""The end of `dragoman run` on the console."""

from __future__ import annotations

import pytest

from dragoman.cli.summary import print_summary
from small_run import small_run


def test_a_run_without_a_test_set_ends_with_its_places(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(small_run())
    shown = capsys.readouterr().out
    assert "reference" not in shown
    assert "checkpoints" in shown
