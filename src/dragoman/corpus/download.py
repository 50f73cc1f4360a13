"""Files from servers of strangers, fetched whole or not at all.

A download that breaks off is continued where it stopped, in this run or the next one; a page of
HTML instead of an archive (a login, a captcha, "not found" with status 200) is never kept.
"""

from __future__ import annotations

import http.client
import string
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import CorpusError, MachineError
from dragoman.base.files import write_whole
from dragoman.base.version import VERSION

ATTEMPTS: Final = 5
_TIMEOUT_S: Final = 30
_STATED_TIMEOUT_S: Final = 10
_CHUNK_BYTES: Final = 1 << 20
_FIRST_BYTES: Final = 1 << 12
_HTML_STARTS: Final = (b"<!doctype html", b"<html", b"<head", b"<body", b"<script")
_PACKED_STARTS: Final = (b"\x1f\x8b", b"PK\x03\x04", b"\xfd7zXZ\x00", b"BZh", b"\x28\xb5\x2f\xfd")
_BY_HAND: Final = "fetch the corpus by hand and name its files as source and target in the recipe"
Sleep = Callable[[float], None]


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
