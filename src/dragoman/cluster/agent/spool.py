"""Events of this host's ranks, sent to the user as they are written."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from dragoman.cluster.agent.channel import Channel

_AT_ONCE_BYTES = 1 << 20


class Spool:
    """Reads what is appended to the event files of some ranks, whole lines only.

    had: for each file the size and sha256 of the user's copy. If the file here begins
    differently, it is from another time or another host's rank, and a new one replaces it.
    """

    def __init__(self, directory: Path, had: Mapping[str, tuple[int, str]]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._read = {
            directory / name: _goes_on(directory / name, size, digest)
            for name, (size, digest) in had.items()
        }

    def forward(self, channel: Channel) -> None:
        """Send the lines that were written since the last call."""
        for path in self._read:
            while lines := self._next(path):
                channel.say("events", file=path.name, text=lines.decode())

    def _next(self, path: Path) -> bytes:
        try:
            with path.open("rb") as file:
                file.seek(self._read[path])
                found = file.read(_AT_ONCE_BYTES)
        except FileNotFoundError:
            return b""
        lines = found[: found.rfind(b"\n") + 1]
        self._read[path] += len(lines)
        return lines


def prefix_digest(path: Path, size: int) -> str:
    """sha256 of the first bytes of a file; of nothing if the file does not exist."""
    whole = hashlib.sha256()
    if size and path.is_file():
        with path.open("rb") as file:
            whole.update(file.read(size))
    return whole.hexdigest()


def _goes_on(path: Path, size: int, digest: str) -> int:
    """How many bytes of the file here the user has; a file that does not continue them is
    removed."""
    if path.is_file() and (path.stat().st_size < size or prefix_digest(path, size) != digest):
        path.unlink()
    return size if path.is_file() else 0
