"""A process that has imported PyTorch once and forks ranks: importing takes longer than most tests.

It reads a JSON line of calls, forks a process for each, answers with a line of their ids and, once
all have ended, with one of their exit codes. Its end is the end of its standard input.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from dragoman.distributed.launch import end_with_parent

_WARM = ("torch._dynamo", "toy_fit", "dragoman.run.run", "dragoman.run.worker")
"""The modules that the first of PyTorch's optimizers loads, and others that most ranks need."""


class Call(TypedDict):
    """Call module.function(*arguments) in a process of its own.

    folder, environment: in which it works. output: a file for all that it says.
    """

    module: str
    function: str
    arguments: list[str]
    folder: str
    environment: dict[str, str]
    output: str


class Forker:
    """The caller's end of it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=os.environ
            | {
                "OMP_NUM_THREADS": "1",  # with more, libraries start threads, which no fork has
                "PYTHONPATH": os.pathsep.join(
                    [
                        str(Path(__file__).parent),
                        *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
                    ]
                ),
            },
            cwd=Path(__file__).parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # a line that has been read ahead is none that `select` sees
        )

    def run(self, calls: Sequence[Call], *, timeout_s: float) -> list[int]:
        """The exit codes of the processes; those that last longer are killed."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(calls).encode() + b"\n")
        self._process.stdin.flush()
        pids = self._read()
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        return self._read()

    def _read(self) -> list[int]:
        assert self._process.stdout is not None
        numbers: list[int] = json.loads(self._process.stdout.readline())
        return numbers


@cache
def forker() -> Forker:
    """The one of this process, which lives as long as it."""
    return Forker()


def main() -> None:
    """Fork until there is nobody left to ask for it."""
    end_with_parent()
    for module in _WARM:
        importlib.import_module(module)
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "a fork has the calling thread alone"
    for line in sys.stdin:
        pids = [_fork(call) for call in json.loads(line)]
        _say(pids)
        _say([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])


def _say(numbers: Sequence[int]) -> None:
    print(json.dumps(numbers), flush=True)


def _fork(call: Any) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        end_with_parent()
        with Path(os.devnull).open("rb") as nothing, Path(call["output"]).open("wb") as output:
            os.dup2(nothing.fileno(), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.chdir(call["folder"])
        os.environ.clear()
        os.environ.update(call["environment"])
        getattr(importlib.import_module(call["module"]), call["function"])(*call["arguments"])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
