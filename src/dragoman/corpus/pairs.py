"""Files of parallel text -> blocks of pairs, or an error that names the line.

An entry is two aligned files or one TSV file of two columns, packed or not (`tmx` and `moses` read
such lines from other formats). gzip, bzip2, zstd and xz are known by a file's first bytes, not by
its name; they are unpacked a bounded piece at a time, however much a file unpacks to. A block is
raw bytes: the process that reads only cuts at line ends, the processes that clean do the rest.
"""

from __future__ import annotations

import bz2
import hashlib
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import zstandard
from numpy.typing import NDArray

from dragoman.base.errors import CorpusError
from dragoman.base.line_files import UTF_16
from dragoman.corpus.directions import Direction
from dragoman.corpus.shifted import first_shift, line_lengths

PIECE_BYTES: Final = 1 << 18
"""Bytes that are read at once, and about as many are unpacked at once."""
MOST_TIMES: Final = 250
"""The most that a file may unpack to, as a multiple of its size; text unpacks to 3 to 10 times."""
_ALWAYS_ALLOWED_BYTES: Final = 2 << 20
_XZ_MEMORY_BYTES: Final = 1 << 29
"""xz -9 takes 65 MiB; a file may ask for 4 GiB."""
_INPUT_BYTES: Final = 1 << 10
"""Bytes given to an unpacker at once: in gzip and zstd they hold at most some 30 MiB."""
RUN_BYTES = 16 << 20
MENDED = {"byte order mark": b"\xef\xbb\xbf", "CRLF line end": b"\r\n"}
"""Traces of other systems that are not part of the text; no pair is dropped for them."""
BLOCK_LINES = 32_768
_TARGET_RUN_BYTES = 8 * RUN_BYTES
PARALLEL: Final = "give files in which line N of one belongs to line N of the other"
"""The remedy if they do not."""
_MOST_COMPARED = 20_000_000
"""The most lines whose lengths are held at once, to find where two files stop being parallel."""


class DamagedError(Exception):
    """Bytes that cannot be unpacked, and why."""


def unpacked(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The unpacked bytes of a file's pieces; unchanged if the file is not packed.

    Several packed files in one file are one text.
    Raises: DamagedError.
    """
    head = next(pieces, b"")
    for magic, make_unpacker in _UNPACKERS.items():
        if head.startswith(magic):
            yield from _unpack(chain([head], pieces), make_unpacker)
            return
    if head:
        yield head
    yield from pieces


class _Unpacker(Protocol):
    """The common interface of zlib, bz2, lzma and zstandard."""

    @property
    def eof(self) -> bool:
        """Whether the packed file has ended."""

    @property
    def unused_data(self) -> bytes:
        """Input after the end of the packed file."""

    def decompress(self, data: bytes, /) -> bytes:
        """All that can be unpacked of the input so far."""


_UNPACKERS: Final[dict[bytes, Callable[[], _Unpacker]]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\x00": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES),
    b"\x28\xb5\x2f\xfd": lambda: zstandard.ZstdDecompressor().decompressobj(),
}


def _unpack(pieces: Iterable[bytes], make_unpacker: Callable[[], _Unpacker]) -> Iterator[bytes]:
    """As `unpacked`; small results are put together, large ones are cut."""
    unpacker = make_unpacker()
    texts: list[bytes] = []
    size = 0
    try:
        for packed in _slices(pieces, _INPUT_BYTES):
            while packed:
                if unpacker.eof:  # another packed file follows
                    unpacker = make_unpacker()
                for text in _steps(unpacker, packed):
                    texts.append(text)
                    size += len(text)
                    if size >= PIECE_BYTES:
                        yield from _slices([b"".join(texts)], PIECE_BYTES)
                        texts, size = [], 0
                packed = unpacker.unused_data if unpacker.eof else b""
    except (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError, EOFError) as error:
        raise DamagedError(str(error)) from error
    if not unpacker.eof:
        raise DamagedError("it ends too early")
    if size:
        yield b"".join(texts)


def _steps(unpacker: _Unpacker, packed: bytes) -> Iterator[bytes]:
    """Unpack some input, in small steps if it may hold any number of bytes."""
    if not isinstance(unpacker, bz2.BZ2Decompressor | lzma.LZMADecompressor):
        yield unpacker.decompress(packed)
        return
    yield unpacker.decompress(packed, PIECE_BYTES)
    while not unpacker.eof and not unpacker.needs_input:
        yield unpacker.decompress(b"", PIECE_BYTES)


def _slices(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of at most this size."""
    for piece in pieces:
        for start in range(0, len(piece), size):
            yield piece[start : start + size]


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Facts of a file that has been read to its end. text_bytes: its size after unpacking.

    mended: how often it contains each of MENDED, without zeros; normalisation removes them.
    regions: how often text of another region was taken, such as "pt-PT for pt-BR".
    """

    path: Path
    sha256: str
    lines: int
    text_bytes: int
    mended: dict[str, int]
    regions: dict[str, int] = field(default_factory=dict)


class LineReader:
    """Reads a file once and digests it on the way; the `max_bytes` of `take` bounds the memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sha256 = hashlib.sha256()
        self._read_bytes = 0
        self._pieces = filter(None, self._unpacked())
        self._pending = b""
        self._lines = 0
        self._text_bytes = 0
        self._mended = dict.fromkeys(MENDED, 0)

    def take(self, max_lines: int, *, max_bytes: int = RUN_BYTES) -> tuple[bytes, int]:
        """The next lines, at most max_lines, and how many they are; (b"", 0) at the end.

        Every line ends with a newline, the last of the file too. Stops early at about max_bytes.
        Raises: CorpusError if a line alone is longer, or the file is UTF-16, or cannot be read or
        unpacked.
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
            if not (self._text_bytes or pieces) and piece.startswith(UTF_16):
                raise CorpusError(
                    "is UTF-16, not UTF-8",
                    place=self.path,
                    remedy="convert it, for example with: iconv -f utf-16 -t utf-8",
                )
            ends = piece.count(b"\n")
            if num_lines + ends > max_lines:
                ends = max_lines - num_lines
                newlines = np.flatnonzero(np.frombuffer(piece, dtype=np.uint8) == ord("\n"))
                cut = int(newlines[ends - 1]) + 1 if ends else 0
                piece, self._pending = piece[:cut], piece[cut:]
            pieces.append(piece)
            num_lines += ends
            size += len(piece)
        text = b"".join(pieces)
        if text and not num_lines:
            raise CorpusError(
                f"line {self._lines + 1} is longer than {len(text) >> 20} MiB",
                place=self.path,
                remedy="give text with one sentence per line",
            )
        end = text.rfind(b"\n") + 1  # the rest is a line that is not complete yet
        text, self._pending = text[:end], text[end:] + self._pending
        self._lines += num_lines
        self._text_bytes += len(text)
        for name, trace in MENDED.items():
            self._mended[name] += text.count(trace)
        return text, num_lines

    def facts(self) -> FileFacts:
        """The facts of the file, once it has been read to its end."""
        mended = {name: count for name, count in self._mended.items() if count}
        return FileFacts(self.path, self._sha256.hexdigest(), self._lines, self._text_bytes, mended)

    def _unpacked(self) -> Iterator[bytes]:
        """The text in pieces of any size. Readers of other formats override this to yield lines."""
        size = self.path.stat().st_size if self.path.is_file() else 0
        num_bytes = 0
        try:
            for piece in unpacked(self._raw()):
                num_bytes += len(piece)
                # The size of a pipe is not known, and of files that the system makes it is 0.
                most = MOST_TIMES * max(size, self._read_bytes)
                if num_bytes > max(_ALWAYS_ALLOWED_BYTES, most):
                    raise CorpusError(
                        f"unpacks to more than {MOST_TIMES} times its size, which text does not do",
                        place=self.path,
                        remedy="if it is text, unpack it and name the unpacked file",
                    )
                yield piece
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
                    self._read_bytes += len(piece)
                    yield piece
        except OSError as error:
            raise unreadable(self.path, error) from error


def unreadable(path: Path, error: OSError) -> CorpusError:
    """The error for a file of text that cannot be read."""
    return CorpusError(
        f"cannot be read ({error.strerror})",
        place=path,
        remedy="check the name; names are relative to the recipe's folder, in an override to the "
        "working directory",
    )


def first_suspicious_line(
    source_lengths: NDArray[np.int64], target_lengths: NDArray[np.int64]
) -> int:
    """The line, counted from 1, at which the longer file most likely has extra lines.

    source_lengths, target_lengths: characters or bytes of each line; one side has more lines. The
    lengths of translations are nearly proportional (Gale and Church 1993), so the best place for
    the surplus lines is the one that leaves the smallest sum of |log length ratio|, with the lines
    before it paired as they are and those after it paired with the shift undone. The result is
    one more than the shorter file has lines if the surplus lies at the end.
    """
    longer, shorter = sorted((source_lengths, target_lengths), key=len, reverse=True)
    if not len(shorter):
        return 1
    long_log, short_log = np.log1p(longer), np.log1p(shorter)
    usual = np.median(long_log) - np.median(short_log)
    surplus = len(longer) - len(shorter)
    before = np.abs(long_log[: len(shorter)] - short_log - usual)
    after = np.abs(long_log[surplus:] - short_log - usual)
    cost = np.zeros(len(shorter) + 1)
    cost[1:] = np.cumsum(before - after)
    # Ties go to the end: equal lines on both sides of the surplus do not show where it starts.
    return len(cost) - int(np.argmin(cost[::-1]))


@dataclass(frozen=True, slots=True)
class NamedPath:
    """A file, and its name in the recipe."""

    name: str
    path: Path

    def open(self) -> LineReader:
        """A reader of its lines."""
        return LineReader(self.path)

    def fault_of(self, line: str) -> str:
        """The name of the fault of a line in which a tab is missing."""
        return "columns"


@dataclass(frozen=True, slots=True)
class ColumnLimit:
    """The bounds of a column of scores, its name in the recipe, its index counted from 0."""

    index: int
    name: str
    at_least: float | None
    at_most: float | None


@dataclass(frozen=True, slots=True)
class TextEntry:
    """One entry of a corpus with its files found; target is None if source is a TSV file.

    direction: its languages. number: the position of the entry in its split, from 0.
    tag: words that are put before each source; "": none.
    limits: on further columns of a TSV file.
    reverse: its columns are target and source.
    shuffled: its lines are in no order.
    has_header: its first line names the columns.
    num_columns: the number of columns in the first line of a TSV file with limits, else 0.
    """

    source: NamedPath
    target: NamedPath | None = None
    direction: Direction = field(default=Direction("", ""), kw_only=True)
    tag: str = field(default="", kw_only=True)
    number: int = field(default=0, kw_only=True)
    limits: tuple[ColumnLimit, ...] = field(default=(), kw_only=True)
    reverse: bool = field(default=False, kw_only=True)
    shuffled: bool = field(default=False, kw_only=True)
    has_header: bool = field(default=False, kw_only=True)
    num_columns: int = field(default=0, kw_only=True)

    @property
    def files(self) -> tuple[NamedPath, ...]:
        """The files of the entry."""
        return (self.source,) if self.target is None else (self.source, self.target)


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive lines of one entry; every line ends with a newline.

    index counts the blocks of a split over all its entries. target is None if source holds
    both columns of a TSV file.
    """

    index: int
    entry: TextEntry
    first_line: int
    num_lines: int
    source: bytes
    target: bytes | None


class BlockReader:
    """Reads the entries of one split, in order, as blocks.

    facts: about each file that has been read to its end.
    shifted: for each entry whose lines do not seem to belong together, its files and where that
        begins.
    """

    def __init__(self, entries: Sequence[TextEntry], *, block_lines: int = BLOCK_LINES) -> None:
        self._entries = entries
        self._block_lines = block_lines
        self.facts: list[FileFacts] = []
        self.shifted: list[str] = []

    def __iter__(self) -> Iterator[Block]:
        """Yield every block.

        Raises: CorpusError if a file cannot be read or is empty, or if two files do not have
        the same number of lines.
        """
        index = 0
        for entry in self._entries:
            readers = [file.open() for file in entry.files]
            header_lines = readers[0].take(1)[1] if entry.has_header else 0
            first_line, shifted = header_lines + 1, ""
            while texts := self._take(entry, readers):
                num_lines = texts[0][1]
                source, target = texts[0][0], texts[1][0] if len(texts) > 1 else None
                if target is not None and not shifted:
                    shift = first_shift(line_lengths(source), line_lengths(target))
                    shifted = shift.says(first_line) if shift else ""
                yield Block(index, entry, first_line, num_lines, source, target)
                first_line += num_lines
                index += 1
            self.facts += [reader.facts() for reader in readers]
            if shifted:
                names = ", ".join(dict.fromkeys(str(file.path) for file in entry.files))
                self.shifted.append(f"{names}: {shifted}")
            if first_line == header_lines + 1:
                raise CorpusError(
                    "holds no text",
                    place=entry.source.path,
                    remedy="give a file with one sentence per line",
                )

    def _take(self, entry: TextEntry, readers: list[LineReader]) -> list[tuple[bytes, int]]:
        """The next lines, equally many from each reader; empty at the end."""
        text, num_lines = readers[0].take(self._block_lines)
        texts = [(text, num_lines)]
        for reader in readers[1:]:
            texts.append(reader.take(num_lines or 1, max_bytes=_TARGET_RUN_BYTES))
        if any(count != num_lines for _, count in texts):
            if num_lines and readers[1].take(1)[1]:
                raise CorpusError(
                    f"its lines are far longer than those of {readers[0].path.name}: "
                    f"{num_lines} have more than {_TARGET_RUN_BYTES >> 20} MiB",
                    place=readers[1].path,
                    remedy=PARALLEL,
                )
            raise _misaligned(*entry.files)
        return texts if num_lines else []


def _misaligned(source: NamedPath, target: NamedPath) -> CorpusError:
    (num_source, source_lengths), (num_target, target_lengths) = map(_lines, (source, target))
    suspicious = first_suspicious_line(source_lengths, target_lengths)
    if max(num_source, num_target) > _MOST_COMPARED:
        how = f"files of more than {_MOST_COMPARED} lines are not searched for the first wrong one"
    elif suspicious > min(num_source, num_target):
        how = "the shorter one seems to be cut off at its end"
    else:
        how = f"from about line {suspicious} on their lengths do not fit each other"
    return CorpusError(
        f"the source has {num_source} lines, the target {num_target}; {how}",
        place=", ".join(dict.fromkeys((str(source.path), str(target.path)))),
        remedy=PARALLEL,
    )


def _lines(file: NamedPath) -> tuple[int, NDArray[np.int64]]:
    """How many lines a file has, and the bytes in each of the first _MOST_COMPARED."""
    reader = file.open()
    lengths = [np.zeros(0, dtype=np.int64)]
    num_lines = 0
    while (run := reader.take(BLOCK_LINES))[1]:
        text, count = run
        if num_lines < _MOST_COMPARED:
            lengths.append(line_lengths(text))
        num_lines += count
    return num_lines, np.concatenate(lengths)
