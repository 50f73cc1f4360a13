"""The arguments of ssh, and the meaning of its exit codes."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.base.errors import MachineError
from dragoman.cli import main
from dragoman.cluster import ssh
from dragoman.cluster.hosts import Host
from dragoman.cluster.ssh import BEGIN, failure, greets, run, skip_greeting, ssh_command
from processes import wait_until

HOST = Host(address="10.0.0.2", name="beta", gpus=1, user="ann", port=2222, login="beta.example")


def test_words_arrive_as_they_were_given() -> None:
    words = ["env", "A=b c", "python", "-c", "print('$HOME; `id`')", "*"]
    command = ssh_command(HOST, words)
    assert command[:2] == ["ssh", "-T"]
    assert command[-2] == "beta.example"
    assert command[-3] == "--"
    greeting_ends, run = f"echo {BEGIN} &&", "exec"
    assert shlex.split(command[-1]) == [*greeting_ends.split(), run, *words]


def test_keys_are_verified_and_nothing_is_asked() -> None:
    command = ssh_command(HOST, ["true"])
    options = {command[place + 1] for place, word in enumerate(command) if word == "-o"}
    assert {"BatchMode=yes", "StrictHostKeyChecking=yes", "ForwardAgent=no"} <= options
    assert "ControlPath=none" in options
    assert "ControlMaster=auto" not in options
    assert command[command.index("-l") + 1] == "ann"
    assert command[command.index("-p") + 1] == "2222"


def test_an_end_of_ssh_is_reported_with_its_remedy() -> None:
    refused = failure(HOST, 255, b"Host key verification failed.\r\n")
    assert str(refused).startswith("beta: ssh cannot log in: Host key verification failed.; ")
    assert "`ssh -p 2222 -l ann beta.example true`" in refused.remedy
    missing = failure(HOST, 127, b"sh: 1: .dragoman/venv/bin/python: not found")
    assert "dragoman setup" in missing.remedy
    bare = failure(HOST, 1, b"ModuleNotFoundError: No module named 'pydantic'\n")
    assert bare.problem == f"there is no pydantic for {HOST.python}"
    assert "dragoman setup" in bare.remedy
    ours = failure(HOST, 1, b"ModuleNotFoundError: No module named 'dragoman.oops'\n")
    assert "exit code 1: ModuleNotFoundError" in ours.problem
    lost = failure(HOST, 1, b"FileNotFoundError: No such file or directory: 'runs/x'")
    assert "runs/x" in lost.problem
    assert "exit code 3: no" in failure(HOST, 3, b"a\nno\n").problem


@pytest.fixture
def ssh_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts some lines of shell in the place of ssh."""

    def put(script: str) -> None:
        program = tmp_path / "ssh"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return put


def test_errors_of_a_host_are_read_at_their_end(ssh_that: Callable[[str], None]) -> None:
    ssh_that(f"yes x | head -c 3000000 >&2; echo 'it is {'very ' * 9999} bad' >&2; exit 3")
    with pytest.raises(MachineError, match="with exit code 3: it is very very") as caught:
        run(HOST, ["true"])
    assert len(str(caught.value)) < 2000


def test_a_host_that_does_not_end_is_not_waited_for(ssh_that: Callable[[str], None]) -> None:
    ssh_that(f"echo {BEGIN}; while sleep 0.01; do echo x; done")
    with pytest.raises(MachineError, match="beta: no answer within"):
        run(HOST, ["true"], timeout_s=0.5)


def test_an_ssh_that_keeps_standard_error_open_is_not_waited_for(
    ssh_that: Callable[[str], None],
) -> None:
    """As a shared connection does that outlives its first program, in OpenSSH before 8.5."""
    ssh_that(f"sleep 100 > /dev/null & echo {BEGIN}; echo one")
    assert run(HOST, ["true"], timeout_s=20) == "one\n"


def test_the_output_of_a_host_arrives_without_its_greeting(ssh_that: Callable[[str], None]) -> None:
    ssh_that(f"echo hello; echo mail >&2; echo {BEGIN}; echo one; echo two")
    assert run(HOST, ["true"]) == "one\ntwo\n"


def test_a_greeting_is_read_to_its_end() -> None:
    assert not skip_greeting(HOST, io.BytesIO(b"x\n" * 1000))
    assert skip_greeting(HOST, io.BytesIO(f"hello\nmail {BEGIN}\nours\n".encode()))
    assert greets(HOST)


@pytest.mark.parametrize("command", ["doctor", "setup"])
def test_a_machine_without_ssh_says_so(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([command, "--hosts", "10.0.0.1:1,10.0.0.2:1"]) == 1
    said = capsys.readouterr()
    assert "ssh does not start: No such file or directory" in said.out + said.err
    assert said.err.count("\n") == (command == "setup")
    assert "Python 3.11" not in said.err


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("", "the connection was lost: no answer for 15 s, or it was closed"),
        ("ssh: connect to host b port 22: No route to host", "the connection was lost: ssh: "),
        ("Permission denied (publickey).", "ssh cannot log in: Permission denied"),
    ],
)
def test_a_host_that_has_answered_is_lost_later_and_not_a_failed_login(
    said: str, problem: str, ssh_that: Callable[[str], None]
) -> None:
    ssh._answered.clear()
    fails = f"echo '{said}' >&2; exit 255"
    ssh_that(fails)
    with pytest.raises(MachineError, match="beta: ssh cannot log in"):
        run(HOST, ["true"])
    ssh_that(f"echo {BEGIN}; {fails}")  # while it runs something
    with pytest.raises(MachineError) as caught:
        run(HOST, ["true"])
    assert caught.value.problem.startswith(problem)
    ssh._answered.clear()
    ssh_that(f"echo {BEGIN}")
    run(HOST, ["true"])
    ssh_that(fails)  # after it has run something
    with pytest.raises(MachineError) as caught:
        run(HOST, ["true"])
    assert caught.value.problem.startswith(problem)
    assert HOST.name == caught.value.place


def test_hosts_that_are_started_at_once_share_one_folder_of_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two folders would hide a host's connection from the next program, which logged in again."""
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    hosts = [HOST, HOST.model_copy(update={"login": "gamma.example"})]
    for _ in range(20):
        ssh._sockets.cache_clear()
        barrier = threading.Barrier(2)
        sockets: list[Path] = []

        def begin(host: Host, barrier: threading.Barrier, found: list[Path]) -> None:
            barrier.wait()
            with ssh.start(host, ["true"], stderr=subprocess.DEVNULL) as process:
                assert isinstance(process.args, list)
                (path,) = (word for word in process.args if str(word).startswith("ControlPath="))
                found.append(Path(str(path).removeprefix("ControlPath=")))

        threads = [threading.Thread(target=begin, args=(host, barrier, sockets)) for host in hosts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        one, other = sockets
        assert one.parent == other.parent
        assert one != other


def test_what_was_started_ends_when_this_process_is_killed() -> None:
    """A copy would go on, here and on the host."""
    program = (
        "import subprocess, sys; from dragoman.cluster import ssh; "
        "from dragoman.cluster.hosts import Host\n"
        "host = Host(address='10.0.0.1', name='alpha', slots=1)\n"
        "with ssh.start_here(host, ['sleep', '600'], stderr=subprocess.DEVNULL) as started:\n"
        "    print(started.pid, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as controller:
        assert controller.stdout is not None
        started = int(controller.stdout.readline())
        assert Path(f"/proc/{started}/exe").exists()
        controller.kill()
    wait_until(lambda: not Path(f"/proc/{started}/exe").exists(), limit_s=10)
