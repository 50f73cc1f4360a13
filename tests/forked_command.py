"""A command in a process that the forker makes, with torch imported already; see forker.py."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

from dragoman.cli import main
from forker import Call, forker

_LIMIT_S = 120.0


def execute(
    words: Sequence[str], *, output: str = os.devnull, most_bytes: int = -1
) -> tuple[int, str]:
    """Run a command in the working directory; returns its exit code and standard error.

    output: the file that is its standard output. most_bytes: of addresses; any number if it
    is -1. A command that takes longer than two minutes is killed.
    """
    call = Call(
        module="forked_command",
        function="command",
        arguments=[output, str(most_bytes), *words],
        folder=str(Path.cwd()),
        environment={**os.environ, "OMP_NUM_THREADS": "1"},
        output=str(Path.cwd() / "standard-error"),
    )
    (code,) = forker().run([call], timeout_s=_LIMIT_S)
    return code, Path("standard-error").read_text()


def command(output: str, most_bytes: str, *arguments: str) -> None:
    """In the fork: run a command and end the process with its exit code."""
    resource.setrlimit(resource.RLIMIT_AS, (int(most_bytes), int(most_bytes)))
    with Path(output).open("wb") as file:
        os.dup2(file.fileno(), 1)
    code = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
