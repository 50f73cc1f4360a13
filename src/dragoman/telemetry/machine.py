"""Processor, memory, disk and loader of this host, sampled."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

from dragoman.telemetry.events import Payload
from dragoman.telemetry.host import memory_bytes
from dragoman.telemetry.samples import HostSampled

_SECTOR_BYTES: Final = 512
_KIB: Final = 1024
_IDLE, _IO_WAIT = 3, 4
_READ, _WRITTEN = 2, 6
_USER_TICKS, _SYSTEM_TICKS = 11, 12
"""Behind a program's name in /proc/PID/stat."""
_BUSY_FIELDS: Final = 8
"""user to steal; guest time is in user time already."""


class MachineProbe:
    """Means of the host that runs this process.

    disk: any path on the disk that holds the run. queued: batches that the loader holds ready.
    pids: of all ranks of the run on this host; this process is one.
    """

    names: ClassVar[str] = "processor, memory and disk"

    def __init__(
        self,
        *,
        disk: Path,
        queued: Callable[[], int] | None = None,
        pids: Sequence[int] = (),
    ) -> None:
        self._disk = disk
        self._queued = queued
        self._pids = pids or [os.getpid()]
        self._memory_limit = memory_bytes()
        self._cpu = _cpu_ticks()
        self._own = _process_ticks(self._pids)
        self._moved = _disk_bytes(disk)
        self._memory: list[int] = []
        self._queue: list[int] = []
        self._sampling_s: float | None = None

    def look(self) -> None:
        """Read memory and the loader's queue."""
        if self._sampling_s is None:
            self._sampling_s = time.thread_time()
        self._memory.append(_memory_used_bytes())
        if self._queued is not None:
            self._queue.append(self._queued())

    def tell(self, seconds_s: float) -> Iterator[Payload]:
        """The means since the last call."""
        cpu, own = _cpu_ticks(), _process_ticks(self._pids)
        moved, spent_s = _disk_bytes(self._disk), time.thread_time()
        busy, ticks = cpu[0] - self._cpu[0], cpu[1] - self._cpu[1]
        others = None if own is None or self._own is None else busy - (own - self._own)
        read, written = (
            (moved[side] - self._moved[side] if moved and self._moved else None) for side in (0, 1)
        )
        yield HostSampled(
            seconds_s=seconds_s,
            cpu_share=round(busy / ticks, 4) if ticks > 0 else 0.0,
            others_cpu_share=None if others is None or ticks <= 0 else _share(others, ticks),
            memory_used_bytes=round(sum(self._memory) / max(len(self._memory), 1)),
            memory_limit_bytes=self._memory_limit,
            process_memory_bytes=_process_memory_bytes(),
            disk_free_bytes=_disk_free_bytes(self._disk),
            disk_read_bytes=read,
            disk_written_bytes=written,
            queued_batches=round(sum(self._queue) / len(self._queue), 2) if self._queue else None,
            sampling_s=round(spent_s - (self._sampling_s or spent_s), 5),
        )
        self._cpu, self._own, self._moved, self._sampling_s = cpu, own, moved, spent_s
        self._memory.clear()
        self._queue.clear()


def _cpu_ticks() -> tuple[int, int]:
    """Busy and all ticks of all processors together since they were started."""
    with Path("/proc/stat").open(encoding="ascii") as lines:
        ticks = [int(text) for text in lines.readline().split()[1 : _BUSY_FIELDS + 1]]
    whole = sum(ticks)
    return whole - ticks[_IDLE] - ticks[_IO_WAIT], whole


def _process_ticks(pids: Sequence[int]) -> int | None:
    """Ticks of processor time that these processes have had; None where one has ended."""
    ticks = 0
    try:
        for pid in pids:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            # The second field is the program's name, in brackets, whatever is in it.
            fields = text.rpartition(")")[2].split()
            ticks += int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
    except OSError:
        return None
    return ticks


def _share(ticks: int, of: int) -> float:
    return round(max(ticks, 0) / of, 4)


def _memory_used_bytes() -> int:
    """Memory that would not be given to a new program at once."""
    found = {}
    with Path("/proc/meminfo").open(encoding="ascii") as lines:
        for line in lines:
            name, _, rest = line.partition(":")
            found[name] = rest
            if name == "MemAvailable":
                break
    total, available = (int(found[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    return (total - available) * _KIB


def _process_memory_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _disk_free_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _disk_bytes(path: Path) -> tuple[int, int] | None:
    """What was read from and written to the disk that holds a path, since it was attached."""
    device = path.stat().st_dev
    try:
        statistics = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text()
    except OSError:  # a file system without a disk of its own, such as one of a container
        return None
    fields = [int(text) for text in statistics.split()]
    return fields[_READ] * _SECTOR_BYTES, fields[_WRITTEN] * _SECTOR_BYTES
