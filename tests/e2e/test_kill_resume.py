"""kill -9 at random moments, five times: the final weights are those of the run left alone."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

NUM_KILLS = 5
MAX_STEPS = 400
PROGRAM = Path(__file__).resolve().parents[1] / "toy_fit.py"


def start(directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(PROGRAM), str(directory), str(MAX_STEPS)])


def train_to_the_end(directory: Path) -> float:
    """Returns the seconds it took from the first event on."""
    process = start(directory)
    wait_for_events(directory, 0, process)
    started = time.monotonic()
    assert process.wait(timeout=200) == 0
    return time.monotonic() - started


def wait_for_events(directory: Path, size_before: int, process: subprocess.Popen[bytes]) -> None:
    while events_size(directory) <= size_before:
        assert process.poll() is None
        time.sleep(0.01)


def events_size(directory: Path) -> int:
    file = directory / "events" / "log.jsonl"
    return file.stat().st_size if file.is_file() else 0


@pytest.mark.slow
def test_five_kills_change_no_bit(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    training_s = train_to_the_end(whole)
    seed = random.SystemRandom().randrange(2**32)
    moments = random.Random(seed)
    print(f"moments of the kills drawn with seed {seed}")
    for _ in range(NUM_KILLS):
        size_before = events_size(killed)
        process = start(killed)
        # From the moment it trains; a kill while Python is imported would prove nothing.
        wait_for_events(killed, size_before, process)
        time.sleep(moments.uniform(0, training_s / (NUM_KILLS + 1)))
        process.kill()
        assert process.wait(timeout=20) == -9
    train_to_the_end(killed)
    names = sorted(path.name for path in (whole / "checkpoints").iterdir())
    assert sorted(path.name for path in (killed / "checkpoints").iterdir()) == names
    final = f"step-{MAX_STEPS:07d}"
    for group in ("model", "updated", "optimizer"):
        expected = load_file(whole / "checkpoints" / final / f"{group}.safetensors")
        found = load_file(killed / "checkpoints" / final / f"{group}.safetensors")
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            assert torch.equal(tensor, expected[name]), f"{group}: {name}"
