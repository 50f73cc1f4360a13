"""Records come over as they grow. ssh itself is in tests/lab; here a program stands for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.base.errors import MachineError
from dragoman.cluster import ssh
from dragoman.cluster.hosts import Host, Hosts
from dragoman.reporting.cost import spent_text
from dragoman.watch import sender
from dragoman.watch.remote import Mirror, remote_run
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


def _is_like(one: Path, other: Path) -> Callable[[], bool]:
    return lambda: one.is_file() and one.read_bytes() == other.read_bytes()


def test_a_run_on_a_host_is_watched_as_if_it_were_here(host: Host) -> None:
    there = Recorded(steps=2000, reason=None).write(_home() / ".dragoman" / "runs" / RUN.name)
    with remote_run(Hosts(host=(host,)), RUN, price=None) as run:
        run.look()
        lines = screen(run.now(), width=80, height=24)
        assert "2,000 of 8,000 steps" in "\n".join(line.plain for line in lines)
        longer = Recorded(steps=3000, reason=None).write(_home() / "longer")
        for path in (there / "events").iterdir():
            whole = (longer / "events" / path.name).read_bytes()
            with path.open("ab") as file:
                file.write(whole[path.stat().st_size :])
        wait_until(lambda: run.look() and run.now().facts.last_step == 3000, limit_s=60)
        assert run.now().alerts == ()


def test_a_run_on_hosts_costs_the_price_of_its_own_hosts(host: Host) -> None:
    alone = Recorded(steps=2000, world_size=1, reason=None, recipe=())
    alone.write(_home() / ".dragoman" / "runs" / RUN.name)
    hosts = Hosts(host=(host.model_copy(update={"price_per_hour": 36.0}),), currency="EUR")
    with remote_run(hosts, RUN, price=None) as run:
        wait_until(lambda: run.look() and run.now().facts.last_step == 2000, limit_s=60)
        wall_s = run.now().facts.wall_s
        assert wall_s is not None
        assert spent_text(run.now().facts) == f"{wall_s / 100:.2f} EUR"


def test_a_run_may_begin_later_and_lie_at_a_path_of_its_own(host: Host, tmp_path: Path) -> None:
    with Mirror(tmp_path / "here", [host], Path("work/runs/demo-1")) as mirror:
        assert list(mirror.troubles()) == ["no host has a run demo-1 yet"]
        there = Recorded(steps=1000).write(_home() / "work" / "runs" / "demo-1")
        source = there / "events" / "rank-0001.jsonl"
        wait_until(_is_like(tmp_path / "here" / "events" / source.name, source), limit_s=60)
        wait_until(lambda: not list(mirror.troubles()), limit_s=60)
        source.write_bytes(b"a new one\n")
        wait_until(_is_like(tmp_path / "here" / "events" / source.name, source), limit_s=60)


def test_pipes_and_devices_on_a_host_are_passed_over(host: Host, tmp_path: Path) -> None:
    there = Recorded(steps=1000).write(_home() / "demo-1")
    os.mkfifo(there / "events" / "rank-0000a.jsonl")
    (there / "events" / "rank-0000b.jsonl").symlink_to("/dev/zero")
    source = there / "events" / "rank-0001.jsonl"
    with Mirror(tmp_path / "here", [host], RUN) as mirror:
        wait_until(_is_like(tmp_path / "here" / "events" / source.name, source), limit_s=60)
        wait_until(lambda: not list(mirror.troubles()), limit_s=60)
    names = {path.name for path in (tmp_path / "here" / "events").iterdir()}
    assert names == {"rank-0000.jsonl", "rank-0001.jsonl"}


def test_a_connection_that_ends_is_reported_and_made_again(host: Host, tmp_path: Path) -> None:
    there = Recorded(steps=1000).write(_home() / "demo-1")
    other = host.model_copy(update={"address": "10.0.0.2", "name": "beta"})
    source = there / "events" / "rank-0000.jsonl"
    with Mirror(tmp_path / "here", [host, other], RUN) as mirror:
        (_home() / "refuse").touch()
        for line in mirror._lines:
            assert line.process is not None
            line.process.kill()
        wait_until(lambda: "".join(mirror.troubles()).count("no route") == 2, limit_s=60)
        with source.open("a") as file:
            file.write("one more line\n")
        (_home() / "refuse").unlink()
        wait_until(_is_like(tmp_path / "here" / "events" / source.name, source), limit_s=60)
        wait_until(lambda: not list(mirror.troubles()), limit_s=60)


def test_hosts_that_cannot_be_reached_are_one_error(host: Host, tmp_path: Path) -> None:
    ssh._answered.clear()  # other tests had an answer of this host
    (_home() / "refuse").touch()
    with (
        pytest.raises(MachineError, match="alpha: ssh cannot log in: no route"),
        Mirror(tmp_path / "here", [host], RUN),
    ):
        pass


def test_a_machine_without_ssh_says_so(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(MachineError, match=r"alpha: ssh does not start.*install"),
        Mirror(tmp_path / "here", [host], RUN),
    ):
        pass


@pytest.mark.parametrize(
    "header",
    [
        {"file": "../../escaped", "at": 0, "anew": False, "bytes": 0},
        {"file": "events/../../x.jsonl", "at": 0, "anew": False, "bytes": 0},
        {"file": "events/rank-0000.jsonl", "at": -5, "anew": False, "bytes": 0},
        {"file": "recipe.toml", "bytes": -1},
        {"file": "events/rank-0000.jsonl", "at": 4 * 10**12, "anew": False, "bytes": 0},
        {"file": "events/rank-0000.jsonl", "at": 1, "anew": True, "bytes": 0},
        {"file": "recipe.toml", "at": 0, "anew": True, "bytes": 1 << 28},
        {"bytes": float("inf")},
        ["no", "header"],
        "[" * 65_000,
    ],
)
def test_malformed_headers_of_a_host_are_refused(
    header: object, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.watch.remote._FIRST_S", 20.0)
    (tmp_path / "header").write_text(header if isinstance(header, str) else json.dumps(header))
    liar = tmp_path / "liar"
    liar.write_text(f"#!/bin/sh\ncat '{tmp_path}/header'; echo; exec cat > /dev/null\n")
    liar.chmod(0o755)
    bad = host.model_copy(update={"python": str(liar)})
    with (
        pytest.raises(MachineError, match="its answer is not understood"),
        Mirror(tmp_path / "here", [bad], RUN),
    ):
        pass
    kept = [path for path in (tmp_path / "here").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in kept) == 0
    assert {path.parent for path in kept} <= {tmp_path / "here" / "events"}


def test_the_sender_ends_with_its_input(tmp_path: Path) -> None:
    command = [sys.executable, sender.__file__, str(tmp_path)]
    done = subprocess.run(command, input=b"{}\n", capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout) == {"found": False, "bytes": 0}
