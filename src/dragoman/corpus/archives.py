"""Archives and packed files of strangers: single texts of them, unpacked within limits.

No file is ever written under a name from an archive: a member's name is compared with the wanted
name, and its bytes go into a file that is named here. So links, devices, absolute names and `..`
have no effect. Sizes are limited, because a small file may unpack to any number of bytes.
"""

from __future__ import annotations

import fnmatch
import re
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Final, Self

from dragoman.corpus.pairs import MOST_TIMES, PIECE_BYTES, unpacked

ALWAYS_ALLOWED_BYTES: Final = 1 << 30
_ZIP_PACKINGS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""zipfile unpacks the others without a bound on the result of one read."""
_OF_MACOS: Final = "__MACOSX/"
"""The folder that macOS adds to archives."""
_LONGEST_HEADER_BYTES: Final = 1 << 16
"""The longest name or header of a tar member that tarfile may read at once, and parse slowly."""
_HEADERS: Final = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_PACKED_SUFFIXES: Final = (".gz", ".bz2", ".xz", ".zst")
_SUFFIX: Final = re.compile(r"\.[A-Za-z0-9]{1,10}")


def unpack_file(file: Path, folder: Path) -> Path:
    """A file in `folder` with the text of a file that may be packed.

    Raises ValueError or DamagedError if it cannot be unpacked or breaks a limit.
    """
    with file.open("rb") as packed:
        return _write(_limited(unpacked(_pieces(packed)), file), folder / "0", file.name)


def unpack_members(archive: Path, patterns: Sequence[str], folder: Path) -> list[Path]:
    """Files in `folder` with the texts of archive members, one member for each pattern of names.

    Raises the errors of `unpack_file`; ValueError if a pattern matches no member or several, or a
    member that is not a file; the errors of zipfile and tarfile for damaged archives.
    """
    unpack = _unzip if zipfile.is_zipfile(archive) else _untar
    return unpack(archive, patterns, folder)


def open_member(archive: Path, pattern: str) -> Iterator[bytes]:
    """The bytes of the one member of a zip archive whose name matches, a bounded piece at a time.

    Raises ValueError if not exactly one name matches, if the member is packed but not with deflate,
    or if the archive breaks a limit; also the errors of zipfile.
    """
    with zipfile.ZipFile(archive) as opened, opened.open(_only(opened, pattern)) as member:
        yield from _limited(_pieces(member), archive)


def member_names(archive: Path) -> list[str]:
    """The names in a zip archive; raises the errors of zipfile."""
    with zipfile.ZipFile(archive) as opened:
        return [name for name in opened.namelist() if not name.startswith(_OF_MACOS)]


def _unzip(archive: Path, patterns: Sequence[str], folder: Path) -> list[Path]:
    paths = []
    with zipfile.ZipFile(archive) as opened:
        for number, pattern in enumerate(patterns):
            info = _only(opened, pattern)
            with opened.open(info) as member:
                pieces = _limited(unpacked(_pieces(member)), archive)
                paths.append(_write(pieces, folder / f"{number}", info.filename))
    return paths


def _only(opened: zipfile.ZipFile, pattern: str) -> zipfile.ZipInfo:
    names = fnmatch.filter(opened.namelist(), pattern)
    names = [name for name in names if not name.startswith(_OF_MACOS)]
    if len(names) != 1:
        raise _no_single_member(pattern, len(names))
    info = opened.getinfo(names[0])
    if info.compress_type not in _ZIP_PACKINGS:
        raise ValueError(f"{names[0][-80:]!r} in it is not packed with deflate: unpack it yourself")
    return info


def _untar(archive: Path, patterns: Sequence[str], folder: Path) -> list[Path]:
    found: list[dict[str, Path]] = [{} for _ in patterns]
    with (
        archive.open("rb") as file,
        tarfile.open(  # type: ignore[call-overload]  # it needs no more of a file than `read`
            fileobj=_Stream(_limited(unpacked(_pieces(file)), archive)),
            mode="r|",
            bufsize=PIECE_BYTES,
            tarinfo=_Member,
        ) as opened,
    ):
        for member in opened:
            opened.members.clear()  # otherwise it keeps them all
            if member.size > _most_bytes(archive):  # tarfile would skip them for ever
                raise _too_large(archive)
            # If two members have one name, the later one counts, as it does for tar.
            name = PurePosixPath("/", member.name.lstrip("/"))
            for number, pattern in enumerate(patterns):
                if member.isdir() or not name.match(f"/{pattern}"):
                    continue
                text = None if member.issparse() or not member.isreg() else member
                content = text and opened.extractfile(text)
                if not content:
                    raise ValueError(f"{member.name[-80:]!r} in it is not a plain file")
                pieces = _limited(unpacked(_pieces(content)), archive)
                found[number][str(name)] = _write(pieces, folder / f"{number}", member.name)
                break
    for pattern, members in zip(patterns, found, strict=True):
        if len(members) != 1:
            raise _no_single_member(pattern, len(members))
    return [path for members in found for path in members.values()]


def _no_single_member(pattern: str, count: int) -> ValueError:
    return ValueError(f"{count} files in it are called {pattern}, which must be one")


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        yield piece


def _limited(pieces: Iterator[bytes], file: Path) -> Iterator[bytes]:
    """The pieces unchanged; ValueError once they are too many bytes for what this file holds."""
    left = _most_bytes(file)
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise _too_large(file)
        yield piece


def _most_bytes(file: Path) -> int:
    return max(ALWAYS_ALLOWED_BYTES, MOST_TIMES * file.stat().st_size)


def _too_large(file: Path) -> ValueError:
    return ValueError(
        f"{file.name} unpacks to more than {MOST_TIMES} times its size and "
        f"{ALWAYS_ALLOWED_BYTES >> 20} MiB"
    )


def _write(pieces: Iterator[bytes], path: Path, name: str) -> Path:
    """Write a text to `path` with the suffix of `name`, except that of packing; returns it."""
    known = PurePosixPath(name)
    if known.suffix in _PACKED_SUFFIXES:
        known = known.with_suffix("")
    if _SUFFIX.fullmatch(known.suffix):
        path = path.with_suffix(known.suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.writelines(pieces)
    return path


class _Member(tarfile.TarInfo):
    """A header of a tar; ValueError if one that describes the next member is too long."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """The header in these bytes."""
        header = super().frombuf(buf, encoding, errors)
        if header.type in _HEADERS and header.size > _LONGEST_HEADER_BYTES:
            raise ValueError(f"a header in it is longer than {_LONGEST_HEADER_BYTES >> 10} KiB")
        return header


class _Stream:
    """Pieces of bytes that are read one after the other."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = b""

    def read(self, size: int) -> bytes:
        """The next bytes, at most so many; b"" at the end."""
        self._piece = self._piece or next(self._pieces, b"")
        taken, self._piece = self._piece[:size], self._piece[size:]
        return taken
