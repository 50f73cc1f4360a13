"""Files that are whole or absent, and errors of disks as one line each."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, FileIO
from pathlib import Path
from typing import IO, Any, BinaryIO

from dragoman.base.errors import MachineError

STANDARD_OUTPUT = "standard output"
"""The file name of errors of standard output, for which the system has none."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
_NUMPY_WROTE_LESS = r"\d+ requested and \d+ written"


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that appears under its name when the block ends, or never.

    Raises: OSError as the system gives it; nothing is left behind then.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.unlink(missing_ok=True)
        with unfinished.open("xb") as file:  # never through a link of another user
            yield file
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """A directory to fill that appears under its name when the block ends, or never.

    Raises: OSError as the system gives it; nothing is left behind then.
    """
    # The number of the process keeps it apart from another that makes the same directory.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        unfinished.rename(path)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a small file so that it is whole or absent."""
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write an object into a file as JSON, a key a line."""
    import json  # a millisecond, which `dragoman --help` does without

    path.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def open_regular(path: Path) -> BufferedReader:
    """A file to read that another user may have made.

    Raises: OSError if it is not a regular file, nor a link to one. A pipe would block, and a device
    may have no end, or act when it is opened: neither is opened.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise _refusal(path, "is not a regular file")
    # It may be another file by now: O_NONBLOCK keeps the opening of a pipe from waiting.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise _refusal(path, "is not a regular file")
    return file


def open_to_append(path: Path) -> FileIO:
    """An unbuffered file to append to, which is made if it does not exist.

    Raises: OSError if a link, a pipe or a device is in its place: a link would send the data to
    another file, and a pipe would block.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    if path.is_symlink():
        raise _refusal(path, "is a link")
    if path.exists() and not path.is_file():
        raise _refusal(path, "is not a regular file")
    file = FileIO(os.open(path, flags, 0o666), "ab")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise _refusal(path, "is not a regular file")
    return file


def read_regular(path: Path, *, limit: int) -> bytes:
    """All of a regular file of at most `limit` bytes.

    Raises: OSError if it is longer or no regular file.
    """
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise _refusal(path, f"has more than {limit:,} bytes")
    return content


def try_lock(file: int | IO[bytes], *, shared: bool = False) -> bool:
    """Lock an open file or directory until it is closed; False if another process holds it.

    shared: several processes may hold it so at the same time, but none may hold it alone.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _refusal(path: Path, problem: str) -> OSError:
    return OSError(errno.EINVAL, problem, str(path))


def file_sha256(path: Path) -> str:
    """Digest of a regular file, in hexadecimal digits; raises OSError."""
    import hashlib  # it takes a tenth of `dragoman --help`

    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_tree(directory: Path) -> None:
    """Remove a directory and all in it, if it exists."""
    if directory.exists():
        shutil.rmtree(directory)


def is_full(error: OSError) -> bool:
    """Whether a write failed for lack of space, which numpy reports without the system's number."""
    return error.errno in _FULL or (
        error.errno is None and re.fullmatch(_NUMPY_WROTE_LESS, str(error)) is not None
    )


def as_machine_error(error: OSError, place: str | Path = "") -> MachineError:
    """An error of the system about a file or stream, as a MachineError with a remedy.

    place: stands in the message if the system names no file.
    """
    if error.filename:
        name = error.filename
        place = os.fsdecode(name) if isinstance(name, bytes) else str(name)
    if is_full(error):
        elsewhere = "send it elsewhere" if place == STANDARD_OUTPUT else "choose another directory"
        return MachineError(
            "the disk is full or a quota is reached",
            place=place,
            remedy=f"free space there or {elsewhere}, then run again: finished parts are kept",
        )
    if error.errno == errno.EROFS:
        return MachineError(
            "cannot be written: the file system is read-only",
            place=place,
            remedy="choose a directory that you may write to",
        )
    if error.errno in _FORBIDDEN:
        return MachineError(
            "permission denied",
            place=place,
            remedy="choose a directory that you may read and write, or change its permissions",
        )
    if error.errno == errno.ENOENT:
        return MachineError(
            "no such file or directory",
            place=place,
            remedy="check the path; if a directory was moved or removed, name its new place",
        )
    return MachineError(
        error.strerror or str(error), place=place, remedy="check the disk and the path"
    )


@contextmanager
def disk_errors_named(directory: Path) -> Iterator[None]:
    """Turn an error of the system about a disk into a MachineError with a remedy.

    directory: stands in the message if the system names no file.
    """
    try:
        yield
    except OSError as error:
        raise as_machine_error(error, directory) from error


def unwritable_name(error: UnicodeEncodeError) -> tuple[str, str]:
    """Problem and remedy of a file name that the locale or UTF-8 cannot encode."""
    character = error.object[error.start]
    if sys.getfilesystemencoding() != "utf-8":
        return (
            "a file or folder has a name that is not ASCII, and the locale is not UTF-8",
            "set LC_ALL=C.UTF-8 or PYTHONUTF8=1",
        )
    if "\udc80" <= character <= "\udcff":
        byte = ord(character) - 0xDC00
        return (
            f"a file or folder has the byte 0x{byte:02x} in its name, which is not UTF-8",
            "rename it",
        )
    return f"{error.encoding} has no character {character!a}", "rename that file or folder"
