"""onnxruntime-web, which runs ONNX graphs in browsers: its files, from where a user has them.

It is a package of npm. It is taken from a folder or archive that the user names, or fetched by
the user's own npm, with its settings and its store of packages. Only the pinned version is
accepted, by the SHA-256 of each file.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
import zlib
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
_LARGEST_BYTES: Final = 1 << 26
_NPM_SECONDS: Final = 600
_BY_HAND: Final = (
    f"run `npm pack {PACKAGE}` on a machine with npm and network access, and give the file: "
    f"--onnxruntime-web onnxruntime-web-{RUNTIME_VERSION}.tgz"
)


def runtime_files(place: Path | None) -> dict[str, bytes]:
    """The content of each file by the name that it has in an export.

    place: the package's archive or its unpacked folder; None: npm fetches the archive.
    Raises ConfigError if the place has not the pinned version, MachineError if npm cannot fetch it.
    """
    if place is not None:
        return _read(place)
    with tempfile.TemporaryDirectory(prefix="dragoman-npm-") as folder:
        return _read(_fetched(Path(folder)))


def _fetched(folder: Path) -> Path:
    """The package's archive, written by npm into a folder."""
    npm = shutil.which("npm")
    if npm is None:
        raise MachineError(f"{PACKAGE} is needed, and npm is not installed", remedy=_BY_HAND)
    command = [npm, "pack", PACKAGE, "--prefer-offline", "--ignore-scripts", "--silent"]
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
        raise MachineError(f"npm could not fetch {PACKAGE}: {error}", remedy=_BY_HAND) from error
    archives = list(folder.glob("*.tgz"))
    if done.returncode or len(archives) != 1:
        raise MachineError(
            f"npm could not fetch {PACKAGE} (exit code {done.returncode})", remedy=_BY_HAND
        )
    return archives[0]


def _read(place: Path) -> dict[str, bytes]:
    try:
        if place.is_dir():
            found = {name: _in_folder(place, inside) for name, (inside, _) in _FILES.items()}
        else:
            with tarfile.open(place, "r:gz") as archive:
                found = {name: _in_archive(archive, inside) for name, (inside, _) in _FILES.items()}
    except (OSError, EOFError, KeyError, tarfile.TarError, zlib.error) as error:
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


def _in_folder(folder: Path, name: str) -> bytes:
    return read_regular(folder / name, limit=_LARGEST_BYTES)


def _in_archive(archive: tarfile.TarFile, name: str) -> bytes:
    opened = archive.extractfile(f"package/{name}")
    if opened is None:
        raise KeyError(f"{name} in it is no file")
    return opened.read(_LARGEST_BYTES)
