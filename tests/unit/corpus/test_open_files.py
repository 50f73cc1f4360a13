"""More files than a process may open at first: a corpus of many runs, as 30 million pairs have."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.base.disk_errors import as_machine_error
from dragoman.base.errors import CorpusError
from dragoman.base.process import explain

ENTRIES = 150
FEW = 100


def corpus_of_many_runs(folder: Path) -> None:
    """Each entry of the training text makes at least one run."""
    entries = []
    for number in range(ENTRIES):
        lines = (
            f"House number {number} of {n}.\tHaus Nummer {number} von {n}.\n" for n in range(9)
        )
        (folder / f"{number}.tsv").write_text("".join(lines))
        entries.append(f'{{tsv = "{number}.tsv"}}')
    (folder / "many.toml").write_text(
        '[corpus]\nsource_language = "en"\ntarget_language = "de"\n'
        f"train = [{', '.join(entries)}]\n"
        "valid_pairs = 20\nsubword = {vocab_size = 80}\n"
    )


def prepare(folder: Path, *, limit: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dragoman", "prepare", "many.toml", "--workers", "1"],
        cwd=folder,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
    )


@pytest.mark.system
def test_a_corpus_of_more_runs_than_a_process_may_open_is_prepared(tmp_path: Path) -> None:
    corpus_of_many_runs(tmp_path)
    done = prepare(tmp_path, limit=FEW)
    assert done.returncode == 0, done.stderr
    (manifest,) = tmp_path.glob("prepared/*/manifest.json")
    assert json.loads(manifest.read_bytes())["splits"]["train"]["pairs"] == ENTRIES * 9 - 20


@pytest.mark.parametrize(("code", "remedy"), [(errno.EMFILE, "ulimit"), (errno.ENFILE, "file-max")])
def test_the_remedy_is_that_of_the_limit_whoever_opens_the_file(code: int, remedy: str) -> None:
    cause = OSError(code, os.strerror(code), "a.txt")
    assert remedy in as_machine_error(cause).remedy
    error = CorpusError("cannot be read", place="a.txt", remedy="check its name")
    error.__cause__ = cause
    said, _ = explain(error)
    assert remedy in said
    assert "check its name" not in said
