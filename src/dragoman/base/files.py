"""Files that are whole or absent."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, BinaryIO


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that appears under its name when the block ends, or never.

    Raises: OSError as the system gives it; nothing is left behind then.
    """
    # Another machine that writes the same file over a network may have a process of this number.
    unfinished = path.with_name(f"{path.name}.{os.uname().nodename}.{os.getpid()}.tmp")
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
    """Write an object into a file as JSON, with one key per line."""
    path.write_bytes(json_bytes(values))


def json_bytes(values: dict[str, Any]) -> bytes:
    """An object as JSON, with one key per line."""
    import json  # a millisecond, which `dragoman --help` does not need

    return (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode()


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


def unpack_tar(archive: tarfile.TarFile, directory: Path) -> None:
    """Unpack files and directories of an archive, which may be a stream.

    Raises tarfile.TarError for an entry that would leave the directory, as `tarfile.data_filter`
    does.
    """
    if hasattr(tarfile, "data_filter"):
        archive.extractall(directory, filter="data")
        return
    # Python before 3.11.4 has no filters; Debian 12 brings 3.11.2.
    root = directory.resolve()
    for member in archive:
        stays = (root / member.name).resolve().is_relative_to(root)
        if not stays or not (member.isfile() or member.isdir()):
            raise tarfile.TarError(f"{member.name!r} is no file of the directory")
        member.mode &= 0o755
        archive.extract(member, directory)


def remove_tree(directory: Path) -> None:
    """Remove a directory and all in it, if it exists."""
    if directory.exists():
        shutil.rmtree(directory)
