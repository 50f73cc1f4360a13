"""Runs of others: a file that is not regular is neither waited for nor read without end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forked_command import execute
from recorded_runs import Recorded


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with its recipe and the events of two ranks."""
    return Recorded(steps=200, max_steps=200, recipe=()).write(tmp_path / "demo-1")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def dragoman(*arguments: str) -> tuple[int, str]:
    """Run the command in a process of its own, with 8 GB of addresses."""
    return execute(arguments, most_bytes=8_000_000_000)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _deep(path: Path) -> None:
    path.write_text("[" * 100_000)


@pytest.mark.parametrize("make", [_pipe, _endless, _deep])
def test_a_hostile_record_of_the_corpus_is_one_line(run: Path, make: object) -> None:
    assert callable(make)
    make(run / "corpus.json")
    code, error = dragoman("train", str(run))
    assert code == 1, error
    assert "corpus.json: does not say where the prepared corpus lies" in error
    assert error.count("\n") == 1


def test_a_report_replaces_links_and_pipes_and_not_the_files_behind_them(
    run: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (run / "report").mkdir()
    (run / "report" / "report.html").symlink_to(victim)
    os.mkfifo(run / "report" / "report.md")
    assert dragoman("report", str(run)) == (0, "")
    assert victim.read_text() == "mine"
    assert not (run / "report" / "report.html").is_symlink()
    assert (run / "report" / "report.md").is_file()
