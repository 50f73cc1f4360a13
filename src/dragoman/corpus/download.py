"""One file over HTTP, whole or not at all.

A connection that breaks is taken up where it broke, in this run or the next one; a page of HTML
where an archive should be (a login, a captcha, "not found" with status 200) is never kept.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dragoman import __version__
from dragoman.base.errors import CorpusError, MachineError
from dragoman.base.files import disk_errors_named, write_whole

ATTEMPTS: Final = 5
_TIMEOUT_S: Final = 30
_CHUNK_BYTES: Final = 1 << 20
_HTML_STARTS: Final = (b"<!doctype html", b"<html", b"<head", b"<body", b"<script")
_PACKED_STARTS: Final = (b"\x1f\x8b", b"PK\x03\x04", b"\xfd7zXZ\x00", b"BZh", b"\x28\xb5\x2f\xfd")
_BY_HAND: Final = "fetch the corpus by hand and name its files as source and target in the recipe"

Pause = Callable[[float], None]


def download(url: str, path: Path, *, pause: Pause = time.sleep) -> None:
    """Put what lies at `url` into the file `path`; one that is there is taken as it is.

    Until it is whole the file is called `<name>.part`. A server that breaks off, is busy or cannot
    be reached is asked ATTEMPTS times; pause(seconds) is called in between.
    Raises CorpusError where the server has no such file, sends HTML or something whose end cannot
    be told; MachineError where it cannot be reached. Both name the URL.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _Part(path)
    for attempt in range(ATTEMPTS):
        if attempt:
            pause(2.0**attempt)
        trouble = _attempt(url, part)
        if not trouble:
            part.finish()
            return
    raise MachineError(
        f"the download failed {ATTEMPTS} times: {trouble}",
        place=url,
        remedy="check the network and run again: what has come is kept and taken up from there",
    )


def _attempt(url: str, part: _Part) -> str:
    """Fetch what is missing; returns what went wrong and may go right the next time, else ""."""
    try:
        return part.fetch(url)
    except urllib.error.HTTPError as error:
        answer = f"the server answers {error.code} {error.reason}"
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.forget()  # what we have is no beginning of what the server has
        elif error.code < 500 and error.code not in (408, 429):
            raise _refused(url, answer) from error
        return answer
    except (http.client.HTTPException, OSError) as error:
        return str(getattr(error, "reason", error)) or type(error).__name__


class _Part:
    """The beginning of a file, and the server's word for which version of the file it is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._version = path.with_name(f"{path.name}.version")

    def fetch(self, url: str) -> str:
        """Append what is missing; returns what went wrong, "" where all is there."""
        offset, version = self._have()
        request = urllib.request.Request(url, headers={"User-Agent": f"dragoman/{__version__}"})  # noqa: S310  (http or https of mtdata's index)
        if offset:
            request.add_header("Range", f"bytes={offset}-")
            request.add_header("If-Range", version)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
            if response.status != http.client.PARTIAL_CONTENT:
                offset = 0
            elif not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
                self.forget()
                return "the server sent another part than was asked for"
            length = response.headers.get("Content-Length")
            first = response.read(_CHUNK_BYTES)
            if not offset:
                self._check(url, first, response)
                self._begin(response)
            size = offset + self._append(offset, first, response)
        if length is not None and size != offset + int(length):
            return f"the connection broke off after {size} bytes"
        return ""

    def forget(self) -> None:
        """Begin anew."""
        self._part.unlink(missing_ok=True)
        self._version.unlink(missing_ok=True)

    def finish(self) -> None:
        """Give the file its name."""
        self._part.replace(self._path)
        self._version.unlink(missing_ok=True)

    def _have(self) -> tuple[int, str]:
        """Bytes that can be built on, and of which version."""
        if not (self._part.exists() and self._version.exists()):
            return 0, ""
        return self._part.stat().st_size, self._version.read_text(encoding="utf-8")

    def _begin(self, response: http.client.HTTPResponse) -> None:
        self.forget()
        version = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        if version and not version.startswith("W/"):  # weak tags do not promise equal bytes
            write_whole(self._version, version)

    def _append(self, offset: int, first: bytes, response: http.client.HTTPResponse) -> int:
        """Write all that comes; returns its size."""
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
                chunk = response.read(_CHUNK_BYTES)
        return size

    def _check(self, url: str, first: bytes, response: http.client.HTTPResponse) -> None:
        """Refuse HTML, and text of which nobody can tell whether it is whole."""
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
