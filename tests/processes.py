"""Looking at real processes from a test."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

_LISTENING = "0A"
LOOPBACK = "0100007F"
"""127.0.0.1 as the kernel's tables write it."""


def processes_in(folder: Path) -> list[int]:
    """Processes that work in this folder, the test's own excepted."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "cwd").readlink() == folder:
                found.append(int(entry.name))
        except OSError:  # it has ended, or is not ours
            continue
    return sorted(pid for pid in found if pid != os.getpid())


def wait_until(reached: Callable[[], bool], *, limit_s: float = 120.0) -> None:
    """Return when it is so; the test fails if that takes too long."""
    deadline = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)


def listening_addresses(pid: int) -> set[str]:
    """Local addresses (hex, as the kernel writes them) of a process's listening TCP sockets."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:  # the listing's own descriptor
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and fields[9] in inodes:
                addresses.add(fields[1].split(":")[0])
    return addresses
