"""Which process trains a run now: another terminal can see and stop it, and no second process
trains the same run.

The process that trains holds `session.lock`, which is freed however it ends; `session.json` records
which process that is or was, and how it ended.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, Literal

from pydantic import ValidationError

from dragoman.base import units
from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import CheckpointError, DragomanError, MachineError
from dragoman.base.files import try_lock, write_whole
from dragoman.base.interrupts import INTERRUPTED
from dragoman.base.settings import Section

_LOCK: Final = "session.lock"
_RECORD: Final = "session.json"
_LOOK_EVERY_S: Final = 0.2
_LOOKS_TAKE_S: Final = 1.0
"""Who only looks whether a run is held has its lock for much less time."""

State = Literal["running", "finished", "stopped", "failed", "gone", "unknown"]


class Session(Section):
    """One training of a run, from its start to its end; `gone` if it could not record its end,
    `unknown` if it recorded none and another machine trained it: its process cannot be seen here.

    ranks: the number of processes that was asked for on this machine; None: one for each GPU or
        one, and always on several hosts.
    """

    pid: int
    machine: str
    started: float
    """Seconds since 1970."""
    state: State = "running"
    problem: str = ""
    ranks: int | None = None


@contextmanager
def training_session(run: Path, *, ranks: int | None = None) -> Iterator[None]:
    """Hold the run while the block trains it. Raises CheckpointError if another does.

    Raises MachineError if the run cannot be written to.
    """
    lock = _locked(run)
    if lock is None:
        other = read_session(run)
        who = f"process {other.pid} on {other.machine}" if other else "another process"
        raise CheckpointError(
            f"is being trained by {who}",
            place=run,
            remedy=f"dragoman train --stop {shlex.quote(str(run))} ends that",
        )
    session = Session(
        pid=os.getpid(), machine=socket.gethostname(), started=time.time(), ranks=ranks
    )
    with lock:
        _write(run, session)
        try:
            yield
        except BaseException as error:
            exit_code = getattr(error, "exit_code", None)
            stopped = isinstance(error, KeyboardInterrupt) or exit_code == INTERRUPTED
            state: State = "stopped" if stopped else "failed"
            is_ours = isinstance(error, DragomanError)
            problem = str(error) if is_ours else traceback.format_exception_only(error)[-1].strip()
            with suppress(MachineError):  # a full disk may be the cause: the first error counts
                _write(run, session.model_copy(update={"state": state, "problem": problem}))
            raise
        _write(run, session.model_copy(update={"state": "finished"}))


def last_ranks(run: Path) -> int | None:
    """The number of ranks that the last training on this machine was asked for, if it was."""
    session = read_session(run)
    return session.ranks if session and session.machine == socket.gethostname() else None


def read_session(run: Path) -> Session | None:
    """The last session of a run, in its present state; None if there was none."""
    try:
        session = Session.model_validate_json((run / _RECORD).read_bytes())
    except (OSError, ValidationError):
        return None
    if session.state == "running" and not _is_held(run):
        is_here = session.machine == socket.gethostname()
        return session.model_copy(update={"state": "gone" if is_here else "unknown"})
    return session


def stop_session(run: Path, *, wait_s: float) -> Session:
    """Ask the process that trains the run to save and end, and wait for it; returns how it ended.

    Raises CheckpointError if the run is not being trained, MachineError if its process cannot be
    stopped from here or takes longer.
    """
    session = read_session(run)
    if session is None or session.state != "running":
        raise CheckpointError(
            "it is not being trained",
            place=run,
            remedy=f"dragoman report --status {shlex.quote(str(run))} shows how it ended",
        )
    if session.machine != socket.gethostname():
        raise MachineError(
            f"process {session.pid} on {session.machine} trains it",
            place=run,
            remedy="stop it there",
        )
    _ask_to_end(session, run)
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        session = read_session(run)
        if session is not None and session.state != "running":
            return session
        time.sleep(_LOOK_EVERY_S)
    raise MachineError(
        f"process {session.pid if session else '?'} has not ended "
        f"within {units.DURATION.text(wait_s)}",
        place=run,
        remedy="run the same command again: the second signal kills",
    )


def _ask_to_end(session: Session, run: Path) -> None:
    """Send a signal only to the process that holds the run's lock.

    Containers number their processes themselves, and those on the host's network have the host's
    name.
    """
    try:
        if _has_open(session.pid, run / _LOCK):
            os.kill(session.pid, signal.SIGTERM)
            return
    except ProcessLookupError:
        pass
    except PermissionError as error:
        raise MachineError(
            f"process {session.pid} that trains it is another user's",
            place=run,
            remedy="stop it as that user",
        ) from error
    if _is_held(run):  # otherwise it has just ended
        raise MachineError(
            f"process {session.pid} that trains it cannot be seen from here",
            place=run,
            remedy="stop it in its container, or on its machine",
        )


def _has_open(pid: int, path: Path) -> bool:
    """Whether a process has a file open; assumed if the system does not show it."""
    if not Path("/proc/self/fd").is_dir():
        return True
    wanted = path.stat()
    with suppress(FileNotFoundError):  # there is no such process
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile, or a pipe
                if os.path.samestat(file.stat(), wanted):
                    return True
    return False


def _locked(run: Path) -> IO[bytes] | None:
    """The run's lock, held until it is closed; None if another process trains the run."""
    try:
        file = (run / _LOCK).open("ab")
    except OSError as error:
        raise MachineError(
            f"cannot be written to: {error.strerror}",
            place=run,
            remedy="train a run in a directory that you may write to",
        ) from error
    deadline = time.monotonic() + _LOOKS_TAKE_S
    while not try_lock(file):
        if time.monotonic() > deadline:
            file.close()
            return None
        time.sleep(_LOOKS_TAKE_S / 50)
    return file


def _is_held(run: Path) -> bool:
    """Whether a process trains the run. Read access is enough."""
    try:
        file = (run / _LOCK).open("rb")
    except FileNotFoundError:
        return False
    except OSError:
        return True  # not visible from here: the record counts
    with file:
        return not try_lock(file, shared=True)


def _write(run: Path, session: Session) -> None:
    with disk_errors_named(run):
        write_whole(run / _RECORD, json.dumps(session.model_dump(), indent=1) + "\n")
