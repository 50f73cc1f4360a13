"""`make lab` as users start it: to its end, and interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab.show import STRATEGIES

TESTS = Path(__file__).resolve().parents[1]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("lab_machine")]


def show(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Its temporary files go below the folder, and it is a process group as in a terminal."""
    return subprocess.Popen(
        [sys.executable, "-m", "lab.show", *words],
        env=os.environ | {"PYTHONPATH": str(TESTS), "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def group(process: subprocess.Popen[str]) -> list[str]:
    """Running processes of its group, to which the lab's machines belong."""
    command = ["ps", "-eo", "pgid=,args="]
    listing = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line for line in listing.stdout.splitlines() if "<defunct>" not in line]
    return [line for line in lines if line.split()[0] == str(process.pid)]


@pytest.mark.timeout(3000)
def test_the_lab_trains_shows_a_table_and_leaves_nothing(tmp_path: Path) -> None:
    lab = show(tmp_path, "--steps", "20", "--rates", "50mbit")
    said, _ = lab.communicate(timeout=2900)
    assert lab.returncode == 0, said
    for words in ("$ dragoman doctor", "Fit to train", "$ dragoman train", "$ dragoman plan"):
        assert words in said
    table = said[said.index("seconds of a step, and megabytes") :]
    assert all(strategy in table for strategy in STRATEGIES)
    assert (group(lab), list(tmp_path.iterdir())) == ([], [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_lab_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    lab = show(tmp_path)
    assert lab.stdout is not None
    while "$ dragoman doctor" not in lab.stdout.readline():
        assert lab.poll() is None
    os.killpg(lab.pid, number)
    said, _ = lab.communicate(timeout=120)
    assert lab.returncode != 0
    assert "Traceback" not in said
    assert (group(lab), list(tmp_path.iterdir())) == ([], [])
