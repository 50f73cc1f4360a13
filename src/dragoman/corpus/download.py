"""Files from servers of strangers: fetched whole or not at all, and unpacked within limits.

A download that breaks off is continued where it stopped, in this run or the next one; a page of
HTML instead of an archive (a login, a captcha, "not found" with status 200) is never kept.

No file is ever written under a name from an archive: a member's name is compared with the wanted
name, and its bytes go into a file that is named here. So links, devices, absolute names and `..`
have no effect. Sizes are limited, because a small file may unpack to any number of bytes.
"""

from __future__ import annotations

import fnmatch
import http.client
import io
import os
import re
import string
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import quote, urlsplit

from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import CorpusError, MachineError
from dragoman.base.files import write_whole
from dragoman.base.version import VERSION
from dragoman.corpus.pairs import MOST_TIMES, PIECE_BYTES, RUN_BYTES, unpacked

ATTEMPTS: Final = 5
_TIMEOUT_S: Final = 30
_STATED_TIMEOUT_S: Final = 10
_CHUNK_BYTES: Final = 1 << 20
_FIRST_BYTES: Final = 1 << 12
_HTML_STARTS: Final = (b"<!doctype html", b"<html", b"<head", b"<body", b"<script")
_PACKED_STARTS: Final = (b"\x1f\x8b", b"PK\x03\x04", b"\xfd7zXZ\x00", b"BZh", b"\x28\xb5\x2f\xfd")
_BY_HAND: Final = "fetch the corpus by hand and name its files as source and target in the recipe"
Sleep = Callable[[float], None]
LONGEST_LINE_BYTES: Final = RUN_BYTES
ALWAYS_ALLOWED_BYTES: Final = 1 << 30
MOST_MEMBERS: Final = 200_000
_LARGEST_LIST_BYTES: Final = 100 * MOST_MEMBERS
_ZIP_PACKINGS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""zipfile unpacks the others without a bound on the result of one read."""
_OF_MACOS: Final = "__MACOSX/"
"""The folder that macOS adds to archives."""
_LONGEST_HEADER_BYTES: Final = 1 << 13
"""The longest header of a tar member: Python reads it at once and parses it in quadratic time."""
_PACKED_SUFFIXES: Final = (".gz", ".bz2", ".xz", ".zst")
_SUFFIX: Final = re.compile(r"\.[A-Za-z0-9]{1,10}")


class UnreachableError(MachineError):
    """A server that could not be reached, or that broke off or was busy at each attempt."""


def download(url: str, path: Path, *, pause: Sleep = time.sleep) -> None:
    """Download `url` into the file `path`; a file that exists is used as it is.

    Until it is whole the file is called `<name>.part`. If a server breaks off, is busy or cannot be
    reached, it is tried ATTEMPTS times; pause(seconds) is called in between. Raises CorpusError if
    the server has no such file, or sends HTML or a file whose end cannot be known; UnreachableError
    if all attempts fail. Both name the URL.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _PartialFile(path)
    for attempt in range(ATTEMPTS):
        if attempt:
            pause(2.0**attempt)
        trouble = _attempt(url, part)
        if not trouble:
            part.finish()
            return
    raise UnreachableError(
        f"the download failed {ATTEMPTS} times: {trouble}",
        place=url,
        remedy="check the network and run again: the download resumes where it broke off",
    )


def stated_bytes(url: str) -> int | None:
    """The size that a server states for a file, without fetching it; None if it states none."""
    try:
        request = _request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=_STATED_TIMEOUT_S) as response:  # noqa: S310
            length = response.headers.get("Content-Length") or ""
            is_page = response.headers.get_content_type() == "text/html"
    except (http.client.HTTPException, OSError, ValueError):
        return None
    return int(length) if length.isdecimal() and int(length) and not is_page else None


def _request(url: str, *, method: str = "GET") -> urllib.request.Request:
    """A request for an address as people write it, with spaces and letters outside ASCII in it.

    Raises ValueError if it is no address.
    """
    host = urlsplit(url).netloc
    if not host.isascii():
        url = url.replace(host, host.encode("idna").decode(), 1)
    address = quote(url, safe=string.punctuation)  # what is percent-encoded stays as it is
    headers = {"User-Agent": f"dragoman/{VERSION}"}
    return urllib.request.Request(address, headers=headers, method=method)  # noqa: S310  (http or https: see `Listing`)


def _attempt(url: str, part: _PartialFile) -> str:
    """Fetch the missing part; returns a problem that the next attempt may not meet, or ""."""
    try:
        return part.fetch(url)
    except urllib.error.HTTPError as error:
        answer = f"the server answers {error.code} {error.reason}"
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            if error.headers.get("Content-Range") == f"bytes */{part.size_bytes}":
                return ""  # an earlier command had fetched all of it, but not given it its name
            part.forget()  # our part is not the beginning of the server's file
        elif error.code < 500 and error.code not in (408, 429):
            raise _refused(url, answer) from error
        return answer
    except (http.client.HTTPException, OSError) as error:
        return str(getattr(error, "reason", error)) or type(error).__name__
    except ValueError as error:  # from the parser of addresses
        raise _refused(url, f"is not an address to download from: {error}") from error


class _PartialFile:
    """The beginning of a file, and its version: the server's ETag or Last-Modified."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._version = path.with_name(f"{path.name}.version")

    @property
    def size_bytes(self) -> int:
        """The size of the part that is there."""
        return self._part.stat().st_size if self._part.exists() else 0

    def fetch(self, url: str) -> str:
        """Append the missing part; returns a problem, or "" if all is there.

        Raises CorpusError as `_check`, and the errors of urllib.
        """
        offset = self.size_bytes if self._version.exists() else 0
        request = _request(url)
        if offset:
            request.add_header("Range", f"bytes={offset}-")
            request.add_header("If-Range", self._version.read_text(encoding="utf-8"))
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
            if response.status != http.client.PARTIAL_CONTENT:
                offset = 0
            elif not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
                self.forget()
                return "the server sent a part that was not asked for"
            length = response.headers.get("Content-Length")
            if length is not None and not length.isdecimal():
                raise _refused(url, f"the server states {length!r} bytes, which is not a number")
            first = response.read(_FIRST_BYTES)
            if not offset:
                self._check(url, first, response)
                self.forget()
                version = response.headers.get("ETag") or response.headers.get("Last-Modified")
                if version and not version.startswith("W/"):  # weak tags allow different bytes
                    write_whole(self._version, version)
            size = offset + self._append(offset, first, response)
        if length is not None and size != offset + int(length):
            return f"the connection broke off after {size} bytes"
        return ""

    def forget(self) -> None:
        """Remove the part that was fetched, to start again."""
        self._part.unlink(missing_ok=True)
        self._version.unlink(missing_ok=True)

    def finish(self) -> None:
        """Give the file its name."""
        self._part.replace(self._path)
        self._version.unlink(missing_ok=True)

    def _append(self, offset: int, first: bytes, response: http.client.HTTPResponse) -> int:
        """Write all that arrives; returns its size."""
        size = 0
        disk = self._part.parent
        with disk_errors_named(disk):
            file = self._part.open("r+b" if offset else "wb")
        with file:
            file.seek(offset)
            chunk = first
            while chunk:
                with disk_errors_named(disk):
                    size += file.write(chunk)
                chunk = response.read1(_CHUNK_BYTES)  # a few bytes are kept, too
        return size

    def _check(self, url: str, first: bytes, response: http.client.HTTPResponse) -> None:
        """Raise CorpusError for HTML, and for text whose end cannot be known."""
        packed = first.startswith(_PACKED_STARTS)
        html = first.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith(_HTML_STARTS)
        if not packed and (html or response.headers.get_content_type() == "text/html"):
            raise _refused(url, "the server sends a page of HTML in place of the file")
        measured = response.headers.get("Content-Length") is not None or response.chunked
        if not packed and not measured:
            raise _refused(
                url, "the server does not say how long the file is, so a cut stays unseen"
            )


def _refused(url: str, problem: str) -> CorpusError:
    return CorpusError(
        problem, place=url, remedy=f"open the address in a browser to see; {_BY_HAND}"
    )


def unpack_file(file: Path, folder: Path, *, kind: str) -> Path:
    """A file in `folder` with the text of a file that may be packed.

    kind: the format of the text, as mtdata calls it ("txt", "tsv", "tmx" ...).
    Raises: ValueError or DamagedError if it cannot be unpacked or breaks a limit.
    """
    return _write(unpacked(_pieces(file)), folder / "0", file.name, _Bounds(file, kind))


def unpack_members(
    archive: Path, patterns: Sequence[str], folder: Path, *, kind: str
) -> list[Path]:
    """Files in `folder` with the texts of archive members, one member for each pattern of names.

    Raises: the errors of `unpack_file`; ValueError if a pattern matches no member or several, or a
    member that is not a file; the errors of zipfile and tarfile for damaged archives.
    """
    limits = _Bounds(archive, kind)
    if zipfile.is_zipfile(archive):
        return _unzip(archive, patterns, folder, limits)
    return _untar(archive, patterns, folder, limits)


class _Bounds:
    """Counts the bytes that come out of one archive or packed file."""

    def __init__(self, file: Path, kind: str) -> None:
        self._file = file.name
        self._left = max(ALWAYS_ALLOWED_BYTES, MOST_TIMES * file.stat().st_size)
        # In XML a text may have no lines, but it ends where a tag does.
        self._end_of_line = b">" if kind in ("tmx", "sgm", "wmt21xml") else b"\n"
        self._has_lines = kind != "xlsx"

    def counted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """The pieces unchanged; ValueError once they are too many bytes."""
        for piece in pieces:
            self._left -= len(piece)
            if self._left < 0:
                raise ValueError(
                    f"{self._file} unpacks to more than {MOST_TIMES} times its size "
                    f"and {ALWAYS_ALLOWED_BYTES >> 20} MiB"
                )
            yield piece

    def with_lines(self, pieces: Iterator[bytes], member: str) -> Iterator[bytes]:
        """The pieces unchanged; ValueError if a line is too long."""
        length = 0
        for piece in pieces:
            end = piece.rfind(self._end_of_line)
            length = length + len(piece) if end < 0 else len(piece) - end - 1
            if self._has_lines and length > LONGEST_LINE_BYTES:
                raise ValueError(
                    f"a line of {member} in {self._file} is longer than "
                    f"{LONGEST_LINE_BYTES >> 20} MiB"
                )
            yield piece


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while piece := opened.read(PIECE_BYTES):
            yield piece


def _write(pieces: Iterator[bytes], path: Path, name: str, limits: _Bounds) -> Path:
    """Write a text to `path` with the suffix of `name`, except that of packing; returns it."""
    known = PurePosixPath(name)
    if known.suffix in _PACKED_SUFFIXES:
        known = known.with_suffix("")
    if _SUFFIX.fullmatch(known.suffix):
        path = path.with_suffix(known.suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for piece in limits.with_lines(limits.counted(pieces), repr(name[-80:])):
            file.write(piece)
    return path


def open_member(archive: Path, pattern: str) -> Iterator[bytes]:
    """The bytes of the one member of a zip archive whose name matches, a bounded piece at a time.

    Raises ValueError if not exactly one name matches, if the member is packed but not with deflate,
    or if the archive breaks a limit; also the errors of zipfile.
    """
    limits = _Bounds(archive, "txt")
    with _ZipFile(archive) as file, zipfile.ZipFile(file) as opened:
        yield from limits.counted(_member(opened, _only_name(opened, pattern)))


def member_names(archive: Path) -> list[str]:
    """The names in a zip archive; raises the errors of zipfile."""
    with _ZipFile(archive) as file, zipfile.ZipFile(file) as opened:
        return [name for name in opened.namelist() if not name.startswith(_OF_MACOS)]


def _unzip(archive: Path, patterns: Sequence[str], folder: Path, limits: _Bounds) -> list[Path]:
    paths = []
    with _ZipFile(archive) as file, zipfile.ZipFile(file) as opened:
        for number, pattern in enumerate(patterns):
            name = _only_name(opened, pattern)
            pieces = unpacked(_member(opened, name))
            paths.append(_write(pieces, folder / f"{number}", name, limits))
    return paths


def _only_name(opened: zipfile.ZipFile, pattern: str) -> str:
    names = [
        name
        for name in fnmatch.filter(opened.namelist(), pattern)
        if not name.startswith(_OF_MACOS)
    ]
    if len(names) != 1:
        raise _no_single_member(pattern, len(names))
    if opened.getinfo(names[0]).compress_type not in _ZIP_PACKINGS:
        raise ValueError(f"{names[0][-80:]!r} in it is not packed with deflate: unpack it yourself")
    return names[0]


def _member(opened: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    with opened.open(name) as member:
        while piece := member.read(PIECE_BYTES):
            yield piece


class _ZipFile(io.BufferedReader):
    """An archive for zipfile, which would otherwise trust any size and position in the file."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))

    def read(self, size: int | None = -1, /) -> bytes:
        """Like a file's; ValueError for more bytes than a list of members may have.

        zipfile reads the whole list at once and holds it in memory.
        """
        if size is not None and size > _LARGEST_LIST_BYTES:
            raise ValueError(f"it has more than {MOST_MEMBERS} members, or very long names")
        return super().read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Like a file's; BadZipFile for a position outside of the archive."""
        if whence == os.SEEK_SET and not 0 <= offset <= os.fstat(self.fileno()).st_size:
            raise zipfile.BadZipFile("a number in it leads out of the archive")
        return super().seek(offset, whence)


def _untar(archive: Path, patterns: Sequence[str], folder: Path, limits: _Bounds) -> list[Path]:
    stream = _ForwardStream(limits.counted(unpacked(_pieces(archive))))
    found: list[dict[str, Path]] = [{} for _ in patterns]
    num_members = 0
    with tarfile.open(fileobj=stream, mode="r:") as opened:  # type: ignore[call-overload]
        while (member := opened.next()) is not None:
            opened.members.clear()  # otherwise it keeps them all
            num_members += 1
            if num_members > MOST_MEMBERS:
                raise ValueError(f"it has more than {MOST_MEMBERS} members")
            # If two members have one name, the later one counts, as it does for tar.
            name = PurePosixPath("/", member.name.lstrip("/"))
            for number, pattern in enumerate(patterns):
                if member.isdir() or not name.match(f"/{pattern}"):
                    continue
                if not member.isreg() or member.issparse():
                    raise ValueError(f"{member.name[-80:]!r} in it is not a plain file")
                stream.seek(member.offset_data)
                pieces = unpacked(stream.pieces(member.size))
                unlimited = folder / f"{number}"
                found[number][str(name)] = _write(pieces, unlimited, member.name, limits)
                break
    for pattern, members in zip(patterns, found, strict=True):
        if len(members) != 1:
            raise _no_single_member(pattern, len(members))
    return [path for members in found for path in members.values()]


def _no_single_member(pattern: str, count: int) -> ValueError:
    return ValueError(f"{count} files in it are called {pattern}, which must be one")


class _ForwardStream:
    """The methods of a file with which tarfile reads headers; it only moves forward.

    `cluster/unpack.py` has them, too: that file is sent to hosts that have no other code yet.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = memoryview(b"")
        self._position = 0

    def tell(self) -> int:
        """Bytes that were read or skipped."""
        return self._position

    def seek(self, position: int) -> int:
        """Skip to a position; ValueError if it was passed already."""
        if position < self._position:
            raise ValueError("its headers contradict each other")
        for _ in self.pieces(position - self._position):
            pass
        return self._position

    def read(self, size: int) -> bytes:
        """The next bytes, fewer at the end; ValueError for more than a header may have."""
        if not 0 <= size <= _LONGEST_HEADER_BYTES:
            raise ValueError(f"a header in it is longer than {_LONGEST_HEADER_BYTES >> 10} KiB")
        return b"".join(self.pieces(size))

    def pieces(self, size: int) -> Iterator[bytes]:
        """The next `size` bytes, in pieces; fewer at the end."""
        while size > 0:
            if not self._piece:
                self._piece = memoryview(next(self._pieces, b""))
            taken, self._piece = self._piece[:size], self._piece[size:]
            if not taken:
                return
            self._position += len(taken)
            size -= len(taken)
            yield bytes(taken)
