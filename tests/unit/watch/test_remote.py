"""The log comes over as it grows. ssh itself is in tests/lab; here a program stands for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dragoman.base.errors import MachineError
from dragoman.cluster import ssh
from dragoman.cluster.hosts import Host, Hosts
from dragoman.telemetry.events import event_file
from dragoman.watch.remote import remote_run
from dragoman.watch.screen import screen
from processes import wait_until
from recorded_runs import Recorded

RUN = Path("demo-1")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host whose home is a folder here, and an ssh that starts commands there."""
    home, programs = tmp_path / "home", tmp_path / "bin"
    (home / ".dragoman" / "runs").mkdir(parents=True)
    programs.mkdir()
    ssh = programs / "ssh"
    ssh.write_text(
        '#!/bin/sh\n[ -e "$SSH_HOME/refuse" ] && { echo no route >&2; exit 255; }\n'
        'for word; do :; done\ncd "$SSH_HOME" && echo Welcome! && eval "$word"\n'
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("SSH_HOME", str(home))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr("dragoman.watch.remote._AGAIN_S", 0.1)
    return Host(address="10.0.0.1", name="alpha", gpus=1, python=sys.executable)


def _home() -> Path:
    return Path(os.environ["SSH_HOME"])


def test_a_run_on_a_host_is_watched_as_if_it_were_here(host: Host) -> None:
    there = Recorded(steps=2000, reason=None).write(_home() / ".dragoman" / "runs" / RUN.name)
    with remote_run(Hosts(host=(host,)), RUN, price=None) as run:
        wait_until(lambda: run.look() and run.now().facts.last_step == 2000, limit_s=60)
        lines = screen(run.now(), width=80, height=24)
        assert "2,000 of 8,000 steps" in "\n".join(line.plain for line in lines)
        longer = Recorded(steps=3000, reason=None).write(_home() / "longer")
        path = event_file(there / "events")
        whole = event_file(longer / "events").read_bytes()
        with path.open("ab") as file:
            file.write(whole[path.stat().st_size :])
        wait_until(lambda: run.look() and run.now().facts.last_step == 3000, limit_s=60)
        assert run.now().alerts == ()


def test_of_two_hosts_the_one_with_the_newer_log_counts(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 moved: its first host keeps an older log, which is not mixed with the newer one."""
    old = Recorded(steps=1000, reason=None).write(_home() / "old" / RUN.name)
    new = Recorded(steps=3000, reason=None).write(_home() / "new" / RUN.name)
    os.utime(event_file(old / "events"), (1, 1))
    hosts = tuple(
        host.model_copy(update={"name": name, "folder": name, "address": f"10.0.0.{number}"})
        for number, name in enumerate(("old", "new"), 1)
    )
    for run in (old, new):
        (run.parent / "runs").mkdir()
        run.rename(run.parent / "runs" / RUN.name)
    with remote_run(Hosts(host=hosts), RUN, price=None) as run_there:
        wait_until(lambda: run_there.look() and run_there.now().facts.last_step == 3000, limit_s=60)
        facts = run_there.now().facts
        assert len(facts.lives) == 1
        assert facts.problems == ()


def test_a_lost_connection_is_reported_and_opened_again(host: Host) -> None:
    there = Recorded(steps=2000, reason=None).write(_home() / ".dragoman" / "runs" / RUN.name)
    path = event_file(there / "events")
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:9]))
    with remote_run(Hosts(host=(host,)), RUN, price=None) as run:
        wait_until(lambda: run.look() and len(run.now().facts.intervals) > 0, limit_s=60)
        (_home() / "refuse").touch()
        processes = [one for one in ssh._started if one.poll() is None]
        for process in processes:
            process.kill()
        wait_until(lambda: any("trying again" in one for one in run.now().alerts), limit_s=60)
        with path.open("ab") as file:
            file.write(whole[path.stat().st_size :])
        (_home() / "refuse").unlink()
        wait_until(lambda: run.look() and run.now().facts.last_step == 2000, limit_s=60)
        assert len(run.now().facts.intervals) == 20


def test_if_no_host_answers_it_is_an_error(host: Host) -> None:
    (_home() / "refuse").touch()
    with (
        pytest.raises(MachineError, match="no route"),
        remote_run(Hosts(host=(host,)), RUN, price=None),
    ):
        pass
