"""The parser of the command line: every command is there, and has its options if it is called."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys

import pytest

from dragoman import cli
from dragoman.cli.command_line import command_parser


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (found,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    return dict(found.choices)


ALL = commands(command_parser())


def test_the_help_of_dragoman_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    assert end.value.code == 0
    shown = re.findall(r"^ {4}(\S+)", capsys.readouterr().out, re.MULTILINE)
    assert shown == [*ALL]


@pytest.mark.parametrize("name", ALL)
def test_a_command_that_is_called_has_all_its_options(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out == ALL[name].format_help()


@pytest.mark.parametrize("columns", ["", "abc", "0", "-1", "40", "133"])
def test_help_is_as_wide_as_that_of_argparse(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    parser = command_parser(["train"])
    ours = parser.format_help()
    parser.formatter_class = argparse.HelpFormatter
    assert ours == parser.format_help()


def test_an_unknown_option_names_the_help_of_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "demo", "--colour"])
    assert end.value.code == 2
    line = "dragoman: unrecognized arguments: --colour; see: dragoman train --help\n"
    assert capsys.readouterr() == ("", line)


def test_garbage_is_collected_while_a_command_works_and_not_while_it_starts() -> None:
    program = """
import gc, sys
from dragoman.cli import recipes
recipes.run.run = lambda options: print(gc.isenabled())
sys.argv = ["dragoman", "recipes"]
from dragoman.__main__ import main
main()
print(gc.isenabled())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == [b"True", b"False"]
