"""What a host runs before anything of ours is there: a directory arrives, whole or not at all.

    python -c 'exec(...)' DIRECTORY NUM_FILES < archive

It says `have` where the directory exists, else `want`, and reads a tar archive of so many files.
The desk reads archives of hosts with the same function. Only the standard library is used.
"""

import os
import shutil
import socket
import sys
import tarfile
from pathlib import Path
from typing import IO


def unpack(stream: IO[bytes], directory: Path) -> int:
    """Write the plain files of a tar stream below the directory; returns how many there were.

    Links, devices, names that lead out of the directory and files inside of files are refused with
    a ValueError. Raises EOFError if the stream ends early, or is no archive.
    """
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            return sum(_write(archive, member, directory) for member in archive)
    except RecursionError as error:  # tarfile calls itself for each header that names the next
        raise EOFError("the archive has too many headers before a file") from error
    except tarfile.TarError as error:
        raise EOFError(f"the archive is not whole: {error}") from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise ValueError("a file and a folder of one name") from error


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, directory: Path) -> int:
    name = Path(member.name)
    # A sparse file of some bytes would fill the disk with what it claims to be.
    plain = member.isreg() and not member.issparse()
    content = archive.extractfile(member) if plain else None
    if content is None or name.is_absolute() or ".." in name.parts:
        raise ValueError(f"not a plain file: {member.name}")
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
    return 1


def receive(directory: Path, num_files: int) -> None:
    """Say whether the directory is wanted, and take it from standard input if so."""
    if directory.is_dir():
        print("have", flush=True)
        return
    print("want", flush=True)
    # Hosts that share the folder may be at it at once.
    writer = f"{socket.gethostname()}-{os.getpid()}"
    draft = directory.with_name(f".{directory.name}.{writer}.draft")
    draft.mkdir(parents=True)
    try:
        if unpack(sys.stdin.buffer, draft) != num_files:
            raise EOFError("the connection ended early")
        try:
            draft.rename(directory)
        except OSError:
            if not directory.is_dir():  # another was first
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    print("done", flush=True)


if __name__ == "__main__":
    receive(Path(sys.argv[1]), int(sys.argv[2]))
