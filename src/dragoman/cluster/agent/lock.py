"""One agent for each run on each machine: an agent left by a lost connection is ended.

After a lost connection the controller is back before its old agent has given up. Two agents would
write the same events and share the device.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dragoman.base.errors import MachineError
from dragoman.base.files import try_lock
from dragoman.cluster.agent import network

_GONE_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.1
_PROGRAM: Final = b"dragoman.cluster.agent"


@contextmanager
def agent_lock(logs: Path) -> Iterator[None]:
    """Inside the block this process is the run's only agent on this machine.

    logs: of the run; hosts may share it. Another agent is killed with all that it started. Raises
    MachineError if it cannot be killed.
    """
    path = logs / f"agent-{socket.gethostname()}.pid"
    with path.open("a+") as record:
        deadline = time.monotonic() + _GONE_S
        while not try_lock(record.fileno()):
            record.seek(0)
            _end(record.read())
            if time.monotonic() > deadline:
                raise MachineError(
                    "another agent of this run is still running and could not be killed",
                    place=path,
                    remedy="kill the process whose number is in this file",
                )
            time.sleep(_LOOK_EVERY_S)
        record.truncate(0)
        record.write(str(os.getpid()))
        record.flush()
        yield


def _end(text: str) -> None:
    """Kill the agent of this number, which holds the lock, and all that it started.

    The number in the file is old until the agent that has just got the lock has written its own: by
    now another program may have the number of a dead agent.
    """
    if text.isdecimal() and _is_agent(text):
        for pid in network.descendants(int(text)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _is_agent(pid: str) -> bool:
    try:
        return _PROGRAM in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
