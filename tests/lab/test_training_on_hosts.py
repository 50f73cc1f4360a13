"""`dragoman train --hosts` with real ssh and torchrun: start, stop, resume, refuse."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dragoman.reporting.cost import spent
from dragoman.reporting.reading import read_facts
from dragoman.telemetry.events import read_events
from dragoman.training.durable import step_number, verify
from lab.controller import (
    ENDLESS,
    OFTEN_SAVED,
    PROGRAM,
    RECIPE,
    Controller,
    nothing_left,
    stop,
    wait_until,
    workers,
)
from lab.laboratory import LabHost

pytestmark = pytest.mark.timeout(900)


def listening(host: LabHost) -> set[str]:
    """Addresses at which anything on a host takes TCP connections or UDP packets."""
    lines = host.run(["ss", "-Hltun"]).stdout.splitlines()
    return {line.split()[4].rpartition(":")[0] for line in lines}


def most_connections(host: LabHost) -> int:
    """How many connections sshd had at once, at most."""
    opened = most = 0
    for line in (host.home / "sshd.log").read_text().splitlines():
        opened += line.startswith("Accepted publickey")
        opened -= line.startswith("Disconnected from")
        most = max(most, opened)
    return most


def test_trains_on_uneven_hosts_and_stops(controller: Controller) -> None:
    hosts_file = controller.folder / "hosts.toml"
    entries = hosts_file.read_text().split("[[host]]")
    prices = ("", "price_per_hour = 3\n", "price_per_hour = 5\n")
    priced = (entry.rstrip() + "\n" + price for entry, price in zip(entries, prices, strict=True))
    hosts_file.write_text("[[host]]".join(priced))
    training = controller.train(*ENDLESS)
    wait_until(controller.trains)
    assert controller.status()["state"] == "running"
    for host in controller.lab.hosts:
        assert most_connections(host) == 1
        assert listening(host) <= {host.address, "127.0.0.1"}
    second = controller.run("train", str(controller.run_directory()), "--hosts", "hosts.toml")
    assert second.returncode == 1
    assert "is being trained by" in second.stderr
    stopped = controller.run("train", "--stop", str(controller.run_directory()))
    assert stopped.returncode == 0, stopped.stderr
    shown, complaint = training.communicate(timeout=200)
    assert training.returncode == 130, complaint
    assert "everything is saved" in complaint
    assert "3 ranks on cpu" in shown
    nothing_left(controller)
    assert controller.status()["state"] == "stopped"
    (checkpoint,) = (controller.run_directory() / "checkpoints").iterdir()
    verify(checkpoint)
    facts = read_facts(controller.run_directory())
    (started,), (finished,) = controller.events("run_started"), controller.events("run_finished")
    assert spent(facts) == pytest.approx(8 * (finished.time - started.time) / 3600, rel=0.01)


@pytest.mark.slow
def test_goes_on_where_it_was_stopped_and_ends_with_its_controller(controller: Controller) -> None:
    training = controller.train(*ENDLESS)
    wait_until(controller.trains)
    assert controller.run("train", "--stop", str(controller.run_directory())).returncode == 0
    training.communicate(timeout=200)
    (checkpoint,) = (controller.run_directory() / "checkpoints").iterdir()
    stopped_at = int(checkpoint.name.removeprefix("step-"))

    resumed = controller.start("train", str(controller.run_directory()))
    wait_until(lambda: len(controller.events("run_started")) == 2)
    assert controller.events("run_started")[1].payload["resumed_from_step"] == stopped_at
    wait_until(lambda: (controller.events("train_interval")[-1].step or 0) > stopped_at)
    starts = controller.events("run_started")
    assert [event.payload["hosts"][2] for event in starts] == ["beta", "beta"]
    controller.signal("KILL")
    resumed.communicate(timeout=200)
    nothing_left(controller)
    assert controller.status()["state"] == "gone"


@pytest.mark.slow
def test_a_damaged_checkpoint_on_a_host_is_passed_over(controller: Controller) -> None:
    alpha = controller.lab.host("alpha")

    def there() -> list[Path]:
        return sorted(alpha.home.glob(".dragoman/runs/*/checkpoints/step-*"))

    training = controller.train(*OFTEN_SAVED, "--set", "checkpoint.keep_last=100")
    wait_until(lambda: len(there()) >= 2)
    stop(controller, training)
    *_, before, newest = there()
    os.truncate(newest / "model.safetensors", 1000)
    shutil.rmtree(controller.run_directory() / "checkpoints")  # as if they had never come
    resumed = controller.start("train", str(controller.run_directory()))
    wait_until(lambda: len(controller.events("run_started")) == 2)
    assert controller.events("run_started")[1].payload["resumed_from_step"] == step_number(
        before.name
    )
    causes = [event.payload["cause"] for event in controller.events("alert")]
    assert any(cause.startswith("alpha: ") and newest.name in cause for cause in causes)
    stop(controller, resumed)


@pytest.mark.slow
def test_a_run_on_hosts_reaches_the_loss_of_a_run_on_one_machine(controller: Controller) -> None:
    training = controller.train("--set", "distributed.wire=fp32")
    _, complaint = training.communicate(timeout=400)
    assert training.returncode == 0, complaint
    on_hosts = controller.events("train_interval")[-1]
    run = controller.run_directory()
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "step-0000020",
        "step-0000040",
    ]
    assert {path.name for path in (run / "logs").iterdir()} == {"alpha", "beta"}
    assert controller.status()["state"] == "finished"
    here = controller.run("train", "small.toml", "--runs", "here", "--set", "distributed.wire=fp32")
    assert here.returncode == 0, here.stderr
    (events,) = controller.folder.glob("here/*/events/log.jsonl")
    alone = [event for event in read_events(events) if event.kind == "train_interval"][-1]
    assert on_hosts.step == alone.step == 40
    assert on_hosts.payload["train_loss"] == pytest.approx(alone.payload["train_loss"], rel=2e-2)
    assert on_hosts.payload["target_tokens"] == alone.payload["target_tokens"]


@pytest.mark.slow
def test_hosts_without_rsync_get_their_files_and_send_them_back(controller: Controller) -> None:
    if rsync := shutil.which("rsync"):
        for host in controller.lab.hosts:
            host.mount("--bind", "/dev/null", rsync)  # no program of this name, for a shell
    training = controller.train()
    _, complaint = training.communicate(timeout=400)
    assert training.returncode == 0, complaint
    checkpoints = sorted((controller.run_directory() / "checkpoints").iterdir())
    assert [path.name for path in checkpoints] == ["step-0000020", "step-0000040"]
    for path in checkpoints:
        verify(path)
    nothing_left(controller)


@pytest.mark.slow
def test_a_hung_rank_is_ended_when_the_user_gives_up(controller: Controller) -> None:
    training = controller.train(*ENDLESS)
    wait_until(controller.trains)
    beta = controller.lab.host("beta")
    beta.run(["kill", "-STOP", *map(str, workers(beta))])
    for _ in range(2):
        controller.signal("INT")
        with contextlib.suppress(subprocess.TimeoutExpired):
            training.wait(5)
    training.communicate(timeout=200)
    assert training.returncode == 130
    nothing_left(controller)


@pytest.mark.slow
def test_files_that_differ_are_refused(controller: Controller) -> None:
    assert controller.run("prepare", "small.toml").returncode == 0
    training = controller.train()
    training.communicate(timeout=400)
    assert training.returncode == 0
    run = str(controller.run_directory())
    beta = controller.lab.host("beta")
    (model,) = beta.home.glob(".dragoman/data/*/source.model")
    model.write_bytes(model.read_bytes()[:-1] + b"?")
    again = controller.run("train", "small.toml", "--hosts", "hosts.toml", "--fresh")
    assert again.returncode == 1
    assert "beta: same files: the " in again.stderr
    assert "the vocabulary differs" in again.stdout
    examined = controller.run("doctor", "--hosts", "hosts.toml", "--run", run)
    assert examined.returncode == 1
    assert "the vocabulary differs" in examined.stdout
    nothing_left(controller)


def test_a_dry_run_prints_every_command_and_runs_none(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(RECIPE)
    for name in ("train.en", "train.de"):
        (tmp_path / name).write_text("A man.\n")
    done = subprocess.run(
        [PROGRAM, "train", "small.toml", "--hosts", "10.0.0.1:2,ann@10.0.0.2:1", "--dry-run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    commands = [line for line in done.stdout.splitlines() if line.startswith(("ssh ", "rsync "))]
    assert len(commands) == 26
    assert all("StrictHostKeyChecking=yes" in line for line in commands)
    assert sum("-l ann --" in line for line in commands) == 13
    assert "--nproc-per-node=2" in done.stdout
    assert len(list(tmp_path.iterdir())) == 3
