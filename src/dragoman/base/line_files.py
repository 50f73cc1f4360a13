"""A file made from another, line by line, which can be resumed after an interruption.

The finished lines are in a hidden draft beside the output, with a record of its sound size and a
fingerprint of the input and of everything else that decides the output. The draft takes the
output's name when it is complete. Only one process may write a draft: two would mix their lines.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from dragoman.base.errors import ConfigError, CorpusError, MachineError
from dragoman.base.files import try_lock

_STANDARD_INPUT: Final = "standard input"
_PACKED: Final = {
    b"\x1f\x8b": "gzip -dc",
    b"BZh": "bzip2 -dc",
    b"\xfd7zXZ\x00": "xz -dc",
    b"\x28\xb5\x2f\xfd": "zstd -dc",
    b"PK\x03\x04": "unzip -p",
}
"""The first bytes of packed files, and the commands that unpack them."""
_PACKED_SUFFIXES: Final = frozenset({".gz", ".tgz", ".bz2", ".xz", ".zst", ".zip"})
UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
"""The first bytes of text in UTF-16."""
_HEAD_BYTES: Final = 8
_SAY_EVERY_S: Final = 10.0
TransformLines = Callable[[Iterable[str], int], Iterator[list[str]]]
"""(lines, the number of the first) -> the text for each line, group by group."""


@dataclass(frozen=True, slots=True)
class FileProgress:
    """Finished lines, the bytes of input that they came from, and all bytes of input."""

    lines: int
    done_bytes: int
    all_bytes: int

    @property
    def share(self) -> float:
        """The finished share of the input, 0 to 1."""
        return self.done_bytes / self.all_bytes if self.all_bytes else 1.0

    @property
    def text(self) -> str:
        """The progress in words, for people."""
        return f"{self.lines:,} lines, {self.share:.0%}"


def transform_file(
    source: Path,
    output: Path,
    transform: TransformLines,
    *,
    identity: dict[str, Any],
    engine: str = "",
    tally: Counter[str] | None = None,
    progress: Callable[[FileProgress], None] = lambda _: None,
) -> int:
    """Transform every line of a file; returns the number of lines that an earlier attempt did.

    transform: gives a text for each line, which may be empty or of several lines.
    identity: everything beside the input that decides the output; if it has changed, the work
        starts again.
    engine: decides the output as well, but the machine may have chosen it. If another engine began
        the output, the call is refused, so that its finished lines are not lost.
    tally: counts that `transform` increases before it yields a group; those of an earlier attempt
        are added.
    Raises CorpusError if the input is missing or not UTF-8, ConfigError if another engine began it,
    MachineError if the output cannot be written or another process is writing it. After
    an error the draft keeps the finished lines.
    """
    try:
        status = source.stat()
    except OSError as error:
        raise CorpusError("no such file", place=source, remedy="check its name") from error
    draft = output.with_name(f".{output.name}.partial")
    record = output.with_name(f".{output.name}.partial.json")
    fresh = record.with_name(f"{record.name}.new")
    with input_lines(source) as reader, write_errors_named(str(output)):
        values = [str(source.resolve()), status.st_size, status.st_mtime_ns, identity]
        fingerprint = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        with _locked_draft(draft, output) as out:
            tally = Counter() if tally is None else tally
            done, size_bytes = _sound_part(out, record, fingerprint, engine, tally)
            lines = sum(1 for _ in itertools.islice(reader.raw(), done))
            done_bytes = reader.bytes_read
            ends: deque[int] = deque()  # of the lines that were read ahead

            def read_ahead() -> Iterator[str]:
                for line in reader.text():
                    ends.append(reader.bytes_read)
                    yield line

            is_cut = False
            for group in transform(read_ahead(), done + 1):
                if not is_cut:  # not before there is something better: other options may be refused
                    _cut(out, record, size_bytes)
                    is_cut = True
                out.write("".join(group).encode())
                out.flush()
                os.fsync(out.fileno())
                lines += len(group)
                for _ in group:
                    done_bytes = ends.popleft()
                known = {
                    "fingerprint": fingerprint,
                    "engine": engine,
                    "lines": lines,
                    "size_bytes": out.tell(),
                    "tally": tally,
                }
                fresh.write_text(json.dumps(known), encoding="utf-8")
                fresh.replace(record)
                progress(FileProgress(lines, done_bytes, status.st_size))
            if not is_cut:
                _cut(out, record, size_bytes)
            draft.replace(output)
            for left in (record, fresh):
                left.unlink(missing_ok=True)
    return done


class InputReader:
    """Lines of a binary stream, ended by newlines alone, and how far it was read."""

    def __init__(self, stream: IO[bytes], *, name: str) -> None:
        self._stream = stream
        self._name = name
        self._number = 0
        self._head = b""
        self.bytes_read = 0

    def raw(self) -> Iterator[bytes]:
        """Lines as bytes; raises CorpusError if they cannot be read."""
        try:
            for line in self._stream:
                self._head = self._head or line[:_HEAD_BYTES]
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
                raise not_utf8(self._name, line=self._number, head=self._head) from error


def not_utf8(name: object, *, line: int, head: bytes) -> CorpusError:
    """The error for a file with bytes that are not text. head: the first bytes of the file."""
    for magic, command in _PACKED.items():
        if head.startswith(magic):
            return CorpusError(
                "is packed", place=str(name), remedy=f"unpack it: {command} FILE > TEXT"
            )
    known = head.startswith(UTF_16)
    return CorpusError(
        "is not UTF-8",
        place=f"{name}, line {line}",
        remedy="convert it, for example with: iconv -f utf-16 -t utf-8"
        if known
        else "convert it from its encoding, for example with: iconv -f latin1 -t utf-8 "
        "(or windows-1250, windows-1251, ...)",
    )


@contextmanager
def input_lines(path: Path | None) -> Iterator[InputReader]:
    """Lines of a file, or of the standard input; raises CorpusError if it cannot be opened."""
    name = _STANDARD_INPUT if path is None else str(path)
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(
                open(0 if path is None else path, "rb", closefd=path is not None)
            )
        except OSError as error:
            raise _unreadable(name, error) from error
        yield InputReader(stream, name=name)


def _unreadable(name: str, error: OSError) -> CorpusError:
    remedy = "name a text, or send it there" if name == _STANDARD_INPUT else ""
    return CorpusError(
        f"cannot be read: {error.strerror}", place=name, remedy=remedy or "check its name"
    )


def output_place(output: Path, source: Path | None) -> Path:
    """The path to write to: the target of a link, so that the link stays.

    source: the input; None: the standard input.
    Raises ConfigError if the output is "-" or a directory, if its name is that of a packed file, if
    its directory does not exist, or if it is the input, whose text would be lost.
    """
    if is_device(output):
        return output
    if str(output) == "-":
        raise ConfigError(
            "does not stand for the standard output",
            place=output,
            remedy="name a file",
        )
    output = Path(os.path.realpath(output))
    if output.suffix.lower() in _PACKED_SUFFIXES:
        raise ConfigError(
            f"is plain text whatever its name, so it should not end in {output.suffix}",
            place=output,
            remedy=f"name {output.with_suffix('')} as the output, and pack that",
        )
    if output.is_dir():
        raise ConfigError("is a directory", place=output, remedy="name a file as the output")
    if not output.parent.is_dir():
        there = output.parent.exists()
        raise ConfigError(
            "is not a directory" if there else "no such directory",
            place=output.parent,
            remedy="name a file elsewhere as the output"
            if there
            else "make it with mkdir -p, or name a file elsewhere as the output",
        )
    with suppress(OSError):  # a missing input is reported when it is opened
        given = os.fstat(0) if source is None else source.stat()
        if os.path.samestat(given, output.stat()):
            raise ConfigError(
                "is the input too, whose text would be lost",
                place=output,
                remedy="name another file as the output",
            )
    return output


def is_device(output: Path) -> bool:
    """Whether the output must be written directly and never replaced: /dev/null, a pipe."""
    if output.exists() and not output.is_file() and not output.is_dir():
        return True
    named = output.readlink() if output.is_symlink() else output.absolute()
    return str(named).startswith(("/proc/", "/dev/fd/"))  # such as /dev/stdout


@contextmanager
def _locked_draft(draft: Path, output: Path) -> Iterator[IO[bytes]]:
    """The draft, opened to append and locked; raises MachineError if another process has it.

    An error before the first line removes it.
    """
    with draft.open("ab") as file:
        try:
            # The other may have finished since; then the open file is its output.
            locked = try_lock(file) and os.path.samestat(os.fstat(file.fileno()), draft.stat())
        except FileNotFoundError:
            locked = False
        if not locked:
            raise MachineError(
                "another process is writing it",
                place=output,
                remedy="wait for it, or name another file as the output",
            )
        try:
            yield file
        except BaseException:
            if os.fstat(file.fileno()).st_size == 0:
                draft.unlink(missing_ok=True)
            raise


def _sound_part(
    draft: IO[bytes], record: Path, fingerprint: str, engine: str, tally: Counter[str]
) -> tuple[int, int]:
    """The number of input lines whose output is in the draft, and the size of that output in bytes.

    Both are 0 if the draft is missing or does not fit. The counts of its lines are added to tally.
    Raises ConfigError if another engine has made them.
    """
    try:
        known = json.loads(record.read_bytes())
        numbers = known["lines"], known["size_bytes"]
        counts = known["tally"]
        sound = all(type(number) is int and number >= 0 for number in (*numbers, *counts.values()))
        if sound and known["fingerprint"] == fingerprint and draft.tell() >= numbers[1]:
            if known["engine"] != engine:
                raise ConfigError(
                    f"{known['engine']} has made the {numbers[0]:,} finished lines, and {engine} "
                    "would make the others",
                    place=draft.name,
                    remedy="go on as it was begun, with Ray or without and on such a machine, or "
                    "remove this file to begin anew",
                )
            tally.update(counts)
            return numbers
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return 0, 0


def _cut(draft: IO[bytes], record: Path, size_bytes: int) -> None:
    """Cut the draft to its sound part."""
    if not size_bytes:  # else the draft of these options would be taken for that of the others
        record.unlink(missing_ok=True)
    draft.truncate(size_bytes)
    draft.seek(0, os.SEEK_END)


@contextmanager
def write_errors_named(place: str) -> Iterator[None]:
    """Turn a failed write into a MachineError that names the place, unless the reader has gone."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MachineError(
            f"cannot be written: {error.strerror}",
            place=place,
            remedy="free disk space or name another output, then run the same command again",
        ) from error


@contextmanager
def progress_bar() -> Iterator[Callable[[FileProgress], None]]:
    """A bar on the standard error if that is a terminal; otherwise a line every ten seconds."""
    if not sys.stderr.isatty():
        said_at = time.monotonic()

        def say(progress: FileProgress) -> None:
            nonlocal said_at
            if time.monotonic() - said_at >= _SAY_EVERY_S:
                said_at = time.monotonic()
                print(progress.text, file=sys.stderr, flush=True)

        yield say
        return
    # Imported here: each worker that prepares text imports this module, and has no bar.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns: list[Any] = [
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[lines]:,} lines"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", lines=0)

        def show(progress: FileProgress) -> None:
            bar.update(
                task,
                completed=progress.done_bytes,
                total=progress.all_bytes,
                lines=progress.lines,
            )

        yield show
