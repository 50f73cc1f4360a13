"""A file translated line by line; broken off at any moment, it goes on where it stopped.

What is done stands in a hidden draft beside the output, with a record of how far it is sound and a
fingerprint of the input, the model and the options. The draft takes the output's name when it is
complete. Between groups of lines that are searched together alone is it gone on: a line in other
company could get another score, in its last digit, and the output would tell of the break. One
process alone writes a draft: of two, each would add its lines between those of the other.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

from dragoman.base.errors import ConfigError, CorpusError, MachineError
from dragoman.base.files import try_lock

_STANDARD_INPUT: Final = "standard input"
TranslateLines = Callable[[Iterable[str], int], Iterator[list[str]]]
"""(lines, the number of the first) -> group by group for each line what is written for it, newlines
included."""


@dataclass(frozen=True, slots=True)
class Done:
    """Lines of the input that are done, and the bytes of the draft that hold them."""

    lines: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Lines that are done, and the bytes of input behind them of all its bytes."""

    lines: int
    done_bytes: int
    all_bytes: int


def output_place(output: Path, source: Path | None) -> Path:
    """Where the output goes: what a link points to, so that the link stays.

    source: the standard input where it is None.
    Raises ConfigError where that is a directory or in one that is not there, or is the input, whose
    text would be lost.
    """
    if is_device(output):
        return output
    output = Path(os.path.realpath(output))
    if output.is_dir():
        raise ConfigError("is a directory", place=output, remedy="name a file with --output")
    if not output.parent.is_dir():
        there = output.parent.exists()
        raise ConfigError(
            "is no directory" if there else "no such directory",
            place=output.parent,
            remedy="name a file elsewhere with --output"
            if there
            else "make it with mkdir -p, or name a file elsewhere with --output",
        )
    with suppress(OSError):  # what is not there is told of when it is opened
        given = os.fstat(0) if source is None else source.stat()
        if os.path.samestat(given, output.stat()):
            raise ConfigError(
                "is the input too, whose text would be lost",
                place=output,
                remedy="name another file with --output",
            )
    return output


def is_device(output: Path) -> bool:
    """Whether this is to be written to as it is, and never to be replaced: /dev/null, a pipe."""
    if output.exists() and not output.is_file() and not output.is_dir():
        return True
    named = output.readlink() if output.is_symlink() else output.absolute()
    return str(named).startswith(("/proc/", "/dev/fd/"))  # such as /dev/stdout


def translate_file(
    source: Path,
    output: Path,
    translate: TranslateLines,
    *,
    identity: dict[str, Any],
    progress: Callable[[Progress], None] = lambda _: None,
) -> int:
    """Translate every line of a file; returns how many an earlier attempt had done already.

    identity: what decides the output beside the input; another one starts anew.
    Raises CorpusError where the input is missing or not UTF-8, MachineError where the output
    cannot be written or another process writes it; what is done stays in the draft then.
    """
    size = _size(source)
    draft = output.with_name(f".{output.name}.partial")
    record = output.with_name(f".{output.name}.partial.json")
    with input_lines(source) as reader, write_errors_named(str(output)):
        fingerprint = _fingerprint(source, identity)
        with _sole_draft(draft, output) as out:
            done = _resume(out, record, fingerprint)
            lines = sum(1 for _ in islice(reader.raw(), done.lines))
            for group in translate(reader.text(), done.lines + 1):
                out.write("".join(group).encode())
                out.flush()
                os.fsync(out.fileno())
                lines += len(group)
                _note(record, fingerprint, Done(lines, out.tell()))
                progress(Progress(lines, reader.bytes_read, size))
            draft.replace(output)
            for left in (record, _draft_of(record)):
                left.unlink(missing_ok=True)
    return done.lines


class LineReader:
    """Lines of a binary stream, ended by newlines alone, and how far it was read."""

    def __init__(self, stream: IO[bytes], *, name: str) -> None:
        self._stream = stream
        self._name = name
        self._number = 0
        self.bytes_read = 0

    def raw(self) -> Iterator[bytes]:
        """Lines as bytes; raises CorpusError where they cannot be read."""
        try:
            for line in self._stream:
                self._number += 1
                self.bytes_read += len(line)
                yield line
        except OSError as error:
            raise _unreadable(self._name, error) from error

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


@contextmanager
def _sole_draft(draft: Path, output: Path) -> Iterator[IO[bytes]]:
    """The draft, to add to, kept from other processes; raises MachineError where one has it."""
    with draft.open("ab") as file:
        try:
            # The other may have finished since, and what was opened be its output.
            sole = try_lock(file) and os.path.samestat(os.fstat(file.fileno()), draft.stat())
        except FileNotFoundError:
            sole = False
        if not sole:
            raise MachineError(
                "another process translates into it",
                place=output,
                remedy="wait for it, or name another file with --output",
            )
        yield file


def _resume(draft: IO[bytes], record: Path, fingerprint: str) -> Done:
    """Bring the draft to where it is sound and how far that is; an empty one where none is."""
    done = Done(0, 0)
    try:
        known = json.loads(record.read_bytes())
        lines, size_bytes = known["lines"], known["size_bytes"]
        sound = all(type(number) is int and number >= 0 for number in (lines, size_bytes))
        if sound and known["fingerprint"] == fingerprint and draft.tell() >= size_bytes:
            done = Done(lines, size_bytes)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    if not done.lines:  # else the draft of these options would be taken for that of the others
        record.unlink(missing_ok=True)
    draft.truncate(done.size_bytes)
    draft.seek(0, os.SEEK_END)
    return done


def _note(record: Path, fingerprint: str, done: Done) -> None:
    """Say how far the draft is sound, at once or not at all."""
    fresh = _draft_of(record)
    fresh.write_text(json.dumps({"fingerprint": fingerprint, **asdict(done)}), encoding="utf-8")
    fresh.replace(record)


def _draft_of(record: Path) -> Path:
    return record.with_name(f"{record.name}.new")


@contextmanager
def input_lines(path: Path | None) -> Iterator[LineReader]:
    """Lines of a file, or of the standard input; raises CorpusError where it cannot be opened."""
    name = _STANDARD_INPUT if path is None else str(path)
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(
                open(0 if path is None else path, "rb", closefd=path is not None)
            )
        except OSError as error:
            raise _unreadable(name, error) from error
        yield LineReader(stream, name=name)


def _unreadable(name: str, error: OSError) -> CorpusError:
    remedy = "name text with --input, or send it there" if name == _STANDARD_INPUT else ""
    return CorpusError(
        f"cannot be read: {error.strerror}", place=name, remedy=remedy or "check its name"
    )


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
            remedy="free disk space or name another --output, then run the same command again",
        ) from error
