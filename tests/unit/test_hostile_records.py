"""Runs of others: a file that is not regular is neither waited for nor read without end."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from dragoman.base.errors import MachineError
from dragoman.distributed.launch import launch_log, launch_workers
from dragoman.reporting.reading import read_facts
from dragoman.reporting.render import Report
from dragoman.telemetry.session import training_session
from forked_command import execute
from recorded_runs import Recorded
from small_run import small_run


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


@pytest.mark.parametrize("name", ["session.json", "session.lock", "events/rank-0000.jsonl"])
@pytest.mark.parametrize("verb", [("status",), ("report",), ("watch", "--once")])
def test_a_pipe_in_a_run_is_not_waited_for(run: Path, name: str, verb: tuple[str, ...]) -> None:
    if name == "session.lock":
        (run / "session.json").write_text('{"pid": 7, "machine": "other", "started": 1.7e9}')
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    code, error = dragoman(*verb, str(run))
    assert (code, error.count("\n") <= 1) == (0, True), error


def test_a_device_in_a_run_is_not_read(run: Path) -> None:
    (run / "session.json").symlink_to("/dev/zero")
    assert dragoman("status", str(run)) == (0, "")


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


def test_the_log_of_the_launcher_is_not_written_through_a_link(run: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    log = launch_log(run)
    log.parent.mkdir()
    log.symlink_to(victim)
    with pytest.raises(OSError, match="is a link"):
        launch_workers(["nothing"], ranks=1, run_directory=run)
    assert not victim.exists()


def test_the_lock_is_not_made_through_a_link(run: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (run / "session.lock").symlink_to(victim)
    with pytest.raises(MachineError, match="is a link"), training_session(run):
        pass
    assert not victim.exists()


@pytest.mark.parametrize("splits", ["none", "no stage"])
def test_a_manifest_of_no_text_is_a_problem_of_the_record(tmp_path: Path, splits: str) -> None:
    run = Path(shutil.copytree(small_run().path, tmp_path / "run"))
    file = run / "manifest.json"
    values = json.loads(file.read_bytes())
    values["splits"] = {} if splits == "none" else values["splits"]
    for split in values["splits"].values():
        split["stages"] = []
    file.write_text(json.dumps(values))
    report = Report.of(read_facts(run))
    assert f"{file}: names no training text" in " ".join(report.facts.problems)
    assert "There is no manifest of the training text." in repr(report)
