"""The files of onnxruntime-web, which runs ONNX graphs in browsers.

It is a package of npm. It is read from a folder or archive that the user names, or fetched by the
user's own npm, with that npm's settings and cache. Only the pinned version is accepted, by SHA-256:
no other archive is opened.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from dragoman.base.errors import ConfigError, MachineError
from dragoman.base.files import read_regular

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
_ARCHIVE_SHA256: Final = "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71"
_LARGEST_BYTES: Final = 1 << 26
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
        return _in_folder(place) if place.is_dir() else _in_archive(place)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"is not the package {PACKAGE}: {getattr(error, 'strerror', None) or error}",
            place=place,
            remedy=_BY_HAND,
        ) from error


def _in_folder(folder: Path) -> dict[str, bytes]:
    return {name: _pinned(folder / inside, sha256) for name, (inside, sha256) in _FILES.items()}


def _in_archive(path: Path) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(_pinned(path, _ARCHIVE_SHA256))) as archive:
        members = {
            name: archive.extractfile(f"package/{inside}") for name, (inside, _) in _FILES.items()
        }
        return {name: member.read() for name, member in members.items() if member is not None}


def _pinned(path: Path, sha256: str) -> bytes:
    """The content of a file; raises ValueError if it is another one."""
    content = read_regular(path, limit=_LARGEST_BYTES)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(f"{path.name} has another SHA-256")
    return content
