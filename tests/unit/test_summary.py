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


def test_a_command_is_not_broken_at_the_edge_of_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    print_summary(small_run())
    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith(f"dragoman inspect {small_run().path}") for line in lines)
