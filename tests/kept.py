"""Models of tests, trained once and kept in build/kept/ for every process and for later runs."""

from __future__ import annotations

import fcntl
import hashlib
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path

import dragoman

FOLDER = Path(__file__).resolve().parents[1] / "build" / "kept"
_PACKAGES = ("torch", "numpy", "sentencepiece", "safetensors")
_BEHIND_ALL = [Path(__file__).with_name(name) for name in ("kept.py", "real_text.py")]


@contextmanager
def kept(name: str, make: Callable[[Path], None], *made_by: Path) -> Iterator[Path]:
    """Inside the block the folder that `make` has filled, alone: other processes wait.

    The folder's name holds a digest of all of dragoman, of the modules of tests that it is made by
    and of the libraries, so that one made by other code is never read; it is removed.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = FOLDER / f"{name}-{_digest(*made_by)}"
        if not path.is_dir():
            for old in FOLDER.glob(f"{name}-*"):
                shutil.rmtree(old)
            draft = FOLDER / f"{name}-draft"
            draft.mkdir()
            make(draft)
            draft.rename(path)
        yield path


@cache
def _digest(*made_by: Path) -> str:
    package = Path(dragoman.__file__).parent
    files = [path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    whole = hashlib.sha256()
    for path in [*sorted(files), *_BEHIND_ALL, *made_by]:
        content = path.read_bytes()
        whole.update(f"{path.name} {len(content)}\n".encode() + content)
    whole.update(" ".join([platform.python_version(), *map(version, _PACKAGES)]).encode())
    return whole.hexdigest()[:16]
