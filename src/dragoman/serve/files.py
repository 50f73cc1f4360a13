"""A file translated line by line; broken off at any moment, it goes on where it stopped.

What is done stands in a hidden draft beside the output, flushed as it grows, with a fingerprint of
the input, the model and the options. The draft takes the output's name when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

from dragoman.errors import CorpusError, MachineError

_READ_BYTES: Final = 1 << 20
_FLUSH_LINES: Final = 256
TranslateLines = Callable[[Iterable[str], int], Iterator[str]]
"""(lines, the number of the first) -> for each line what is written for it, newlines included."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Lines that are done, and the bytes of input behind them of all its bytes."""

    lines: int
    done_bytes: int
    all_bytes: int


def translate_file(
    source: Path,
    output: Path,
    translate: TranslateLines,
    *,
    identity: dict[str, Any],
    numbered: bool,
    progress: Callable[[Progress], None] = lambda _: None,
) -> int:
    """Translate every line of a file; returns how many an earlier attempt had done already.

    identity: what decides the output beside the input; another one starts anew.
    numbered: whether a line's output is several lines that begin with its number.
    Raises CorpusError where the input is missing or not UTF-8, MachineError where the output
    cannot be written; what is done stays in the draft then.
    """
    size = _size(source)
    draft = output.with_name(f".{output.name}.partial")
    record = output.with_name(f".{output.name}.partial.json")
    with input_lines(source) as reader:
        try:
            done = _resume(draft, record, _fingerprint(source, identity), numbered=numbered)
            with draft.open("ab") as out:
                for _ in islice(reader.raw(), done):
                    pass
                for number, written in enumerate(translate(reader.text(), done + 1), done + 1):
                    out.write(written.encode())
                    if number % _FLUSH_LINES == 0:
                        out.flush()
                        progress(Progress(number, reader.bytes_read, size))
                out.flush()
                os.fsync(out.fileno())
            draft.replace(output)
            record.unlink()
        except OSError as error:
            raise MachineError(
                f"cannot be written: {error.strerror}",
                place=output,
                remedy="free disk space or name another --output; the same command goes on",
            ) from error
    return done


class LineReader:
    """Lines of a binary stream, ended by newlines alone, and how far it was read."""

    def __init__(self, stream: IO[bytes], *, name: str) -> None:
        self._stream = stream
        self._name = name
        self._number = 0
        self.bytes_read = 0

    def raw(self) -> Iterator[bytes]:
        """Lines as bytes."""
        for line in self._stream:
            self._number += 1
            self.bytes_read += len(line)
            yield line

    def text(self) -> Iterator[str]:
        """Lines as text without their ends; raises CorpusError that names one not in UTF-8."""
        for line in self.raw():
            try:
                yield line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise CorpusError(
                    "is not UTF-8",
                    place=f"{self._name}, line {self._number}",
                    remedy="convert it, for example with: iconv -f latin1 -t utf-8",
                ) from error


def _size(source: Path) -> int:
    try:
        return source.stat().st_size
    except OSError as error:
        raise CorpusError("no such file", place=source, remedy="check its name") from error


def _fingerprint(source: Path, identity: dict[str, Any]) -> str:
    status = source.stat()
    values = [str(source.resolve()), status.st_size, status.st_mtime_ns, identity]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _resume(draft: Path, record: Path, fingerprint: str, *, numbered: bool) -> int:
    """Bring the draft to the end of its last whole line; the number of input lines behind it."""
    try:
        known = json.loads(record.read_bytes())["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        known = None
    if known != fingerprint or not draft.exists():
        draft.unlink(missing_ok=True)
        record.write_text(json.dumps({"fingerprint": fingerprint}), encoding="utf-8")
        return 0
    with draft.open("r+b") as file:
        kept, done = _whole_numbered(file) if numbered else _whole(file)
        file.truncate(kept)
    return done


def _whole(file: IO[bytes]) -> tuple[int, int]:
    """(Bytes up to the last newline, lines in them)."""
    kept = done = position = 0
    while block := file.read(_READ_BYTES):
        lines = block.count(b"\n")
        if lines:
            kept, done = position + block.rindex(b"\n") + 1, done + lines
        position += len(block)
    return kept, done


def _whole_numbered(file: IO[bytes]) -> tuple[int, int]:
    """The same where lines begin with numbers; those with the last number may not be complete."""
    kept = position = 0
    last = b""
    for line in file:
        number = line.partition(b"\t")[0]
        if number != last:
            kept, last = position, number
        position += len(line)
    return kept, max(0, int(last or b"1") - 1)


@contextmanager
def input_lines(path: Path | None) -> Iterator[LineReader]:
    """Lines of a file, or of the standard input; raises CorpusError where it cannot be opened."""
    name = "standard input" if path is None else str(path)
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(
                open(0 if path is None else path, "rb", closefd=path is not None)
            )
        except OSError as error:
            raise CorpusError(
                f"cannot be read: {error.strerror}", place=name, remedy="check its name"
            ) from error
        yield LineReader(stream, name=name)


@contextmanager
def write_errors_named(place: str) -> Iterator[None]:
    """What cannot be written is a MachineError that names the place; a reader that has gone is not.

    Raises MachineError.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MachineError(
            f"cannot be written: {error.strerror}",
            place=place,
            remedy="free disk space or name another --output",
        ) from error
