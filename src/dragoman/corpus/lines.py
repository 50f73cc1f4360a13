"""A text file, packed or not -> runs of whole lines, as bytes.

gzip, bzip2, zstd and xz are known by a file's first bytes, not by its name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dragoman.base.errors import CorpusError
from dragoman.corpus.unpack import PIECE_BYTES, DamagedError, unpacked

RUN_BYTES = 16 << 20
MENDED = {"byte order mark": b"\xef\xbb\xbf", "CRLF line end": b"\r\n"}
"""Traces of other systems that are not the text's, and that no pair is dropped for."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What is known of a file after reading all of it; text_bytes are those after unpacking.

    mended: how often each of MENDED was in it, those that were; normalisation takes them out.
    """

    path: Path
    sha256: str
    lines: int
    text_bytes: int
    mended: dict[str, int]


class LineReader:
    """Reads a file from start to end and digests it on the way; memory is bounded by RUN_BYTES."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sha256 = hashlib.sha256()
        self._pieces = self._unpacked()
        self._pending = b""
        self._lines = 0
        self._text_bytes = 0
        self._mended = dict.fromkeys(MENDED, 0)

    def take(self, max_lines: int, *, max_bytes: int = RUN_BYTES) -> tuple[bytes, int]:
        """The next lines, at most max_lines, and how many they are; (b"", 0) at the end.

        Every line ends with a newline, the last of the file too. Stops early at about max_bytes.
        Raises: CorpusError if a line alone is longer, or the file cannot be read or unpacked.
        """
        pieces: list[bytes] = []
        num_lines = size = 0
        while num_lines < max_lines and size < max_bytes:
            piece, self._pending = self._pending or next(self._pieces, b""), b""
            if not piece:
                if pieces and not pieces[-1].endswith(b"\n"):
                    pieces.append(b"\n")
                    num_lines += 1
                break
            ends = piece.count(b"\n")
            if num_lines + ends > max_lines:
                ends = max_lines - num_lines
                cut = _line_end(piece, ends)
                piece, self._pending = piece[:cut], piece[cut:]
            pieces.append(piece)
            num_lines += ends
            size += len(piece)
        text = self._without_torn_line(b"".join(pieces), num_lines)
        self._lines += num_lines
        self._text_bytes += len(text)
        for name, trace in MENDED.items():
            self._mended[name] += text.count(trace)
        return text, num_lines

    def facts(self) -> FileFacts:
        """The facts of the file, once all of it was taken."""
        mended = {name: count for name, count in self._mended.items() if count}
        return FileFacts(self.path, self._sha256.hexdigest(), self._lines, self._text_bytes, mended)

    def _without_torn_line(self, text: bytes, num_lines: int) -> bytes:
        if text and not num_lines:
            raise CorpusError(
                f"line {self._lines + 1} is longer than {len(text) >> 20} MiB",
                place=self.path,
                remedy="give text with one sentence a line",
            )
        end = text.rfind(b"\n") + 1
        self._pending = text[end:] + self._pending
        return text[:end]

    def _unpacked(self) -> Iterator[bytes]:
        try:
            yield from unpacked(self._raw())
        except DamagedError as error:
            raise CorpusError(
                f"the compressed file is damaged: {error}",
                place=self.path,
                remedy="fetch or pack it again",
            ) from error

    def _raw(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                while piece := file.read(PIECE_BYTES):
                    self._sha256.update(piece)
                    yield piece
        except OSError as error:
            raise CorpusError(
                f"cannot be read ({error.strerror})",
                place=self.path,
                remedy="check the name; relative names start at the recipe's folder",
            ) from error


def _line_end(piece: bytes, count: int) -> int:
    """Position after the count-th newline of piece."""
    if count == 0:
        return 0
    newlines = np.flatnonzero(np.frombuffer(piece, dtype=np.uint8) == ord("\n"))
    return int(newlines[count - 1]) + 1
