"""Two real worker processes under torchrun: stopped, killed, resumed; nothing is left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.telemetry.events import Event, read_events
from tiny_recipe import TINY

RECIPE = (
    TINY
    + """\
[data]
batch_tokens = 128
[train]
max_steps = 100000
log_every_steps = 5
validate_every_steps = 100000
validate_at_start = false
[checkpoint]
every_steps = 100000
[evaluate]
bootstrap_samples = 0
"""
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("endless.toml").write_text(RECIPE)
    Path("train.en").write_text("".join(f"The cell number {n} is empty.\n" for n in range(60)))
    Path("train.de").write_text("".join(f"Die Zelle Nummer {n} ist leer.\n" for n in range(60)))
    return tmp_path


def start_training(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dragoman", "train", "endless.toml", "--ranks", "2"]
    command += options
    return subprocess.Popen(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until(reached: Callable[[], bool], *, limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)


def events(kind: str) -> list[Event]:
    paths = Path().glob("*/endless-*/events/log.jsonl")
    return [event for path in paths for event in read_events(path) if event.kind == kind]


def processes_of(folder: Path) -> list[int]:
    """Processes that work in this folder, the test's own excepted."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "cwd").readlink() == folder:
                found.append(int(entry.name))
        except OSError:  # it has ended, or is not ours
            continue
    return [pid for pid in found if pid != os.getpid()]


def workers_of(folder: Path) -> list[int]:
    """The processes that train in this folder."""
    return [
        pid
        for pid in processes_of(folder)
        if b"dragoman.run.worker"
        in (words := Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
        and b"dragoman.distributed.launch" not in words
    ]


def test_a_signal_saves_and_the_same_command_goes_on(folder: Path) -> None:
    training = start_training()
    wait_until(lambda: bool(events("train_interval")))
    training.send_signal(signal.SIGINT)
    _, complaint = training.communicate(timeout=60)
    assert training.returncode == 130, complaint
    assert complaint.count("\n") == 1, complaint
    assert "everything is saved" in complaint
    wait_until(lambda: not processes_of(folder), limit_s=20)
    (run,) = Path("runs").glob("endless-*")
    (checkpoint,) = (run / "checkpoints").iterdir()
    stopped_at = int(checkpoint.name.removeprefix("step-"))

    resumed = start_training()
    wait_until(lambda: len(events("run_started")) == 2)
    assert events("run_started")[1].payload["resumed_from_step"] == stopped_at
    wait_until(lambda: bool((events("train_interval")[-1].step or 0) > stopped_at))
    resumed.send_signal(signal.SIGTERM)
    resumed.communicate(timeout=60)
    assert resumed.returncode == 130


def test_no_worker_outlives_the_command(folder: Path) -> None:
    training = start_training()
    wait_until(lambda: bool(events("train_interval")))
    training.kill()
    training.communicate()
    wait_until(lambda: not processes_of(folder), limit_s=60)


def test_a_dead_worker_is_reported_in_one_line(folder: Path) -> None:
    training = start_training()
    wait_until(lambda: bool(events("train_interval")))
    workers = workers_of(folder)
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    _, complaint = training.communicate(timeout=120)
    assert training.returncode == 1
    assert complaint.count("\n") == 1, complaint
    assert "was killed by SIGKILL at" in complaint
    wait_until(lambda: not processes_of(folder), limit_s=20)


def test_the_console_tells_of_a_rank_0_that_stands_still(folder: Path) -> None:
    """Rank 0 itself cannot say so; the other one does."""
    training = start_training()
    wait_until(lambda: bool(events("train_interval")))
    (main,) = (
        pid
        for pid in workers_of(folder)
        if b"RANK=0" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    )
    os.kill(main, signal.SIGSTOP)
    assert training.stdout is not None
    warning = next(line for line in training.stdout if "no sign of life" in line)
    assert warning.startswith("warning: rank 0 on ")
    assert Path(f"/proc/{main}/stat").read_text().split()[2] == "T", "printed while it stands still"
    os.kill(main, signal.SIGCONT)
    next(line for line in training.stdout if "rank 0 on " in line and " goes on; " in line)
    training.send_signal(signal.SIGINT)
    training.communicate(timeout=60)
    assert training.returncode == 130


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_kills_of_two_ranks_change_no_bit(folder: Path, kills: int) -> None:
    last = 100 + 60 * kills
    short = [
        *("--set", f"train.max_steps={last}"),
        *("--set", "checkpoint.every_steps=20"),
        *("--set", "train.log_every_steps=1"),
    ]
    seed = random.SystemRandom().randrange(2**32)
    print(f"moments of the kills drawn with seed {seed}")
    moments = random.Random(seed)
    for _ in range(kills):
        # In steps, not in seconds: a fast machine would end the run before its last kill.
        wanted = len(events("train_interval")) + moments.randint(1, 50)
        training = start_training(*short, "--runs", "killed")
        wait_until(lambda wanted=wanted: len(events("train_interval")) >= wanted)  # type: ignore[misc]
        assert training.poll() is None, training.communicate()
        time.sleep(moments.uniform(0, 0.05))
        training.kill()
        training.communicate()
        wait_until(lambda: not processes_of(folder), limit_s=60)
    for runs in ("killed", "whole"):
        training = start_training(*short, "--runs", runs)
        _, complaint = training.communicate(timeout=300)
        assert training.returncode == 0, complaint
    final = f"endless-*/checkpoints/step-{last:07}/model.safetensors"
    (killed,), (whole,) = Path("killed").glob(final), Path("whole").glob(final)
    assert killed.read_bytes() == whole.read_bytes()
    assert not list(Path("killed").rglob(".*"))
