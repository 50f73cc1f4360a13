"""The end of `dragoman run` on the console."""

from __future__ import annotations

import shlex

import pytest

from dragoman.cli.command_line import command_parser
from dragoman.cli.summary import print_summary
from small_run import small_run


def test_a_run_without_a_test_set_ends_with_what_follows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_summary(small_run())
    shown = capsys.readouterr().out
    assert "reference" not in shown
    commands = [shlex.split(line[14:]) for line in shown.splitlines() if "dragoman " in line]
    assert [words[1] for words in commands] == [
        "report",
        "translate",
        "export",
        "serve",
        "inspect",
    ]
    for _, name, *words in commands:
        parser, _ = command_parser(name)
        parser.parse_args(words)


def test_a_command_is_not_broken_at_the_edge_of_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    print_summary(small_run())
    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith(f"dragoman inspect {small_run().path}") for line in lines)
