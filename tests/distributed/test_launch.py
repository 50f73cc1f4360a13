"""Workers under torchrun: no open port, one-line errors, signals, and nothing left behind."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import launched
from dragoman.distributed.rendezvous import StoreAddress
from dragoman.distributed.store import serve
from processes import LOOPBACK, listening_addresses, processes_in, wait_until

Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a launcher in the test's folder; whatever is still there is killed after the test."""

    (tmp_path / "tmp").mkdir()

    def start_task(task: str) -> subprocess.Popen[str]:
        program = Path(launched.__file__)
        more = {"OMP_NUM_THREADS": "3", "PYTHONPATH": _python_path(program.parent)}
        return subprocess.Popen(
            [sys.executable, str(program), "launch", task],
            cwd=tmp_path,
            env=os.environ | more | {"TMPDIR": str(tmp_path / "tmp")},
            stderr=subprocess.PIPE,
            text=True,
        )

    yield start_task
    for pid in processes_in(tmp_path):
        os.kill(pid, signal.SIGKILL)


def _python_path(folder: Path) -> str:
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def _both_have(folder: Path, word: str) -> bool:
    return all((folder / f"{word}-{rank}").exists() for rank in (0, 1))


def _nobody_left(folder: Path, *, limit_s: float = 30.0) -> None:
    wait_until(lambda: not processes_in(folder), limit_s=limit_s)


def _torchrun(launcher: subprocess.Popen[str]) -> int:
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    assert len(children) == 1
    return int(children[0])


@pytest.mark.system
def test_no_process_listens_beyond_loopback_and_a_signal_lets_all_save(
    tmp_path: Path, start: Start
) -> None:
    launcher = start("meet")
    wait_until(lambda: _both_have(tmp_path, "working"))
    processes = processes_in(tmp_path)
    assert len(processes) == 4, "the caller, torchrun and two workers"
    addresses = set().union(*(listening_addresses(pid) for pid in processes))
    assert addresses == {LOOPBACK}
    assert (tmp_path / "met-0").read_text() == "3"
    launcher.send_signal(signal.SIGTERM)
    _, complaint = launcher.communicate(timeout=60)
    assert (launcher.returncode, complaint) == (0, "")
    assert _both_have(tmp_path, "saved")
    _nobody_left(tmp_path)
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.system
def test_no_command_shows_the_token_of_a_run(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user of a machine can read the commands of all processes."""
    token = secrets.token_hex(16)
    store = serve("127.0.0.1")  # it ends when nothing refers to it
    where = StoreAddress("127.0.0.1", store.port, token)
    monkeypatch.setenv("OF_SEVERAL_HOSTS", str(where))
    launcher = start("meet")
    wait_until(lambda: _both_have(tmp_path, "working"))
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes_in(tmp_path)]
    assert len(commands) == 4, "the caller, torchrun and two workers"
    assert not any(token.encode() in command for command in commands)
    launcher.send_signal(signal.SIGTERM)
    _, complaint = launcher.communicate(timeout=60)
    assert (launcher.returncode, complaint) == (0, "")
    assert _both_have(tmp_path, "saved")


@pytest.mark.slow
@pytest.mark.system
def test_hosts_meet_anew_when_one_comes_and_when_a_worker_is_lost(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = serve("127.0.0.1")
    where = StoreAddress("127.0.0.1", store.port, secrets.token_hex(16))
    monkeypatch.setenv("OF_SEVERAL_HOSTS", str(where))

    def forget() -> None:
        for path in [*tmp_path.glob("met-*"), *tmp_path.glob("working-*")]:
            path.unlink()

    (tmp_path / "logs").mkdir()
    monkeypatch.setenv("PLACE", "0 2 1")
    first = start("meet")
    wait_until(lambda: (tmp_path / "working-0").exists(), limit_s=120)
    forget()
    monkeypatch.setenv("PLACE", "1 2 2")
    second = start("meet")
    wait_until(lambda: _both_have(tmp_path, "working"), limit_s=120)
    assert (tmp_path / "saved-0").exists(), "the first host saved before they met"
    forget()
    (lost,) = [pid for pid in processes_in(tmp_path) if _rank(pid) == "1"]
    os.kill(lost, signal.SIGKILL)
    wait_until(lambda: _both_have(tmp_path, "working"), limit_s=120)
    for launcher in (first, second):
        launcher.send_signal(signal.SIGTERM)
    complaints = [launcher.communicate(timeout=60)[1] for launcher in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], complaints
    assert "a worker process was ended by SIGKILL" in complaints[1]
    assert "SIGKILL" not in complaints[0]
    _nobody_left(tmp_path)


def _rank(pid: int) -> str:
    """The rank of a worker; "" for other processes."""
    values = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((one[5:].decode() for one in values if one.startswith(b"RANK=")), "")


def test_the_first_error_is_one_line_and_ends_the_others(tmp_path: Path, start: Start) -> None:
    launcher = start("fail")
    _, complaint = launcher.communicate(timeout=120)
    assert complaint == "dragoman: recipe.toml: is not a number; write a number\n"
    assert launcher.returncode == 2
    assert "Traceback" not in complaint
    _nobody_left(tmp_path)


@pytest.mark.system  # a second SIGINT, and one before the work begins, are in the first tier
def test_ctrl_c_lets_every_worker_save(tmp_path: Path, start: Start) -> None:
    launcher = start("save_at_a_signal")
    wait_until(lambda: _both_have(tmp_path, "working"))
    launcher.send_signal(signal.SIGINT)
    _, complaint = launcher.communicate(timeout=60)
    assert (launcher.returncode, complaint) == (0, "")
    assert _both_have(tmp_path, "saved")
    _nobody_left(tmp_path)


@pytest.mark.parametrize("after_s", [0.5, pytest.param(4.0, marks=pytest.mark.system)])
def test_a_signal_before_the_work_begins_ends_all(
    tmp_path: Path, start: Start, after_s: float
) -> None:
    launcher = start("come_late")
    wait_until(lambda: bool(list((tmp_path / "logs").glob("*"))))
    time.sleep(after_s)
    launcher.send_signal(signal.SIGINT)
    _, complaint = launcher.communicate(timeout=60)
    assert launcher.returncode == 130
    assert complaint.count("\n") == 1
    assert complaint == (
        "dragoman: a signal stopped the run; its last checkpoint is kept; "
        "run the same command again to resume\n"
    )
    _nobody_left(tmp_path)


@pytest.mark.system
def test_a_second_signal_kills_workers_that_hang(tmp_path: Path, start: Start) -> None:
    launcher = start("hang")
    wait_until(lambda: _both_have(tmp_path, "working"))
    launcher.send_signal(signal.SIGINT)
    time.sleep(1)
    assert len(processes_in(tmp_path)) == 4
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 130
    _nobody_left(tmp_path)


@pytest.mark.system
def test_a_worker_that_stands_still_is_killed_and_named(tmp_path: Path, start: Start) -> None:
    launcher = start("stand_still")
    _, complaint = launcher.communicate(timeout=120)
    assert launcher.returncode == 1
    assert complaint.count("\n") == 1
    assert "rank 1 gave no sign of life for 8 s" in complaint
    assert _both_have(tmp_path, "working")
    _nobody_left(tmp_path)


def test_a_worker_that_was_killed_is_named_with_the_time(tmp_path: Path, start: Start) -> None:
    launcher = start("save_at_a_signal")
    wait_until(lambda: _both_have(tmp_path, "working"))
    (place,) = (tmp_path / "tmp").glob("*/pid-1")
    os.kill(int(place.read_text()), signal.SIGKILL)
    _, complaint = launcher.communicate(timeout=60)
    assert launcher.returncode == 1
    assert complaint.count("\n") == 1
    assert re.search(r"launch.log: rank 1 was killed by SIGKILL at \d\d:\d\d:\d\d UTC;", complaint)
    _nobody_left(tmp_path)


@pytest.mark.system
def test_workers_save_and_end_when_torchrun_is_killed(tmp_path: Path, start: Start) -> None:
    launcher = start("save_at_a_signal")
    wait_until(lambda: _both_have(tmp_path, "working"))
    os.kill(_torchrun(launcher), signal.SIGKILL)
    _, complaint = launcher.communicate(timeout=60)
    assert launcher.returncode == 1
    assert complaint.count("\n") == 1
    assert "launch.log" in complaint
    assert _both_have(tmp_path, "saved")
    _nobody_left(tmp_path)


@pytest.mark.parametrize(
    "task", ["save_at_a_signal", pytest.param("come_late", marks=pytest.mark.system)]
)
@pytest.mark.system
def test_all_end_when_the_caller_is_killed(tmp_path: Path, start: Start, task: str) -> None:
    launcher = start(task)
    if task == "save_at_a_signal":
        wait_until(lambda: _both_have(tmp_path, "working"))
    else:
        wait_until(lambda: len(processes_in(tmp_path)) > 1)
    launcher.kill()
    launcher.communicate()
    _nobody_left(tmp_path)
    assert _both_have(tmp_path, "saved") == (task == "save_at_a_signal")
