"""Checkpoints from a host to here: what runs there is real, a program stands for ssh."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.base.errors import CheckpointError, MachineError
from dragoman.cluster.checkpoints import (
    CHECKPOINTS,
    CheckpointTransfer,
    RunOnHosts,
    newest_checkpoint,
)
from dragoman.cluster.files import send
from dragoman.cluster.hosts import Host, Hosts
from dragoman.cluster.join_host import forget_newer
from dragoman.cluster.members import Record, StopRequests
from dragoman.cluster.training import bring_back
from dragoman.distributed.launch import InterruptedRunError
from dragoman.telemetry.events import (
    Alert,
    Event,
    EventListener,
    EventWriter,
    RunFinished,
)
from dragoman.training.durable import (
    DIGESTS_FILE,
    publish,
    step_directories,
    step_name,
    verify,
)
from hosts_here import put_ssh
from processes import processes_in, wait_until

NAME = "step-0000180"
STAND_IN = f"""\
case $home in */10.0.0.9) echo "no route to host" >&2; exit 255;; esac
case $(ls)$* in *slow*--sender*) sh -c "$*" | "{sys.executable}" -c '
import os, time
left = 200_000
while left > 0:
    left -= os.write(1, os.read(0, left))
time.sleep(600)
'; exit;; esac"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a host. While a file `slow` lies there, the host sends a part of a checkpoint."""
    home = tmp_path / "10.0.0.1"
    (home / ".dragoman" / "runs" / "demo" / "logs").mkdir(parents=True)
    put_ssh(tmp_path, monkeypatch, before=STAND_IN)
    return home


@pytest.fixture
def remote(home: Path, tmp_path: Path) -> RunOnHosts:
    """A run without checkpoints here; the host has one."""
    host = Host(address="10.0.0.1", name="alpha", slots=1, python=sys.executable)
    publish(saved(home), lambda draft: write(draft / "model.safetensors", bytes(1 << 20)))
    (tmp_path / "demo" / CHECKPOINTS).mkdir(parents=True)
    return RunOnHosts(tmp_path / "demo", Hosts(host=(host,)))


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def saved(home: Path) -> Path:
    return home / ".dragoman" / "runs" / "demo" / CHECKPOINTS / NAME


def test_missing_files_are_fetched_at_the_end(home: Path, remote: RunOnHosts) -> None:
    write(saved(home).parents[1] / "logs" / "launch-0.log", b"all is well\n")
    publish(
        saved(home).parent / "rank-0000" / NAME, lambda draft: write(draft / "state.json", b"{}")
    )
    with StopRequests(), CheckpointTransfer(remote) as transfer:
        transfer.want(NAME)
        bring_back(transfer, print_line=lambda text: None)
    for name in (NAME, f"rank-0000/{NAME}"):
        verify(remote.path / CHECKPOINTS / name)
    assert (remote.path / "logs" / "alpha" / "launch-0.log").read_bytes() == b"all is well\n"


def other(home: Path, step: int) -> str:
    """The name of a further checkpoint on the host."""
    place = saved(home).with_name(step_name(step))
    publish(place, lambda draft: write(draft / "model.safetensors", bytes(1 << 20)))
    return place.name


def test_the_best_checkpoint_alone_can_be_brought(home: Path, remote: RunOnHosts) -> None:
    write(saved(home).parents[1] / "logs" / "launch-0.log", b"all is well\n")
    publish(
        saved(home).parent / "rank-0000" / NAME, lambda draft: write(draft / "state.json", b"{}")
    )
    other(home, 200)
    with StopRequests(), CheckpointTransfer(remote) as transfer:
        transfer.best = NAME
        bring_back(transfer, best_alone=True, print_line=lambda text: None)
    verify(remote.path / CHECKPOINTS / NAME)
    assert [path.name for path in (remote.path / CHECKPOINTS).iterdir()] == [NAME]
    assert (remote.path / "logs" / "alpha" / "launch-0.log").is_file()


@pytest.mark.parametrize("best", ["", "step-0000999"], ids=["not named", "not there"])
def test_everything_is_brought_if_the_best_checkpoint_is_unknown(
    best: str, home: Path, remote: RunOnHosts
) -> None:
    names = [NAME, other(home, 200)]
    with StopRequests(), CheckpointTransfer(remote) as transfer:
        transfer.best = best
        bring_back(transfer, best_alone=True, print_line=lambda text: None)
    assert sorted(path.name for path in (remote.path / CHECKPOINTS).iterdir()) == names


def test_the_copy_of_another_checkpoint_does_not_delay_the_best_one(
    home: Path, remote: RunOnHosts
) -> None:
    newest = other(home, 200)
    draft = remote.path / CHECKPOINTS / f".{newest}.part"
    (home / "slow").touch()
    with StopRequests(), CheckpointTransfer(remote) as transfer:
        transfer.want(newest)
        wait_until(lambda: any(draft.glob("*")), limit_s=60)
        (home / "slow").unlink()  # for the next copy; this one stands still for ten minutes
        transfer.best = NAME
        bring_back(transfer, best_alone=True, print_line=lambda text: None)
    assert [path.name for path in (remote.path / CHECKPOINTS).iterdir()] == [NAME]


def test_copies_pause_while_training_goes_on(
    home: Path, remote: RunOnHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.cluster.checkpoints._REST", 1e6)
    here = remote.path / CHECKPOINTS
    with CheckpointTransfer(remote) as transfer:
        transfer.want(NAME)
        wait_until((here / NAME).is_dir, limit_s=60)
        later = other(home, 200)
        transfer.want(later)
        time.sleep(2.0)
        assert not (here / later).exists()
        transfer.finish()
    verify(here / later)


def test_a_host_that_is_gone_keeps_no_other_from_being_asked(
    home: Path, remote: RunOnHosts
) -> None:
    gone = Host(address="10.0.0.9", name="omega", slots=1, python=sys.executable)
    both = replace(remote, hosts=Hosts(host=(gone, *remote.hosts.host)))
    # The state of one rank: only the first host writes the shared state.
    own = f"rank-0001/{NAME}"
    publish(saved(home).parent / own, lambda draft: write(draft / "state.json", b"{}"))
    write(saved(home).parents[1] / "logs" / "launch-0.log", b"all is well\n")
    with pytest.raises(MachineError, match=r"^omega: .*no route to host"):
        both.collect(trained=True)
    verify(both.path / CHECKPOINTS / own)
    assert (both.path / "logs" / "alpha" / "launch-0.log").is_file()


@pytest.mark.parametrize("presses", [1, 3])
@pytest.mark.parametrize("wanted", [True, False], ids=["while training goes on", "in the end"])
def test_a_signal_ends_the_bringing_and_says_where_the_rest_is(
    wanted: bool, presses: int, home: Path, remote: RunOnHosts
) -> None:
    (home / "slow").touch()
    arrived = remote.path / CHECKPOINTS / f".{NAME}.part"

    def press() -> None:
        try:
            wait_until(lambda: any(arrived.glob("*")), limit_s=60)
            time.sleep(0.2)
        finally:
            for _ in range(presses):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.05)

    with StopRequests(), CheckpointTransfer(remote) as transfer:
        if wanted:
            transfer.want(NAME)
        user = threading.Thread(target=press)
        user.start()
        with pytest.raises(InterruptedRunError) as caught:
            bring_back(transfer, print_line=lambda text: None)
        user.join()
    what = NAME if wanted else "the rest"
    where = f"is still on alpha, in .dragoman/runs/demo/{CHECKPOINTS}"
    assert f"{what} {where}; dragoman train {remote.path} fetches it" in str(caught.value)
    assert not (remote.path / CHECKPOINTS / NAME).exists()
    (home / "slow").unlink()
    remote.collect()
    assert [path.name for path in (remote.path / CHECKPOINTS).iterdir()] == [NAME]
    wait_until(lambda: processes_in(home) + processes_in(home / ".dragoman") == [], limit_s=20)


def test_the_newest_checkpoint_is_so_by_number(home: Path, remote: RunOnHosts) -> None:
    here, there = remote.path / CHECKPOINTS, saved(home).parent
    steps = [180, 9_999_999, 10_000_000, 10_000_020]
    for step in steps:
        publish(here / step_name(step), lambda draft: write(draft / "state.json", b"{}"))
    names = [step_name(step) for step in steps]
    assert [path.name for path in step_directories(here)] == names
    assert newest_checkpoint(remote.path) == "step-10000020"
    remote.spread(remote.hosts.host[0])
    assert [path.name for path in step_directories(there)] == names
    # Checkpoints that the first host no longer keeps are removed here, too, but no newer one.
    for gone in (9_999_999, 10_000_020):
        (there / step_name(gone)).rename(home / step_name(gone))
    remote.collect(trained=True)
    left = ["step-0000180", "step-10000000", "step-10000020"]
    assert [path.name for path in step_directories(here)] == left
    forget_newer(here, "step-10000000")
    assert [path.name for path in step_directories(here)] == left[:2]
    forget_newer(here, "")
    assert step_directories(here) == []


def test_a_checkpoint_that_a_new_first_host_never_had_is_kept(
    home: Path, remote: RunOnHosts
) -> None:
    """A resume gave it the newest one alone; then the first host, which kept the best, died."""
    here = remote.path / CHECKPOINTS
    best = step_name(100)
    publish(here / best, lambda draft: write(draft / "state.json", b"{}"))
    remote.collect()
    assert [path.name for path in step_directories(here)] == [best, NAME]
    # Once it has all of them, what it keeps is what the run keeps.
    remote.spread(remote.hosts.host[0])
    (saved(home).parent / best).rename(home / best)
    remote.collect(trained=True)
    assert [path.name for path in step_directories(here)] == [NAME]


def test_a_login_shell_that_runs_something_else_is_named(home: Path, remote: RunOnHosts) -> None:
    (home.parent / "bin" / "ssh").write_text("#!/bin/sh\necho this is for backups only\n")
    host = remote.hosts.host[0]
    for act in (lambda: send(host, "data/2", {"a": b"one"}), lambda: remote.on_host(host)):
        with pytest.raises(MachineError, match=r"alpha: its login shell does not run .*\.bashrc"):
            act()


def damage(checkpoint: Path, how: str) -> None:
    weights = checkpoint / "model.safetensors"
    match how:
        case "altered":
            write(weights, b"x" + weights.read_bytes()[1:])
        case "cut short":
            os.truncate(weights, 1000)
        case "lost":
            weights.unlink()
        case "torn digests":
            os.truncate(checkpoint / DIGESTS_FILE, 5)


DAMAGES = ["altered", "cut short", "lost", "torn digests"]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_on_a_host_leaves_the_one_before(
    how: str, home: Path, remote: RunOnHosts
) -> None:
    """The user's machine got none of them before it was cut off."""
    newest = other(home, 200)
    publish(
        saved(home).parent / "rank-0000" / NAME, lambda draft: write(draft / "state.json", b"{}")
    )
    damage(saved(home).with_name(newest), how)
    with pytest.raises(CheckpointError) as caught:
        remote.collect()
    assert caught.value.place.startswith(f"alpha: .dragoman/runs/demo/{CHECKPOINTS}/{newest}/")
    assert newest_checkpoint(remote.path) == NAME
    assert (remote.path / CHECKPOINTS / "rank-0000" / NAME).is_dir()
    assert [path.name for path in step_directories(remote.path / CHECKPOINTS)] == [NAME]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_on_a_host_is_replaced_by_the_one_here(
    how: str, home: Path, remote: RunOnHosts
) -> None:
    """Otherwise its ranks would have to use the one before, which other hosts do not have."""
    host = remote.hosts.host[0]
    remote.collect()
    damage(saved(home), how)
    remote.spread(host)
    verify(saved(home))


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_here_is_not_given_to_a_host(
    how: str, home: Path, remote: RunOnHosts
) -> None:
    newest = other(home, 200)
    remote.collect()
    damage(remote.path / CHECKPOINTS / NAME, how)
    remote.spread(remote.hosts.host[0])
    for name in (NAME, newest):
        verify(saved(home).with_name(name))


@pytest.mark.parametrize("how", DAMAGES)
def test_if_the_best_checkpoint_is_damaged_the_others_are_brought(
    how: str, home: Path, remote: RunOnHosts
) -> None:
    newest = other(home, 200)
    damage(saved(home), how)
    printed: list[str] = []
    with StopRequests(), CheckpointTransfer(remote) as transfer:
        transfer.best = NAME
        bring_back(transfer, best_alone=True, print_line=printed.append)
    assert [path.name for path in (remote.path / CHECKPOINTS).iterdir()] == [newest]
    assert f"{CHECKPOINTS}/{NAME}/" in printed[-1]


@pytest.mark.parametrize(
    ("by_bleu", "by_loss", "best"),
    [(180, 90, NAME), (None, 180, NAME), (0, 180, "step-0000000"), (None, None, "")],
)
def test_the_first_host_names_its_best_checkpoint(
    by_bleu: int | None, by_loss: int | None, best: str, home: Path, remote: RunOnHosts
) -> None:
    transfer = CheckpointTransfer(remote)
    record = Record(remote.path / "events", [], transfer)
    finished = RunFinished(
        reason="max_steps",
        best_dev_loss=None if by_loss is None else 2.0,
        best_dev_loss_step=by_loss,
        best_bleu=None if by_bleu is None else 20.0,
        best_bleu_step=by_bleu,
        wall_s=1.0,
    )
    with EventWriter(home / "events") as events:
        events.write(finished, step=200)
    record.append(events.path.read_text())
    assert transfer.best == best


def test_an_event_that_lacks_something_is_kept_and_not_shown(
    home: Path, remote: RunOnHosts
) -> None:
    seen: list[Event] = []

    class Listener(EventListener):
        def __call__(self, event: Event) -> None:
            seen.append(event)

    record = Record(remote.path / "events", [Listener()], CheckpointTransfer(remote))
    with EventWriter(home / "events") as events:
        events.write(Alert(severity="error", cause="smoke", remedy="water"))
    whole_line = events.path.read_text()
    broken = [
        whole_line.replace('"cause": "smoke"', '"cause": [7]'),
        whole_line.replace(', "remedy": "water"', ""),
        whole_line.replace('"kind": "alert"', '"kind": "run_started"'),
        "[]\n",
        "\x00\n",
    ]
    assert whole_line not in broken
    record.append("".join(broken))
    assert seen == []
    record.append(whole_line)
    assert [event.payload["cause"] for event in seen] == ["smoke"]
    assert (remote.path / "events" / "log.jsonl").read_text() == "".join([*broken, whole_line])
