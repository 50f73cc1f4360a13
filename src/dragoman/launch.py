"""Starts the worker processes of this machine through torchrun, and ends them.

Rank 0 writes what a person should see to stdout; all else, torchrun's own reports included, goes
to `logs/launch.log` of the run. A worker that fails leaves its one-line error in a file, which is
raised here. When the starting process dies, torchrun and the workers end too.

`python -m dragoman.launch ...` is torchrun with this last property.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from dragoman.distributed.world import RENDEZVOUS_VARIABLE
from dragoman.errors import DragomanError, TrainingError

_PR_SET_PDEATHSIG: Final = 1
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class WorkerError(DragomanError):
    """A worker's own one-line error, raised again in the process that started it."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # that of the class it was raised as


def launch_workers(arguments: Sequence[str], *, ranks: int, run_directory: Path) -> None:
    """Run `python -m dragoman.worker ARGUMENTS` in `ranks` processes until all have ended.

    SIGTERM and SIGINT are passed on to the workers, which save and exit.
    Raises WorkerError with the error of the first worker that failed, TrainingError where a
    worker died without a word.
    """
    log_path = run_directory / "logs" / "launch.log"
    log_path.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dragoman-") as meeting, log_path.open("ab") as log:
        torchrun = subprocess.Popen(
            _torchrun_command(arguments, ranks, Path(meeting)),
            env=_environment(ranks, Path(meeting)),
            stderr=log,
            start_new_session=True,  # the terminal's Ctrl-C must not reach the workers twice
        )
        with _passing_on_signals(Path(meeting)):
            exit_code = torchrun.wait()
        if exit_code:
            raise _failure(Path(meeting)) or TrainingError(
                "a worker process died without a word",
                place=log_path,
                remedy="read its end; exit code -9 there means killed, often for lack of memory",
            )


def introduce_worker() -> None:
    """Called first by a worker: end with torchrun, and say which process to send signals to."""
    end_with_parent()
    meeting = os.environ.get(RENDEZVOUS_VARIABLE)
    if meeting:
        rank = os.environ["RANK"]
        Path(meeting).with_name(f"pid-{rank}").write_text(str(os.getpid()), encoding="utf-8")


def report_failure(error: DragomanError) -> None:
    """Leave a worker's error where launch_workers finds it."""
    meeting = os.environ.get(RENDEZVOUS_VARIABLE)
    if meeting:
        record = {"message": str(error), "exit_code": error.exit_code}
        path = Path(meeting).with_name(f"failure-{os.environ['RANK']}.json")
        path.write_text(json.dumps(record), encoding="utf-8")


def end_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent process dies (Linux; elsewhere nothing)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _torchrun_command(arguments: Sequence[str], ranks: int, meeting: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "dragoman.launch"),
        *("--nnodes=1", f"--nproc-per-node={ranks}", "--max-restarts=0"),
        *("--rdzv-backend=c10d", "--rdzv-conf=store_type=file"),
        *(f"--rdzv-endpoint={meeting / 'agents'}", "--rdzv-id=local", "--local-addr=127.0.0.1"),
        *("-m", "dragoman.worker"),
        *arguments,
    ]


def _environment(ranks: int, meeting: Path) -> dict[str, str]:
    threads = max(1, (os.cpu_count() or 1) // ranks)
    return {
        "OMP_NUM_THREADS": str(threads),
        **os.environ,
        RENDEZVOUS_VARIABLE: str(meeting / "workers"),
        # Otherwise torchrun opens a store for the workers on every interface of the machine.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


@contextlib.contextmanager
def _passing_on_signals(meeting: Path) -> Iterator[None]:
    """Inside the block SIGTERM and SIGINT go to the workers as SIGTERM.

    They are sent to each worker and not to torchrun, which would kill after 30 seconds.
    """

    def pass_on(_number: int, _frame: FrameType | None) -> None:
        for path in meeting.glob("pid-*"):
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(path.read_text(encoding="utf-8")), signal.SIGTERM)

    before = {number: signal.signal(number, pass_on) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _failure(meeting: Path) -> WorkerError | None:
    """The error that was reported first; the others are often only its consequences."""
    reports = sorted(meeting.glob("failure-*.json"), key=lambda path: path.stat().st_mtime_ns)
    if not reports:
        return None
    record = json.loads(reports[0].read_text(encoding="utf-8"))
    return WorkerError(record["message"], record["exit_code"])


if __name__ == "__main__":
    end_with_parent()
    from torch.distributed.run import main

    main()
