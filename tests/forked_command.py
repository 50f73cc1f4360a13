"""A command in a process that the forker makes, with torch imported already; see forker.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from dragoman.cli import main
from forker import Call, forker

_LIMIT_S = 120.0


def execute(words: Sequence[str], *, output: str = os.devnull) -> tuple[int, str]:
    """Run a command in the working directory; returns its exit code and standard error.

    output: the file that is its standard output.
    """
    call = Call(
        module="forked_command",
        function="command",
        arguments=[output, *words],
        folder=str(Path.cwd()),
        environment={**os.environ, "OMP_NUM_THREADS": "1"},
        output=str(Path.cwd() / "standard-error"),
    )
    (code,) = forker().run([call], timeout_s=_LIMIT_S)
    return code, Path("standard-error").read_text()


def command(output: str, *arguments: str) -> None:
    """In the fork: run a command and end the process with its exit code."""
    with Path(output).open("wb") as file:
        os.dup2(file.fileno(), 1)
    code = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
