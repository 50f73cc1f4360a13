"""Starts the worker processes of this machine through torchrun, and ends them.

If several machines train together, each of them starts its own share of the ranks.

Workers print nothing: the events of the run are their record. Their stderr and torchrun's go to
`launch_log` of the run. A worker that fails writes its one-line error into a file, and
that error is raised here. When the starting process dies, torchrun and the workers end too.

`python -m dragoman.distributed.launch ...` is torchrun with this last property.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal, NamedTuple

from dragoman.base import units
from dragoman.base.errors import (
    CheckpointError,
    ConfigError,
    CorpusError,
    DivergenceError,
    DragomanError,
    MachineError,
    TrainingError,
)
from dragoman.base.files import write_whole
from dragoman.base.interrupts import StopHandler
from dragoman.base.process import descendants
from dragoman.base.threads import thread_environment
from dragoman.distributed.pulse import NAME, PULSE_EVERY_S, Pulses, beat
from dragoman.distributed.rendezvous import RENDEZVOUS_VARIABLE, STORE_VARIABLE, StoreAddress
from dragoman.telemetry import host
from dragoman.telemetry.host import PRICE_VARIABLE

_PARENT_VARIABLE: Final = "DRAGOMAN_PARENT"
"""The process id of the parent of this process, if it is one of ours."""
NO_GPUS: Final = {"CUDA_VISIBLE_DEVICES": ""}
"""The environment of processes that compute on the processor even if there are GPUs."""
_TOKEN_VARIABLE: Final = "PET_RDZV_ID"  # noqa: S105  # its name, not the token
"""torchrun's `--rdzv-id`: all users of a machine can read its commands, not its environments."""
HOSTS_BACKEND: Final = "dragoman"
"""The name of the rendezvous of `elastic` for torchrun."""
Weight = Literal["own", "hung", "signal", "other"]
"""How likely the loss of a worker is the cause of other losses, the likeliest first."""
_PID: Final = "pid-"
_STOPPED: Final = "stopped"
_LOST: Final = re.compile(rb"failed \(exitcode: (?P<exit_code>-?\d+)\) .*\(pid: (?P<pid>\d+)\)")
_MOST_RESTARTS: Final = 100_000
_MEMBERS_LEAVE: Final = "last_call_timeout=3,keep_alive_interval=5,keep_alive_max_attempt=60"
"""A host that does not come is not waited for. One that is silent is put out by whoever started it:
torchrun would compare the clocks of the hosts."""
_PR_SET_PDEATHSIG: Final = 1
_KILLED: Final = "killed"
"""The file in which torchrun names the ranks that a signal has killed."""
_LITTLE_BYTES: Final = 65_536
"""With less free space than this, a full disk may be why a worker failed."""
_SECONDS_TO_SAVE: Final = 60.0
"""How long workers may go on after torchrun itself was killed."""
_SECONDS_TO_MEET: Final = 300
"""How long torchrun waits for the processes of the other hosts."""
_OTHER_FAILURES_S: Final = 5.0
"""How long torchrun may go on after a second signal; it may wait minutes for a lost store."""
_HUNG_AFTER_S: Final = 60.0
"""If no thread of a worker has run for this long, it is stopped, or its machine thrashes."""


@dataclass(frozen=True, slots=True)
class Share:
    """This host's part of a run over `num_hosts` hosts; ranks are numbered in the order of hosts.

    interface: the only network interface that the collectives use.
    price_per_hour: the cost of this host per hour, such as `6.12 USD`; "" if it is not known.
    on_processor: whether its ranks compute on the processor even if the machine has GPUs.
    fewest: with how many hosts training begins. Then torchrun starts the workers again if one is
        lost or a host comes, up to `num_hosts`; 0: it begins with all, and once.
    """

    number: int
    num_hosts: int
    interface: str
    store: StoreAddress
    price_per_hour: str = ""
    on_processor: bool = False
    fewest: int = 0

    def environment(self) -> dict[str, str]:
        """Environment variables of this share: where to meet the others, and through which
        interface."""
        return {
            STORE_VARIABLE: str(self.store),
            "GLOO_SOCKET_IFNAME": self.interface,
            "NCCL_SOCKET_IFNAME": f"={self.interface}",
            PRICE_VARIABLE: self.price_per_hour,
            **(NO_GPUS if self.on_processor else {}),
        }


def launch_log(run_directory: Path, share_number: int | None = None) -> Path:
    """The log of torchrun and the workers; each share has its own, as hosts may share the
    folder."""
    name = "launch.log" if share_number is None else f"launch-{share_number}.log"
    return run_directory / "logs" / name


class WorkerError(DragomanError):
    """A worker's own one-line error, raised again in the process that started it.

    kind: the name of the class that the worker raised.
    """

    def __init__(self, message: str, exit_code: int, kind: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # of the class that the worker raised
        self.kind = kind


class HungWorkerError(TrainingError):
    """A worker gave no sign of life and was killed."""


class WorkerLoss(NamedTuple):
    """A worker that is gone, after which torchrun starts all workers again.

    weight: how likely it is the cause of other losses.
    """

    problem: str
    weight: Weight


class StartAgainError(Exception):
    """Ends workers and torchrun at once, as nothing of theirs is worth saving."""


class InterruptedRunError(DragomanError):
    """A signal ended the run; the same command resumes it."""

    exit_code = 130


def as_raised(error: WorkerError) -> DragomanError:
    """The error as the worker's own class, if callers may catch that class."""
    classes = (
        *(CheckpointError, ConfigError, CorpusError, DivergenceError, InterruptedRunError),
        *(MachineError, TrainingError),
    )
    known = {one.__name__: one for one in classes}
    return known[error.kind](str(error)) if error.kind in known else error


def launch_workers(
    module_arguments: Sequence[str],
    *,
    ranks: int,
    run_directory: Path,
    share: Share | None = None,
    hung_after_s: float = _HUNG_AFTER_S,
    meanwhile: Callable[[Path], None] = lambda _meeting: None,
    on_loss: Callable[[WorkerLoss], None] = lambda _loss: None,
) -> None:
    """Run `python -m MODULE ARGUMENTS` in `ranks` processes of this machine until all have ended.

    share: this machine's part of the run, or None if it has all ranks.
    meanwhile: called about once a second, and at the end, with the directory of the workers'
        heartbeats. If it raises, the workers save and end, and its error is raised again; after a
        StartAgainError they do not save.
    on_loss: called with each loss after which torchrun starts the workers again.
    SIGTERM and SIGINT are passed on to the workers, which save and exit; a second one kills them.
    Raises WorkerError with the error of the first worker that failed, HungWorkerError if a worker
    gave no sign of life for `hung_after_s` and was killed, InterruptedRunError if a signal came
    before a worker could handle it. If a worker died without a message, raises MachineError if the
    disk of temporary files is full, else TrainingError.
    """
    log_path = launch_log(run_directory, share.number if share else None)
    log_path.parent.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="dragoman-") as directory,
        log_path.open("ab") as log,
    ):
        meeting = Path(directory)
        torchrun = subprocess.Popen(
            torchrun_command(module_arguments, ranks=ranks, meeting=meeting, share=share),
            env=workers_environment(ranks, meeting, share),
            stderr=log,
            start_new_session=True,  # the terminal's Ctrl-C must not reach the workers twice
        )
        losses = _Losses(log_path, on_loss if share and share.fewest else None)
        with _SignalRelay(torchrun, meeting) as relay:
            try:
                hung = _wait(torchrun, meeting, relay, hung_after_s, meanwhile, losses)
            except StartAgainError:
                for pid in descendants(torchrun.pid):
                    _send(signal.SIGKILL, pid)
                raise
            finally:
                _end_workers(meeting)
                torchrun.wait()
            meanwhile(meeting)
        if hung is not None:
            raise HungWorkerError(
                _hung(hung, hung_after_s),
                place=log_path,
                remedy="look at that machine's memory and processes; the same command goes on "
                "from the last checkpoint",
            )
        if torchrun.returncode:
            raise _failure(meeting, log_path, interrupted=relay.received > 0)


def forget_workers(meeting: Path) -> None:
    """Remove the marks of workers that have ended, as others take their place."""
    for pattern in (f"{_PID}*", f"{NAME}*"):
        for path in meeting.glob(pattern):
            path.unlink(missing_ok=True)
    for path, record in _reports(meeting):
        if record["exit_code"] == InterruptedRunError.exit_code:
            path.unlink()


def is_over(meeting: Path) -> bool:
    """Whether the workers must not be started again: a signal or an error of theirs ended them."""
    return (meeting / _STOPPED).exists() or bool(_reports(meeting))


def introduce_worker() -> None:
    """Called first by a worker: end with torchrun, write the process id for signals, and give signs
    of life."""
    end_with_parent()
    meeting = os.environ.get(RENDEZVOUS_VARIABLE)
    if meeting:
        name = f"{_PID}{os.environ['RANK']}"
        draft = Path(meeting).with_name(f"new-{name}")  # which does not match pid-*
        draft.write_text(str(os.getpid()), encoding="utf-8")
        draft.rename(draft.with_name(name))
        beat(draft.parent, rank=int(os.environ["RANK"]))


def report_failure(error: DragomanError) -> None:
    """Write a worker's error into the file that launch_workers reads, whole or not at all."""
    meeting = os.environ.get(RENDEZVOUS_VARIABLE)
    if meeting:
        kind = error.kind if isinstance(error, WorkerError) else type(error).__name__
        record = {"message": str(error), "exit_code": error.exit_code, "kind": kind}
        path = Path(meeting).with_name(f"failure-{os.environ['RANK']}.json")
        with contextlib.suppress(OSError):  # the launcher notices a full disk itself
            write_whole(path, json.dumps(record))


def end_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent process dies (Linux; elsewhere nothing).

    Exits at once if the parent is dead already.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    parent = os.environ.get(_PARENT_VARIABLE)
    if parent is not None and os.getppid() != int(parent):
        sys.exit("dragoman: the process that started this one is gone")


def torchrun_command(
    module_arguments: Sequence[str], *, ranks: int, meeting: Path, share: Share | None = None
) -> list[str]:
    """The command that starts torchrun; `meeting` is a directory of this machine."""
    if share is None:
        place = [
            *("--nnodes=1", "--max-restarts=0", "--rdzv-backend=c10d"),
            *("--rdzv-id=local", "--local-addr=127.0.0.1"),
            *(f"--rdzv-endpoint={meeting / 'agents'}", "--rdzv-conf=store_type=file"),
        ]
    else:
        conf = f"is_host=false,join_timeout={_SECONDS_TO_MEET},{_MEMBERS_LEAVE}"
        nodes = f"{share.fewest}:{share.num_hosts}" if share.fewest else f"{share.num_hosts}"
        place = [
            f"--nnodes={nodes}",
            f"--max-restarts={_MOST_RESTARTS if share.fewest else 0}",
            f"--rdzv-backend={HOSTS_BACKEND}",
            f"--rdzv-endpoint={share.store.endpoint}",
            f"--rdzv-conf={conf}",
            # Ranks follow the order of these names; no process connects to them, as there is a
            # store.
            f"--local-addr=host-{share.number:04d}",
        ]
    return [
        *(sys.executable, "-m", "dragoman.distributed.launch"),
        *(f"--nproc-per-node={ranks}", *place),
        f"--log-dir={meeting / 'logs'}",  # empty, but otherwise torchrun leaves it behind in /tmp
        *("-m", *module_arguments),
    ]


def workers_environment(ranks: int, meeting: Path, share: Share | None = None) -> dict[str, str]:
    """The environment of the processes that `torchrun_command` starts."""
    return {
        **rank_environment(ranks),
        RENDEZVOUS_VARIABLE: str(meeting / "workers"),
        _PARENT_VARIABLE: str(os.getpid()),
        # Otherwise torchrun opens a store for the workers on every interface of the machine.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        **(share.environment() | {_TOKEN_VARIABLE: share.store.token} if share else {}),
    }


def rank_environment(ranks: int) -> dict[str, str]:
    """This process's environment, with the threads for one of `ranks` ranks that share its cores.

    An OMP_NUM_THREADS that is already set is kept.
    """
    threads = {"OMP_NUM_THREADS": str(max(1, host.cpu_cores() // ranks))}
    return threads | thread_environment() | os.environ


class _SignalRelay(StopHandler):
    """Inside the block the first SIGTERM or SIGINT goes to the workers as SIGTERM, later ones as
    SIGKILL.

    They go to each worker, not to torchrun, which would kill after 30 seconds; they go to torchrun
    only while there is no worker yet.
    """

    def __init__(self, torchrun: subprocess.Popen[bytes], meeting: Path) -> None:
        self.received = 0
        self._torchrun = torchrun
        self._meeting = meeting

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Pass a signal on."""
        self.received += 1
        (self._meeting / _STOPPED).touch()
        number = signal.SIGTERM if self.received == 1 else signal.SIGKILL
        for pid in _worker_pids(self._meeting) or [self._torchrun.pid]:
            _send(number, pid)


def _wait(
    torchrun: subprocess.Popen[bytes],
    meeting: Path,
    relay: _SignalRelay,
    hung_after_s: float,
    meanwhile: Callable[[Path], None],
    losses: _Losses,
) -> int | None:
    """Wait until torchrun has ended; returns the rank that was killed because it hung, if any."""
    pulses, hung, left_s = Pulses(meeting), None, _OTHER_FAILURES_S
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            torchrun.wait(PULSE_EVERY_S)
            return hung
        meanwhile(meeting)
        losses.look()
        if relay.received > 1:
            left_s -= PULSE_EVERY_S
            if left_s <= 0:
                torchrun.kill()
        for rank, silent_s in pulses.look().items():
            pid = _worker_pid(meeting / f"{_PID}{rank}") if silent_s >= hung_after_s else None
            if pid is None or hung is not None or losses.have_hung(pid):
                continue
            if _send(signal.SIGKILL, pid) and not losses.tell_hung(rank, pid, hung_after_s):
                hung = rank


class _Losses:
    """Reads in torchrun's log which workers it has lost.

    tell: called with each loss; None: torchrun does not start workers again, and its end says all.
    """

    def __init__(self, log: Path, tell: Callable[[WorkerLoss], None] | None) -> None:
        self._log = log
        self._tell = tell
        self._read = log.stat().st_size
        self._hung: set[int] = set()

    def have_hung(self, pid: int) -> bool:
        """Whether this one has been killed already."""
        return pid in self._hung

    def tell_hung(self, rank: int, pid: int, after_s: float) -> bool:
        """Tell that this one was killed; False if torchrun's end will say so."""
        if self._tell is None:
            return False
        self._hung.add(pid)
        self._tell(WorkerLoss(_hung(rank, after_s), "hung"))
        return True

    def look(self) -> None:
        """Tell what has been lost since the last look."""
        if self._tell is None:
            return
        with self._log.open("rb") as file:
            file.seek(self._read)
            lines = file.read().splitlines(keepends=True)
        for line in lines:
            if not line.endswith(b"\n"):
                break
            self._read += len(line)
            lost = _LOST.search(line)
            if lost is None or int(lost["pid"]) in self._hung:
                continue
            exit_code = int(lost["exit_code"])
            if exit_code < 0 and exit_code != -signal.SIGTERM:
                name = signal.Signals(-exit_code).name
                self._tell(WorkerLoss(f"a worker process was ended by {name}", "signal"))
            elif exit_code != InterruptedRunError.exit_code:
                self._tell(WorkerLoss(f"a worker process ended; see {self._log}", "other"))


def _hung(rank: int, after_s: float) -> str:
    return f"rank {rank} gave no sign of life for {units.DURATION.text(after_s)} and was killed"


def _worker_pids(meeting: Path) -> list[int]:
    found = map(_worker_pid, sorted(meeting.glob(f"{_PID}*")))
    return [pid for pid in found if pid is not None]


def _worker_pid(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="utf-8"))
    except FileNotFoundError:  # the worker is replaced
        return None


def _send(number: int, pid: int) -> bool:
    """Send a signal; returns whether the process still exists."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _is_there(pid: int) -> bool:
    """Whether a worker has not ended. It may have become a child of this process (`join_host`)."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return _send(0, pid)


def _end_workers(meeting: Path) -> None:
    """End workers that outlived a killed torchrun; do nothing if torchrun ended by itself."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        alive = [pid for pid in _worker_pids(meeting) if _send(number, pid)]
        deadline = time.monotonic() + _SECONDS_TO_SAVE
        while alive and time.monotonic() < deadline:
            time.sleep(0.1)
            alive = [pid for pid in alive if _is_there(pid)]


def _failure(meeting: Path, log_path: Path, *, interrupted: bool) -> DragomanError:
    """The error that was reported first, as later ones are often its consequences; or a guess."""
    if reports := [record for _, record in _reports(meeting)]:
        stopped = InterruptedRunError.exit_code
        record = min(reports, key=lambda report: bool(report["exit_code"] == stopped))
        return WorkerError(record["message"], record["exit_code"], record["kind"])
    if interrupted:
        return InterruptedRunError(
            "a signal stopped the run; its last checkpoint is kept",
            remedy="run the same command again to resume",
        )
    if shutil.disk_usage(meeting).free < _LITTLE_BYTES:
        return MachineError(
            "a worker process ended, and there is no space left for temporary files",
            place=meeting.parent,
            remedy="free disk space there, or set TMPDIR to a folder on another disk; "
            "the same command goes on",
        )
    named = meeting / _KILLED
    return TrainingError(
        named.read_text() if named.exists() else "a worker process ended unexpectedly",
        place=log_path,
        remedy="the end of this log says more; SIGKILL is often for lack of memory",
    )


def _reports(meeting: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The errors that workers have reported, the first one first."""
    paths = sorted(meeting.glob("failure-*.json"), key=lambda path: path.stat().st_mtime_ns)
    return [(path, json.loads(path.read_text(encoding="utf-8"))) for path in paths]


def _torchrun() -> None:
    """Run torchrun. If signals killed workers, write their ranks and the time for `_failure`."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    from dragoman.distributed import elastic

    elastic.register()
    try:
        main()
    except ChildFailedError as error:
        killed = [
            f"rank {rank} was killed by {failure.signal_name()} at "
            f"{units.time_of_day(failure.timestamp)}"
            for rank, failure in error.failures.items()
            if failure.exitcode < 0
        ]
        if killed:
            named = Path(os.environ[RENDEZVOUS_VARIABLE]).with_name(_KILLED)
            named.write_text("; ".join(killed))
        raise


if __name__ == "__main__":
    end_with_parent()
    os.environ[_PARENT_VARIABLE] = str(os.getpid())
    _torchrun()
