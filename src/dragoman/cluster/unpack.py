"""A script that receives a directory on a host before our code is there, whole or not at all.

    python -c 'exec(...)' DIRECTORY NUM_FILES < archive

It prints `have` if the directory exists. Otherwise it prints `want`, reads a tar archive of
NUM_FILES files, and prints `done`. The controller reads archives from hosts with `unpack`, too.
Only the standard library is used.
"""

import os
import shutil
import socket
import sys
import tarfile
from pathlib import Path
from typing import IO

LONGEST_HEADER_BYTES = 1 << 13
WANT = "want"


def unpack(stream: IO[bytes], directory: Path) -> int:
    """Write the plain files of a tar stream below the directory; returns how many there were.

    Raises ValueError for all but plain files (folders, links, devices, sparse files), for absolute
    names and names with `..`, for files inside of files, and for headers that are longer than 8 KiB
    or contradict each other. Raises EOFError if the stream ends early, or is not an archive.
    """
    try:
        return _unpack(_Forward(stream), directory)
    except RecursionError as error:  # tarfile calls itself for each header that names the next
        raise EOFError("the archive has too many headers before a file") from error
    except tarfile.TarError as error:
        raise EOFError(f"the archive is not whole: {error}") from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise ValueError("a file and a folder of one name") from error


class _Forward:
    """The part of a file's interface with which tarfile reads headers from a pipe, in small pieces.

    tarfile reads a header of any size at once: one of 1 GB would fill the memory.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._position = 0

    def tell(self) -> int:
        """Bytes that were read or skipped."""
        return self._position

    def seek(self, position: int) -> int:
        """Skip to a position; ValueError if it was passed already."""
        if position < self._position:
            raise ValueError("its headers contradict each other")
        while position > self._position and self.piece(position - self._position):
            pass
        return self._position

    def read(self, size: int) -> bytes:
        """The next bytes, fewer at the end; ValueError for more than a header may have."""
        if not 0 <= size <= LONGEST_HEADER_BYTES:
            raise ValueError(f"a header in it is longer than {LONGEST_HEADER_BYTES >> 10} KiB")
        return self._take(size)

    def piece(self, size: int) -> bytes:
        """At most 1 MiB of the next bytes; none at the end."""
        return self._take(min(size, 1 << 20))

    def _take(self, size: int) -> bytes:
        taken = self._stream.read(size)
        self._position += len(taken)
        return taken


def _unpack(stream: _Forward, directory: Path) -> int:
    num_files = 0
    with tarfile.open(fileobj=stream, mode="r:") as archive:  # type: ignore[call-overload]
        while (member := archive.next()) is not None:
            archive.members.clear()  # otherwise it keeps them all
            _write(stream, member, directory)
            num_files += 1
    # Without this the sender would find the pipe closed before it has sent the archive's padding.
    stream.piece(-stream.tell() % tarfile.RECORDSIZE)
    return num_files


def _write(stream: _Forward, member: tarfile.TarInfo, directory: Path) -> None:
    name = Path(member.name)
    # A sparse file of a few bytes would fill the disk with the size that it claims.
    plain = member.isreg() and not member.issparse()
    if not plain or name.is_absolute() or ".." in name.parts:
        raise ValueError(f"not a plain file: {member.name}")
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        stream.seek(member.offset_data)
        left = member.size
        while left > 0:
            piece = stream.piece(left)
            if not piece:
                raise EOFError("the archive is not whole: it ends within a file")
            file.write(piece)
            left -= len(piece)


def receive(directory: Path, num_files: int) -> None:
    """Print whether the directory is wanted; if so, read it from standard input and print `done`.

    Raises ValueError or EOFError, as `unpack` does, and EOFError if there are not `num_files`.
    """
    if directory.is_dir():
        print("have", flush=True)
        return
    print(WANT, flush=True)
    # Hosts that share the folder may write at the same time.
    writer = f"{socket.gethostname()}-{os.getpid()}"
    draft = directory.with_name(f".{directory.name}.{writer}.draft")
    draft.mkdir(parents=True)
    try:
        if unpack(sys.stdin.buffer, draft) != num_files:
            raise EOFError("the connection ended early")
        try:
            draft.rename(directory)
        except OSError:
            if not directory.is_dir():  # otherwise another host was first
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    print("done", flush=True)


if __name__ == "__main__":
    receive(Path(sys.argv[1]), int(sys.argv[2]))
