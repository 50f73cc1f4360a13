"""The exam of a run, a server with LibreTranslate's interface and a program, as commands."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

import dragoman
from dragoman.cli.command_line import main
from dragoman.evaluation.exam import SUBJECTS
from dragoman.reporting.reading import read_facts
from real_text import real_lines
from served import served_bundle, serving
from small_run import small_run

FILES = ("test.en", "test.de")


@pytest.fixture
def sentences(tmp_path: Path) -> str:
    for name in FILES:
        lines = real_lines("test", name[-2:])[:40]
        text = "".join(f"{line}\n" for line in lines)
        (tmp_path / name).write_text(f"\n{text}\n")  # lines without text are passed over
    return ",".join(str(tmp_path / name) for name in FILES)


def test_an_export_and_its_server_get_the_same_marks(
    sentences: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = served_bundle()
    common = ["--test", sentences, "--lines", "20", "--json"]
    assert main(["exam", str(bundle), *common, "--threads", "1"]) == 0
    (own,) = json.loads(capsys.readouterr().out)
    assert [mark["subject"] for mark in own["marks"]] == [subject.name for subject in SUBJECTS]
    assert {mark["subject"]: mark["held"] for mark in own["marks"]}["an empty line"] == 20
    with serving(bundle, "--threads", "1") as server:
        address = f"{server.url}/libretranslate"
        assert main(["exam", address, "--languages", "en-de", *common]) == 0
    (served,) = json.loads(capsys.readouterr().out)
    without_terms = [mark for mark in own["marks"] if mark["subject"] != "a term"]
    for mark, of_server in zip(without_terms, served["marks"], strict=True):
        assert mark["subject"] == of_server["subject"]
        assert abs(mark["held"] - of_server["held"]) <= 1, (mark, of_server)


def test_the_marks_of_a_run_are_in_its_report_and_beside_those_of_its_export(
    sentences: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run = shutil.copytree(small_run().path, tmp_path / "run")
    systems = [str(run), str(served_bundle())]
    command = ["exam", *systems, "--test", sentences, "--lines", "5", "--threads", "1"]
    assert main(command) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith(f"A  {run}:")
    assert shown[1].startswith(f"B  {systems[1]}:")
    rows = [line.split() for line in shown if line.startswith("an empty line")]
    assert rows == [["an", "empty", "line", "5", "100.0%", "100.0%"]]
    facts = read_facts(run)
    assert {mark.subject: mark.held for mark in facts.exam}["an empty line"] == 5
    dragoman.report(run).write(tmp_path / "report")
    for name in ("report.html", "report.md"):
        assert "100.0% (5 of 5)" in (tmp_path / "report" / name).read_text()


def test_a_program_is_examined_and_the_answers_fit_a_terminal(
    sentences: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["exam", "cat", "--program", "--languages", "en-de", "--test", sentences]) == 0
    shown = capsys.readouterr().out
    assert "a web address" in shown
    assert "100.0%" in shown
    lines = shown.splitlines()
    assert max(map(len, lines[1:])) <= 80


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "no such run or export"),
        (["http://127.0.0.1:9", "--languages", "en-de", "--test", "TEST"], "no answer"),
        (["http://127.0.0.1:9"], "name languages, such as en-de, and test"),
        (["false", "--program", "--languages", "en-de", "--test", "TEST"], "cannot translate"),
        (["true", "--program", "--languages", "en-de", "--test", "TEST"], "wrote 0 lines for 40"),
        (["no-such", "--program", "--languages", "en-de", "--test", "TEST"], "cannot translate"),
        ([sys.executable, "--program", "--languages", "english", "--test", "TEST"], "languages"),
    ],
)
def test_a_bad_system_is_one_line(
    words: list[str], says: str, sentences: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["exam", *(sentences if word == "TEST" else word for word in words)]) in (1, 2)
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert says in error
