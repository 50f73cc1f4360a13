"""The end of `dragoman run` on the console."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from bundle_info import bundle_info
from dragoman.cli.command_line import command_parser
from dragoman.cli.summary import print_summary
from dragoman.formats.bundle import INFO_FILE, Verified
from dragoman.recipe.run_directory import RunDirectory
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


def test_an_export_that_translates_otherwise_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(shutil.copytree(small_run().path, tmp_path / "run"))
    for number, identical in enumerate((100, 77)):
        place = run.path / "export" / f"ctranslate2-{number}"
        place.mkdir(parents=True)
        verified = Verified(sentences=100, identical=identical, chrf=95.0)
        (place / INFO_FILE).write_text(bundle_info(verified=verified).model_dump_json())
    print_summary(run)
    shown = " ".join(capsys.readouterr().out.split())
    assert "ctranslate2-1: warning: only 77 of 100 translations are equal" in shown
    assert "ctranslate2-0: warning" not in shown
