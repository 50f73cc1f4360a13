"""Files that are whole or absent, and a disk's troubles as one line each."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dragoman.errors import MachineError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that appears under its name when the block ends, or never.

    Raises: OSError as the system gives it; nothing is left behind then.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with unfinished.open("wb") as file:
            yield file
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a small file so that it is whole or absent."""
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def file_sha256(path: Path) -> str:
    """Digest of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_tree(directory: Path) -> None:
    """Remove a directory and all in it; one that is not there is fine."""
    if directory.exists():
        shutil.rmtree(directory)


@contextmanager
def disk_errors_named(directory: Path) -> Iterator[None]:
    """Turn what the system says of a disk into a MachineError with a remedy.

    directory: named where the system names no file.
    """
    try:
        yield
    except OSError as error:
        place = error.filename or directory
        if error.errno in _FULL:
            raise MachineError(
                "the disk is full or a quota is reached",
                place=place,
                remedy="free space there or choose another directory, then run again: "
                "finished parts are kept",
            ) from error
        if error.errno in _FORBIDDEN:
            raise MachineError(
                "cannot be written",
                place=place,
                remedy="choose a directory that you may write to",
            ) from error
        raise MachineError(
            error.strerror or str(error), place=place, remedy="check the disk and the path"
        ) from error
