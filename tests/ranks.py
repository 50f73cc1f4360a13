"""Runs a function in several real processes that talk over Gloo, as torchrun's workers do."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dragoman.distributed.rendezvous import RENDEZVOUS_VARIABLE
from dragoman.distributed.world import join_world
from forker import forker

RankFunction = Callable[..., Any]
TIMEOUT_S = 120.0
"""For all ranks together, if a test does not say otherwise."""


def run_ranks(
    function: RankFunction,
    *arguments: Any,
    world_size: int,
    hosts: Sequence[int] | None = None,
    timeout_s: float | None = None,
) -> list[Any]:
    """Call function(world, *arguments) in `world_size` processes.

    hosts: how many of the processes are to think that they share a host; all if it is None.
    The function is one of a module's own; arguments and results travel as JSON. Returns what each
    rank returned, by rank; if a rank fails, the caller fails with its output.
    """
    with tempfile.TemporaryDirectory() as directory:
        call = [inspect.getfile(function), function.__name__, directory, json.dumps(arguments)]
        local_ranks = [n for size in hosts or [world_size] for n in range(size)]
        _forked(directory, "ranks", "enter", call, local_ranks, timeout_s)
        return [
            json.loads((Path(directory) / f"{rank}.json").read_text()) for rank in range(world_size)
        ]


def run_program(module: str, *, world_size: int, timeout_s: float | None = None) -> list[str]:
    """Call a module's `main` in `world_size` processes of one host, as torchrun does.

    Returns what each of them printed, by rank.
    """
    with tempfile.TemporaryDirectory() as directory:
        return _forked(directory, module, "main", [], list(range(world_size)), timeout_s)


def _forked(
    directory: str,
    module: str,
    function: str,
    arguments: list[str],
    local_ranks: list[int],
    timeout_s: float | None,
) -> list[str]:
    outputs = [Path(directory) / f"{rank}.out" for rank in range(len(local_ranks))]
    exit_codes = forker().run(
        [
            {
                "module": module,
                "function": function,
                "arguments": arguments,
                "folder": str(Path.cwd()),
                "environment": _environment(rank, local_ranks[rank], len(local_ranks), directory),
                "output": str(output),
            }
            for rank, output in enumerate(outputs)
        ],
        timeout_s=timeout_s or TIMEOUT_S,
    )
    said = [output.read_text() for output in outputs]
    assert not any(exit_codes), "\n".join(
        f"rank {rank} ended with {code}:\n{text}"
        for rank, (code, text) in enumerate(zip(exit_codes, said, strict=True))
    )
    return said


def _environment(rank: int, local_rank: int, world_size: int, directory: str) -> dict[str, str]:
    return os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world_size),
        "OMP_NUM_THREADS": "1",
        RENDEZVOUS_VARIABLE: f"{directory}/meeting",
    }


def enter(file: str, function: str, directory: str, arguments: str) -> None:
    """The work of each process: load the test's module by its file and call the function."""
    spec = importlib.util.spec_from_file_location("of_the_test", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    with join_world() as world:
        result = getattr(module, function)(world, *json.loads(arguments))
        (Path(directory) / f"{world.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    enter(*sys.argv[1:])
