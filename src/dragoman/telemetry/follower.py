"""Follows a file to which other processes add lines. Nothing here trusts a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from dragoman.base.files import open_regular
from dragoman.telemetry.events import LONGEST_LINE_BYTES

_PIECE_BYTES: Final = 1 << 20


class Follower:
    """Reads a file as it grows; it may not exist yet.

    A line counts when its end is written. A file that was cut short is read from its beginning; a
    file that was replaced (rotated) is first read to its end, then the new one.
    """

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        """from_end: skip the lines that exist now."""
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""
        if from_end:
            with suppress(OSError):
                self._file = open_regular(path)
                self._file.seek(0, os.SEEK_END)

    def lines(self) -> Iterator[bytes]:
        """The whole lines that were added since the last call."""
        try:
            yield from self._added()
            if self._is_another():
                self.close()
                self._file = open_regular(self._path)
                yield from self._added()
        except OSError:  # missing, not a regular file, or its disk is away for a moment
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file, self._rest = None, b""

    def _added(self) -> Iterator[bytes]:
        if self._file is None:
            return
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0)
            self._rest = b""
        while piece := self._file.read(_PIECE_BYTES):
            *whole, self._rest = (self._rest + piece).split(b"\n")
            yield from whole
            if len(self._rest) > LONGEST_LINE_BYTES:
                # A line too long is not kept. One byte stands for it, so that the rest of it counts
                # as damaged.
                self._rest = self._rest[:1]

    def _is_another(self) -> bool:
        """Whether the path names a file that is not the open one."""
        if self._file is None:
            return True
        try:
            there = self._path.stat()
        except FileNotFoundError:  # moved away; its writer may still write to it
            return False
        here = os.fstat(self._file.fileno())
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)
