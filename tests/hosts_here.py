"""Hosts of which each is a folder here, and a program in the place of ssh that runs commands there.

What runs is real: `join_host`, rsync, tar. Only the connection is not.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

from dragoman.cluster import ssh

_SSH: Final = """\
#!/bin/sh
while [ "$1" != -- ]; do shift; done
home="{homes}/$2"
shift 2
mkdir -p "$home" && cd "$home" || exit
test ! -f greeting || cat greeting
{before}
PATH="{path}" exec sh -c "$*"
"""
_TOOLS: Final = ("cat", "env", "find", "mkdir", "mv", "rm", "sh", "sha256sum", "sleep", "tar")


def put_ssh(
    homes: Path, monkeypatch: pytest.MonkeyPatch, *, rsync: bool = True, before: str = ""
) -> None:
    """The home of a host is the folder HOMES/ADDRESS. It prints its file `greeting`, if there is
    one, before a command.

    rsync: whether hosts have it.
    before: lines of shell that run before each command; its words are `$*`.
    """
    ssh._greeting.clear()  # other tests' hosts have the same addresses
    programs, tools = homes / "bin", homes / "tools"
    programs.mkdir(exist_ok=True)
    tools.mkdir(exist_ok=True)
    for name in _TOOLS:
        found = shutil.which(name)
        assert found is not None
        if not (tools / name).exists():
            (tools / name).symlink_to(found)
    path = os.environ["PATH"] if rsync else str(tools)
    (programs / "ssh").write_text(_SSH.format(homes=homes, path=path, before=before))
    (programs / "ssh").chmod(0o755)
    if not os.environ["PATH"].startswith(f"{programs}:"):
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")


needs_rsync = pytest.mark.skipif(shutil.which("rsync") is None, reason="no rsync here")
EITHER_WAY: Final = [
    pytest.param(True, id="rsync", marks=needs_rsync),
    pytest.param(False, id="tar"),
]
"""Values of `rsync`: how files are copied."""
