"""Signs of life of the workers of one machine: files that they touch. Free of torch.

torchrun only checks whether a worker exists. A worker that was stopped, or whose machine thrashes,
still exists, so the others would wait for it in their next collective for half an hour. But such a
worker no longer touches its file.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Final

PULSE_EVERY_S: Final = 1.0
NAME: Final = "pulse-"


def beat(directory: Path, *, rank: int) -> None:
    """Touch this process's file there every second from now on, in a thread of its own."""
    pulse = directory / f"{NAME}{rank}"
    pulse.touch()  # now: a process that is stopped before the thread begins must be noticed, too
    threading.Thread(target=_beat, args=[pulse], daemon=True).start()


def _beat(pulse: Path) -> None:
    with contextlib.suppress(OSError):  # the launcher has ended, and its directory with it
        while pulse.parent.is_dir():
            pulse.touch()
            time.sleep(PULSE_EVERY_S)


class Pulses:
    """The workers of one directory, looked at every `PULSE_EVERY_S`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._beats: dict[int, int] = {}
        self._silent_s: dict[int, float] = {}

    def look(self) -> dict[int, float]:
        """Seconds of silence, by rank.

        It counts looks instead of time, because workers sleep while their machine does.
        """
        beats: dict[int, int] = {}
        for path in self._directory.glob(f"{NAME}*"):
            with contextlib.suppress(FileNotFoundError):  # its worker is replaced
                beats[int(path.name.removeprefix(NAME))] = path.stat().st_mtime_ns
        self._silent_s = {
            rank: self._silent_s[rank] + PULSE_EVERY_S if self._beats.get(rank) == beat_ns else 0.0
            for rank, beat_ns in beats.items()
        }
        self._beats = beats
        return self._silent_s
