"""`dragoman train --hosts` with real ssh and torchrun: begin, stop, go on, die."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dragoman.telemetry.events import Event, read_events
from dragoman.train.durable import verify
from lab.conftest import OpenLab
from lab.laboratory import Lab, LabHost
from processes import wait_until as wait_in_time

PROGRAM = Path(sys.executable).with_name("dragoman")
RECIPE = """
[corpus]
train = [{source = "train.en", target = "train.de"}]
valid_pairs = 5
test_pairs = 5
subword.vocab_size = 60
[data]
batch_tokens = 128
[model]
d_model = 16
num_heads = 2
d_ffn = 16
encoder_layers = 1
decoder_layers = 1
[schedule]
kind = "linear"
peak_learning_rate = 1e-2
warmup_steps = 5
[train]
max_steps = 40
log_every_steps = 5
validate_every_steps = 100000
validate_at_start = false
[checkpoint]
every_steps = 20
[evaluate]
bootstrap_samples = 0
"""
ENDLESS = ("--set", "train.max_steps=100000", "--set", "checkpoint.every_steps=100000")
OFTEN_SAVED = ("--set", "train.max_steps=100000", "--set", "checkpoint.every_steps=20")


pytestmark = pytest.mark.timeout(900)


def wait_until(reached: Callable[[], bool], *, limit_s: float = 300.0) -> None:
    """Starting on several hosts takes long where they share one busy core."""
    wait_in_time(reached, limit_s=limit_s)


@dataclass
class Desk:
    """Where the user sits: a folder with a recipe, text and the hosts of the lab."""

    lab: Lab

    @property
    def folder(self) -> Path:
        return self.lab.desk.home

    def command(self, *words: str) -> list[str | Path]:
        return [PROGRAM, *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.lab.desk.run(self.command(*words), check=False, timeout_s=400)

    def start(self, *words: str) -> subprocess.Popen[str]:
        return self.lab.desk.start(
            self.command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def train(self, *words: str) -> subprocess.Popen[str]:
        return self.start("train", "small.toml", "--hosts", "hosts.toml", *words)

    def events(self, kind: str, rank: int = 0) -> list[Event]:
        found = self.folder.glob(f"runs/*/events/rank-{rank:04d}.jsonl")
        return [event for path in found for event in read_events(path) if event.kind == kind]

    def run_directory(self) -> Path:
        (found,) = (self.folder / "runs").iterdir()
        return found

    def status(self) -> dict[str, Any]:
        (found,) = json.loads(self.run("status", "--json").stdout)
        assert isinstance(found, dict)
        return found

    def signal(self, name: str) -> None:
        """Send a signal to the command that trains."""
        session = json.loads((self.run_directory() / "session.json").read_text())
        self.lab.desk.run(["kill", f"-{name}", str(session["pid"])])

    def trains(self) -> bool:
        return bool(self.events("train_interval"))


@pytest.fixture
def desk(make_lab: OpenLab) -> Desk:
    lab = make_lab(["alpha", "beta"], rate="40mbit")
    home = lab.desk.home
    lab.write_hosts_file(home / "hosts.toml", slots=[2, 1])
    (home / "small.toml").write_text(RECIPE)
    numbers = range(60)
    (home / "train.en").write_text("".join(f"The cell number {n} is empty.\n" for n in numbers))
    (home / "train.de").write_text("".join(f"Die Zelle Nummer {n} ist leer.\n" for n in numbers))
    return Desk(lab)


def programs(host: LabHost) -> list[str]:
    """What runs of ours on a host."""
    listing = host.run(["ps", "axo", "args"]).stdout.splitlines()
    return [line for line in listing if "dragoman" in line]


def nothing_left(desk: Desk, hosts: list[LabHost] | None = None) -> None:
    """The hosts run nothing of ours, soon."""
    for host in desk.lab.hosts if hosts is None else hosts:
        with contextlib.suppress(AssertionError):
            wait_until(lambda host=host: not programs(host), limit_s=60)  # type: ignore[misc]
        assert programs(host) == []


def beta_workers(desk: Desk) -> list[int]:
    """Process ids of beta's workers, as beta counts them."""
    listing = desk.lab.host("beta").run(["ps", "axo", "pid,args"]).stdout.splitlines()
    return [
        int(line.split()[0])
        for line in listing
        if "dragoman.worker" in line and "dragoman.launch" not in line
    ]


def test_trains_on_uneven_hosts_stops_and_goes_on(desk: Desk) -> None:
    training = desk.train(*ENDLESS)
    wait_until(desk.trains)
    assert desk.status()["state"] == "running"
    second = desk.run("train", str(desk.run_directory()), "--hosts", "hosts.toml")
    assert second.returncode == 1
    assert "is being trained by" in second.stderr
    told = desk.run("stop", str(desk.run_directory()))
    assert told.returncode == 0, told.stderr
    shown, complaint = training.communicate(timeout=200)
    assert training.returncode == 130, complaint
    assert "everything is saved" in complaint
    assert "3 ranks on cpu" in shown
    nothing_left(desk)
    assert desk.status()["state"] == "stopped"
    (checkpoint,) = (desk.run_directory() / "checkpoints").iterdir()
    verify(checkpoint)
    stopped_at = int(checkpoint.name.removeprefix("step-"))

    resumed = desk.start("resume", str(desk.run_directory()))
    wait_until(lambda: len(desk.events("run_started")) == 2)
    assert desk.events("run_started")[1].payload["resumed_from_step"] == stopped_at
    wait_until(lambda: (desk.events("train_interval")[-1].step or 0) > stopped_at)
    assert [event.host for event in desk.events("run_started", rank=2)] == ["beta", "beta"]
    desk.signal("KILL")
    resumed.communicate(timeout=200)
    nothing_left(desk)
    assert desk.status()["state"] == "gone"


@pytest.mark.slow
def test_a_run_on_hosts_learns_what_a_run_on_one_machine_does(desk: Desk) -> None:
    training = desk.train("--set", "distributed.wire=fp32")
    _, complaint = training.communicate(timeout=400)
    assert training.returncode == 0, complaint
    on_hosts = desk.events("train_interval")[-1]
    run = desk.run_directory()
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "step-0000020",
        "step-0000040",
    ]
    assert {path.name for path in (run / "logs").iterdir()} == {"alpha", "beta"}
    assert desk.status()["state"] == "finished"
    here = desk.run("train", "small.toml", "--runs", "here", "--set", "distributed.wire=fp32")
    assert here.returncode == 0, here.stderr
    (events,) = desk.folder.glob("here/*/events/rank-0000.jsonl")
    alone = [event for event in read_events(events) if event.kind == "train_interval"][-1]
    assert on_hosts.step == alone.step == 40
    assert on_hosts.payload["train_loss"] == pytest.approx(alone.payload["train_loss"], rel=2e-2)
    assert on_hosts.payload["target_tokens"] == alone.payload["target_tokens"]


@pytest.mark.slow
def test_the_first_ctrl_c_saves(desk: Desk) -> None:
    training = desk.train(*ENDLESS)
    wait_until(desk.trains)
    desk.signal("INT")
    _, complaint = training.communicate(timeout=200)
    assert training.returncode == 130, complaint
    assert complaint.count("\n") == 1
    assert list((desk.run_directory() / "checkpoints").iterdir())
    nothing_left(desk)


def goes_on(desk: Desk, *, ranks: int) -> float:
    """Wait until it trains again, on so many ranks, from a checkpoint; seconds since the alert."""
    wait_until(lambda: len(desk.events("run_started")) == 2)
    (alert,) = desk.events("alert")
    again = desk.events("run_started")[1]
    assert again.payload["world_size"] == ranks
    assert again.payload["resumed_from_step"] > 0
    wait_until(lambda: desk.events("train_interval")[-1].time > again.time)
    seen = [event for event in desk.events("train_interval") if event.time > again.time]
    assert alert.payload["remedy"].startswith("training goes on from step-")
    return seen[0].time - alert.time


def stop(desk: Desk, training: subprocess.Popen[str]) -> None:
    desk.signal("INT")
    _, complaint = training.communicate(timeout=200)
    assert training.returncode == 130, complaint


@pytest.mark.slow
def test_training_goes_on_when_a_worker_is_killed(desk: Desk) -> None:
    training = desk.train(*OFTEN_SAVED)
    wait_until(lambda: bool(desk.events("checkpoint_written")))
    (pid,) = beta_workers(desk)
    desk.lab.host("beta").run(["kill", "-9", str(pid)])
    print(f"training again after {goes_on(desk, ranks=3):.0f} s")
    (alert,) = desk.events("alert")
    assert alert.payload["cause"].startswith("beta: ")
    stop(desk, training)
    nothing_left(desk)


@pytest.mark.slow
@pytest.mark.parametrize(("dead", "left", "ranks"), [("beta", "alpha", 2), ("alpha", "beta", 1)])
def test_training_goes_on_without_a_dead_host(desk: Desk, dead: str, left: str, ranks: int) -> None:
    training = desk.train(*OFTEN_SAVED)
    wait_until(lambda: any(desk.folder.glob("runs/*/checkpoints/step-*/digests.json")))
    desk.lab.host(dead).power_off()
    print(f"training again after {goes_on(desk, ranks=ranks):.0f} s")
    (alert,) = desk.events("alert")
    assert alert.payload["cause"].startswith(f"{dead}: ")
    assert desk.events("run_started")[1].host == left
    stop(desk, training)
    nothing_left(desk, [desk.lab.host(left)])


@pytest.mark.slow
def test_a_cut_of_ten_seconds_is_waited_out(desk: Desk) -> None:
    training = desk.train(*OFTEN_SAVED)
    wait_until(desk.trains)
    beta = desk.lab.host("beta")
    beta.plug(plugged=False)
    time.sleep(10)
    cut_at = desk.events("train_interval")[-1].step
    beta.plug(plugged=True)
    wait_until(lambda: (desk.events("train_interval")[-1].step or 0) > (cut_at or 0), limit_s=60)
    assert desk.events("alert") == []
    assert len(desk.events("run_started")) == 1
    stop(desk, training)


@pytest.mark.slow
def test_a_hung_rank_is_ended_when_the_user_gives_up(desk: Desk) -> None:
    training = desk.train(*ENDLESS)
    wait_until(desk.trains)
    (pid,) = beta_workers(desk)
    desk.lab.host("beta").run(["kill", "-STOP", str(pid)])
    for _ in range(2):
        desk.signal("INT")
        with contextlib.suppress(subprocess.TimeoutExpired):
            training.wait(5)
    training.communicate(timeout=200)
    nothing_left(desk)


@pytest.mark.slow
def test_hosts_end_when_the_line_to_the_desk_is_cut(desk: Desk) -> None:
    training = desk.train(*ENDLESS)
    wait_until(desk.trains)
    desk.lab.desk.plug(plugged=False)
    nothing_left(desk)
    _, complaint = training.communicate(timeout=200)
    assert training.returncode == 1
    assert "ssh" in complaint


@pytest.mark.slow
def test_files_that_differ_are_refused(desk: Desk) -> None:
    assert desk.run("prepare", "small.toml").returncode == 0
    training = desk.train()
    training.communicate(timeout=400)
    assert training.returncode == 0
    beta = desk.lab.host("beta")
    (model,) = beta.home.glob(".dragoman/data/*/source.model")
    model.write_bytes(model.read_bytes()[:-1] + b"?")
    again = desk.run("train", "small.toml", "--hosts", "hosts.toml", "--fresh")
    assert again.returncode == 1
    assert "beta: same files: the " in again.stderr
    assert "the vocabulary differs" in again.stdout
    nothing_left(desk)


@pytest.mark.slow
def test_nothing_starts_on_hosts_that_are_not_fit(desk: Desk) -> None:
    beta = desk.lab.host("beta")
    beta.mount("-t", "tmpfs", "-o", "size=64m", "lab-shm", "/dev/shm")
    refused = desk.run("train", "small.toml", "--hosts", "hosts.toml")
    assert refused.returncode == 1
    assert refused.stderr.startswith("dragoman: beta: storage: 67.11 MB of shared memory")
    assert not (beta.home / ".dragoman" / "runs").exists()


def test_a_dry_run_prints_every_command_and_runs_none(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(RECIPE)
    done = subprocess.run(
        [PROGRAM, "train", "small.toml", "--hosts", "10.0.0.1:2,ann@10.0.0.2:1", "--dry-run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    commands = [line for line in done.stdout.splitlines() if line.startswith("ssh ")]
    assert len(commands) == 14
    assert all("StrictHostKeyChecking=yes" in line for line in commands)
    assert sum("-l ann -- 10.0.0.2" in line for line in commands) == 7
    assert "--nproc-per-node=2" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]
