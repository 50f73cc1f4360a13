"""Copies directories to a host: code, prepared data, the files of a run, a checkpoint.

A directory's name on the host says what it holds (a digest, a run, a step), and the directory
appears there whole or not at all. A directory that exists already is not sent again, even if
another host wrote it into a shared folder.

The files travel as a tar stream over the open connection, not by rsync: a host needs nothing but
Python, and each name that a host sends is checked before it is written here.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dragoman.cluster import ssh, unpack
from dragoman.cluster.hosts import Host

_PACKAGE: Final = Path(__file__).resolve().parents[1]
_NOT_CODE: Final = ("__pycache__", "shipped")
"""Shipped recipes do not run on a host, so they are not sent: a run carries its own recipe."""
READ_PROGRAM: Final = "import sys; exec(sys.stdin.buffer.read(int(sys.argv.pop(1))))"
"""Reads a program of a given number of bytes from standard input and runs it: it need not be
installed on the host."""
_WANT: Final = f"{unpack.WANT}\n".encode()
_PROGRAM: Final = Path(unpack.__file__).read_bytes()

Content = Path | bytes


@dataclass(frozen=True, slots=True)
class Parcel:
    """A directory for a host: its place below the host's folder, and its files by name."""

    place: str
    files: Mapping[str, Content]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(
            len(content) if isinstance(content, bytes) else content.stat().st_size
            for content in self.files.values()
        )

    def send(self, host: Host) -> bool:
        """Copy the directory to the host; False if it was there. Raises MachineError."""
        command = receive_command(host, self.place, str(len(self.files)))
        with ssh.transfer(host, command, first=_PROGRAM) as transfer:
            wanted = transfer.output.readline(len(_WANT)) == _WANT
            if wanted:
                self._write(transfer)
        return wanted

    def _write(self, stream: ssh.Transfer) -> None:
        with tarfile.open(fileobj=stream, mode="w|") as archive:  # type: ignore[call-overload]
            for name, content in self.files.items():
                entry = tarfile.TarInfo(name)
                if isinstance(content, bytes):
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))
                else:
                    entry.size = content.stat().st_size
                    with content.open("rb") as file:
                        archive.addfile(entry, file)


def receive_command(host: Host, place: str, num_files: str) -> list[str]:
    """The command that receives a directory of `num_files` files at this place below a host's
    folder.

    Its standard input is the receiving program, then a tar archive.
    """
    length = str(len(_PROGRAM))
    return [host.python, "-c", READ_PROGRAM, length, f"{host.folder}/{place}", num_files]


def read_code(package: Path = _PACKAGE) -> dict[str, bytes]:
    """The present contents of the package's files, by their sorted paths below it."""
    found = (path for path in package.rglob("*") if path.is_file())
    named = {path.relative_to(package).as_posix(): path for path in found}
    return {
        name: named[name].read_bytes()
        for name in sorted(named)
        if not any(part in _NOT_CODE for part in Path(name).parts)
    }


def code_digest(code: Mapping[str, bytes]) -> str:
    """sha256 of the names and contents of code, in hexadecimal digits."""
    whole = hashlib.sha256()
    for name, content in code.items():
        whole.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return whole.hexdigest()


def code_place(digest: str) -> str:
    """The path, relative to a host's folder, of the code with this digest."""
    return f"code/{digest[:16]}"


def code_parcel(code: Mapping[str, bytes]) -> Parcel:
    """Code, as a parcel for a host."""
    files = {f"dragoman/{name}": content for name, content in code.items()}
    return Parcel(code_place(code_digest(code)), files)


def directory_parcel(place: str, directory: Path) -> Parcel:
    """All files below a directory, as a parcel for a host."""
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    return Parcel(place, {path.relative_to(directory).as_posix(): path for path in found})
