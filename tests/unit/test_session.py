"""One process trains a run at a time; others see how it stands and can end it."""

from __future__ import annotations

import io
import json
import os
import pty
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import pytest
from rich.console import Console

from dragoman.base.errors import CheckpointError, MachineError, TrainingError
from dragoman.base.files import try_lock
from dragoman.cli import main
from dragoman.telemetry.session import (
    last_ranks,
    read_session,
    stop_session,
    training_session,
)
from dragoman.watch.status import Status, print_status, read_status
from processes import wait_until

HOLDER = """
import signal, sys, time
from pathlib import Path
from dragoman.distributed.launch import InterruptedRunError
from dragoman.telemetry.session import training_session
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
with training_session(Path(sys.argv[1])):
    while not stopped:
        time.sleep(0.05)
    raise InterruptedRunError("stopped; everything is saved")
"""


def test_states_are_words_in_colour_at_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").touch()
    with training_session(tmp_path):
        screen, terminal = pty.openpty()
        command = [sys.executable, "-m", "dragoman", "report", "--status", str(tmp_path)]
        subprocess.run(command, stdout=terminal, check=True, env=os.environ | {"TERM": "xterm"})
        os.close(terminal)
        shown = os.read(screen, 1 << 16).decode()
        os.close(screen)
    assert "\x1b[32mrunning" in shown
    assert "[green]" not in shown


def test_a_folder_without_runs_has_no_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--status", "--runs", str(tmp_path / "nothere")]) == 1
    assert f"{tmp_path}/nothere: there is no run here yet; start one" in capsys.readouterr().err


def test_a_draft_that_a_kill_has_left_and_an_export_are_no_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("demo-1", ".demo-2.4711.tmp", "opus"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.toml").touch()
    (tmp_path / "opus" / "bundle.json").touch()
    assert main(["report", "--status", "--json", "--runs", str(tmp_path)]) == 0
    assert [one["run"] for one in json.loads(capsys.readouterr().out)] == [str(tmp_path / "demo-1")]


def test_the_end_of_a_session_is_recorded(tmp_path: Path) -> None:
    assert read_session(tmp_path) is None
    assert read_status(tmp_path).state == "not started"
    with training_session(tmp_path):
        assert read_status(tmp_path).state == "running"
    assert read_status(tmp_path).state == "finished"
    with pytest.raises(TrainingError), training_session(tmp_path):
        raise TrainingError("no")
    assert (read_status(tmp_path).state, read_status(tmp_path).problem) == ("failed", "no")


def test_the_ranks_of_another_machine_are_not_kept(tmp_path: Path) -> None:
    with training_session(tmp_path, ranks=4):
        assert last_ranks(tmp_path) == 4
    record = tmp_path / "session.json"
    record.write_text(record.read_text().replace(socket.gethostname(), "elsewhere"))
    assert last_ranks(tmp_path) is None


@pytest.mark.parametrize("state", ["running", "gone"])
def test_the_states_of_runs_fit_80_columns(state: str) -> None:
    one = Status(
        run="runs/wmt16-ende-reference-20261128T230416-1a2b3c4d",
        state=state,
        step=123_456,
        max_steps=300_000,
        world_size=8,
        train_loss=2.10342,
        tokens_per_s=123_456.7,
        last_event_time=time.time() - 5,
        finish_time=time.time() + 3600,
        problem="a word that is cut is a bug; " * 4,
    )
    file = io.StringIO()
    print_status([one], Console(file=file, width=80))
    lines = file.getvalue().splitlines()
    assert len(lines) > 4, "the problem is broken, and nothing else"
    assert max(map(len, lines)) <= 80
    assert one.run in lines[0], "it can be copied"


def test_a_bug_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(LookupError), training_session(tmp_path):
        raise LookupError("of a bug")
    status = read_status(tmp_path)
    assert (status.state, status.problem) == ("failed", "LookupError: of a bug")
    with pytest.raises(KeyboardInterrupt), training_session(tmp_path):
        raise KeyboardInterrupt
    assert read_status(tmp_path).state == "stopped"


def test_a_second_trainer_is_refused_and_a_first_can_be_stopped(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stderr=subprocess.DEVNULL)
    wait_until(lambda: read_session(tmp_path) is not None)
    with pytest.raises(CheckpointError, match=f"process {holder.pid}"), training_session(tmp_path):
        pass
    assert stop_session(tmp_path, wait_s=20).state == "stopped"
    holder.wait(20)
    with pytest.raises(CheckpointError, match="is not being trained"):
        stop_session(tmp_path, wait_s=1)


def test_a_look_at_a_run_does_not_keep_it_from_being_trained(tmp_path: Path) -> None:
    """Who looks holds the lock for a moment, with others: here for a long one."""
    with training_session(tmp_path):
        pass
    look = (tmp_path / "session.lock").open("rb")
    assert try_lock(look, shared=True)
    Timer(0.3, look.close).start()
    with training_session(tmp_path):
        assert read_status(tmp_path).state == "running"


def test_a_process_that_only_has_the_trainer_s_number_is_let_alone(tmp_path: Path) -> None:
    """As that of a training in a container has, seen from outside or from another container."""
    with (
        subprocess.Popen(["sleep", "60"]) as other,
        subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path]) as holder,
    ):
        wait_until(lambda: read_session(tmp_path) is not None)
        record = tmp_path / "session.json"
        own = record.read_text()
        for pid in (other.pid, 2**22 + 1):
            record.write_text(own.replace(str(holder.pid), str(pid)))
            with pytest.raises(MachineError, match=f"process {pid} .* cannot be seen from here"):
                stop_session(tmp_path, wait_s=1)
        assert other.poll() is None
        other.kill()
        record.write_text(own)
        assert stop_session(tmp_path, wait_s=20).state == "stopped"


def test_a_killed_trainer_is_gone(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path])
    wait_until(lambda: read_session(tmp_path) is not None)
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert read_status(tmp_path).state == "gone"
    with training_session(tmp_path):
        pass


def test_nobody_knows_how_a_copied_run_of_another_machine_ended(tmp_path: Path) -> None:
    record = {"pid": 1, "machine": "another-machine", "started": 0.0}
    (tmp_path / "session.json").write_text(json.dumps(record))
    assert read_status(tmp_path).state == "unknown"


@pytest.fixture
def readable() -> Iterator[Path]:
    """A run directory that this process may read and not write to, even if it is root's."""
    with tempfile.TemporaryDirectory() as directory:
        run, is_root = Path(directory), os.geteuid() == 0
        with training_session(run):
            (run / "session.lock").chmod(0o444)
            run.chmod(0o555)
            if is_root:
                os.seteuid(65534)
            yield run
            if is_root:
                os.seteuid(0)
            run.chmod(0o755)


def test_a_run_that_may_only_be_read_has_a_status(readable: Path) -> None:
    assert read_status(readable).state == "running"


def test_a_run_that_may_only_be_read_is_not_trained(readable: Path) -> None:
    with pytest.raises(MachineError, match="cannot be written to"), training_session(readable):
        pass


def test_a_full_disk_is_reported_and_does_not_hide_how_a_training_failed(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fail_on_a_full_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        raise TrainingError("no loss", place="step 3", remedy="look")

    try:
        with pytest.raises(TrainingError, match="no loss"), training_session(tmp_path):
            fail_on_a_full_disk()
        with pytest.raises(MachineError, match="disk is full"), training_session(tmp_path):
            pytest.fail("was trained")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read_status(tmp_path).state == "gone"
    assert {path.name for path in tmp_path.iterdir()} == {"session.lock", "session.json"}
