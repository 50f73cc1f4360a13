"""Folders for what several tests of a process share; they go when the process ends."""

from __future__ import annotations

import atexit
import shutil
from pathlib import Path
from tempfile import mkdtemp


def own_folder(name: str) -> Path:
    """A new folder of this process alone."""
    folder = Path(mkdtemp(prefix=f"dragoman-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
