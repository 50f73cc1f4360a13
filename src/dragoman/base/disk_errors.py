"""System errors about files and disks, as one line each."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman.base.errors import ConfigError, DragomanError, MachineError

STANDARD_OUTPUT = "standard output"
"""The file name of errors of standard output, for which the system has none."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
_TOO_MANY_FILES = {
    errno.EMFILE: "let a process open more files: ulimit -n 65536; if the shell refuses, raise "
    "`nofile` in /etc/security/limits.conf",
    errno.ENFILE: "close other programs, or raise the limit of the machine: sysctl fs.file-max",
}
"""Remedies, whatever the file was opened for."""
_NUMPY_WROTE_LESS = r"\d+ requested and \d+ written"


def is_full(error: OSError) -> bool:
    """Whether a write failed for lack of space; numpy reports this without an errno."""
    return error.errno in _FULL or (
        error.errno is None and re.fullmatch(_NUMPY_WROTE_LESS, str(error)) is not None
    )


def as_machine_error(error: OSError, place: str | Path = "") -> MachineError:
    """A system error about a file or stream, as a MachineError with a remedy.

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
        error.strerror or str(error),
        place=place,
        remedy=_TOO_MANY_FILES.get(error.errno or 0, "check the disk and the path"),
    )


def correct_remedy(error: DragomanError) -> None:
    """Give the error the remedy of its cause, if that is too many open files.

    Who opens a file knows a remedy for a wrong name or disk, not for this.
    """
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno in _TOO_MANY_FILES:
        error.set_words(remedy=_TOO_MANY_FILES[cause.errno])


@contextmanager
def disk_errors_named(directory: Path) -> Iterator[None]:
    """Turn a system error about a disk into a MachineError with a remedy.

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


def check_writable_names(paths: Iterable[Path]) -> None:
    """Raises ConfigError if a path cannot stand in a record of a run, which is UTF-8."""
    for path in paths:
        try:
            str(path).encode()
        except UnicodeEncodeError as error:
            problem, remedy = unwritable_name(error)
            raise ConfigError(problem, place=path, remedy=remedy) from error
