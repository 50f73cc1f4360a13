"""Follows a file to which another process adds lines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


class Follower:
    """Reads a file as it grows; it may not exist yet. A line counts when its end is written."""

    def __init__(self, path: Path, *, start: int | None = 0) -> None:
        """start: the number of bytes to skip of what exists now; None: all of it."""
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""
        if start != 0 and path.exists():
            self._file = path.open("rb")
            self._file.seek(start or 0, os.SEEK_END if start is None else os.SEEK_SET)

    def lines(self) -> Iterator[bytes]:
        """The whole lines that were added since the last call."""
        if self._file is None:
            if not self._path.exists():
                return
            self._file = self._path.open("rb")
        *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
        yield from whole

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file, self._rest = None, b""
