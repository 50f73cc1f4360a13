"""Checkpoints from a host to here: the agent is the real one, a program stands for ssh."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.cluster.agent.work import forget_newer
from dragoman.cluster.checkpoints import CHECKPOINTS, Courier, RunOnHosts, newest_checkpoint
from dragoman.cluster.copying import Parcel, code_digest, code_parcel, read_code
from dragoman.cluster.hosts import Host, Hosts
from dragoman.cluster.training import bring_back
from dragoman.cluster.watch import stop_requests
from dragoman.errors import MachineError
from dragoman.launch import InterruptedRunError
from dragoman.train.durable import publish, verify
from dragoman.train.steps import step_directories, step_name
from processes import processes_in, wait_until

NAME = "step-0000180"
SSH = """\
#!{python}
import os, subprocess, sys, time
GONE = "10.0.0.9"
os.chdir({home!r})
if any(GONE in word for word in sys.argv):
    sys.exit("no route to host")
words = ["sh", "-c", "test ! -f greeting || cat greeting; " + sys.argv[-1]]
if not os.path.exists("slow") or " send " not in sys.argv[-1]:
    os.execvp("sh", words)
with subprocess.Popen(words, stdout=subprocess.PIPE) as there:
    sys.stdout.buffer.write(there.stdout.read(200_000))
    sys.stdout.buffer.flush()
    time.sleep(600)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of a host; where a file `slow` lies there, all that it sends comes to a standstill."""
    home, programs = tmp_path / "home", tmp_path / "bin"
    for folder in (home / ".dragoman" / "runs" / "demo" / "logs", programs):
        folder.mkdir(parents=True)
    (programs / "ssh").write_text(SSH.format(python=sys.executable, home=str(home)))
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return home


@pytest.fixture
def remote(home: Path, tmp_path: Path) -> RunOnHosts:
    """A run without checkpoints here; the host has one."""
    host = Host(address="10.0.0.1", name="alpha", slots=1, python=sys.executable)
    code = read_code()
    code_parcel(code).send(host)
    publish(saved(home), lambda draft: write(draft / "model.safetensors", bytes(1 << 20)))
    (tmp_path / "demo" / CHECKPOINTS).mkdir(parents=True)
    return RunOnHosts(tmp_path / "demo", Hosts(host=(host,)), code_digest(code))


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def saved(home: Path) -> Path:
    return home / ".dragoman" / "runs" / "demo" / CHECKPOINTS / NAME


def test_what_is_missing_in_the_end_is_brought(home: Path, remote: RunOnHosts) -> None:
    write(saved(home).parents[1] / "logs" / "launch-0.log", b"all is well\n")
    publish(
        saved(home).parent / "rank-0000" / NAME, lambda draft: write(draft / "state.json", b"{}")
    )
    with stop_requests() as requests, Courier(remote) as courier:
        courier.want(NAME)
        bring_back(courier, requests, tell=lambda text: None)
    for name in (NAME, f"rank-0000/{NAME}"):
        verify(remote.path / CHECKPOINTS / name)
    assert (remote.path / "logs" / "alpha" / "launch-0.log").read_bytes() == b"all is well\n"


def test_a_full_disk_here_is_not_called_the_host_s(home: Path, remote: RunOnHosts) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    told: list[str] = []
    try:
        with stop_requests() as requests, Courier(remote) as courier:
            courier.want(NAME)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
            bring_back(courier, requests, tell=told.append)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert any("not everything came back: " in text for text in told)
    assert any(f"{remote.path / CHECKPOINTS}: the disk is full" in text for text in told)
    assert list((remote.path / CHECKPOINTS).iterdir()) == []


def test_a_host_that_is_gone_keeps_no_other_from_being_asked(
    home: Path, remote: RunOnHosts
) -> None:
    gone = Host(address="10.0.0.9", name="omega", slots=1, python=sys.executable)
    both = replace(remote, hosts=Hosts(host=(gone, *remote.hosts.host)))
    # What ranks have of their own: the first host alone writes what they share.
    own = f"rank-0001/{NAME}"
    publish(saved(home).parent / own, lambda draft: write(draft / "state.json", b"{}"))
    write(saved(home).parents[1] / "logs" / "launch-0.log", b"all is well\n")
    with pytest.raises(MachineError, match=r"^omega: .*no route to host"):
        both.collect(trained=True)
    verify(both.path / CHECKPOINTS / own)
    assert (both.path / "logs" / "alpha" / "launch-0.log").is_file()


@pytest.mark.parametrize("told", [True, False], ids=["while training goes on", "in the end"])
def test_a_signal_ends_the_bringing_and_says_where_the_rest_is(
    told: bool, home: Path, remote: RunOnHosts
) -> None:
    (home / "slow").touch()
    arrived = remote.path / CHECKPOINTS / f".{NAME}.draft" / "model.safetensors"

    def press() -> None:
        try:
            wait_until(arrived.is_file, limit_s=60)
            time.sleep(0.2)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    with stop_requests() as requests, Courier(remote) as courier:
        if told:
            courier.want(NAME)
        user = threading.Thread(target=press)
        user.start()
        with pytest.raises(InterruptedRunError) as caught:
            bring_back(courier, requests, tell=lambda text: None)
        user.join()
    what = NAME if told else "what has not come"
    where = f"is still on alpha, in .dragoman/runs/demo/{CHECKPOINTS}"
    assert f"{what} {where}; dragoman resume {remote.path} brings it" in str(caught.value)
    assert list((remote.path / CHECKPOINTS).iterdir()) == []
    verify(saved(home))
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
    # What the first host does not keep any more goes here, too, but not what is newer than all.
    for gone in (9_999_999, 10_000_020):
        (there / step_name(gone)).rename(home / step_name(gone))
    remote.collect(trained=True)
    left = ["step-0000180", "step-10000000", "step-10000020"]
    assert [path.name for path in step_directories(here)] == left
    forget_newer(here, "step-10000000")
    assert [path.name for path in step_directories(here)] == left[:2]
    forget_newer(here, "")
    assert step_directories(here) == []


def test_a_host_that_has_become_the_first_says_nothing_of_what_it_never_had(
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


@pytest.mark.parametrize("greeting", ["Welcome to alpha!\nwant\nhave\n[]\n", "no line's end"])
def test_a_login_shell_that_greets_is_passed_over(
    greeting: str, home: Path, remote: RunOnHosts
) -> None:
    (home / "greeting").write_text(greeting)
    host = remote.hosts.host[0]
    assert remote.on_host(host) == [NAME]
    remote.fetch(host, NAME)
    verify(remote.path / CHECKPOINTS / NAME)
    parcel = Parcel("data/1", {"a": b"one"})
    assert parcel.send(host)
    assert (home / ".dragoman" / "data" / "1" / "a").read_bytes() == b"one"
    assert not parcel.send(host)


def test_a_login_shell_that_runs_something_else_is_named(home: Path, remote: RunOnHosts) -> None:
    (home / "greeting").write_text("this is for backups only\n")
    ssh = home.parent / "bin" / "ssh"
    ssh.write_text(f"#!/bin/sh\ncat {home}/greeting\n")
    host = remote.hosts.host[0]
    for act in (Parcel("data/2", {"a": b"one"}).send, remote.on_host):
        with pytest.raises(MachineError, match=r"alpha: its login shell does not run .*\.bashrc"):
            act(host)
