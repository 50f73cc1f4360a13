"""Runs a function in real processes on the hosts of a lab, as `ranks.run_ranks` does on one."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import ranks
from dragoman.distributed.rendezvous import RENDEZVOUS_VARIABLE
from lab.laboratory import INTERFACE, LabHost
from ranks import RankFunction

_PROGRAM: Final = Path(ranks.__file__).resolve()


def run_on_hosts(
    function: RankFunction,
    *arguments: Any,
    hosts: Sequence[LabHost],
    timeout_s: float = 120.0,
) -> list[Any]:
    """Call function(world, *arguments) once on each host; ranks are in the order of the hosts."""
    with tempfile.TemporaryDirectory() as directory:
        call = [inspect.getfile(function), function.__name__, directory, json.dumps(arguments)]
        processes = [
            host.start(
                [sys.executable, _PROGRAM, *call],
                env=_environment(rank, len(hosts), directory),
                stdout=subprocess.PIPE,
            )
            for rank, host in enumerate(hosts)
        ]
        said = [process.communicate(timeout=timeout_s)[0] for process in processes]
        assert not any(process.returncode for process in processes), "\n".join(
            f"{host.name} ended with {process.returncode}:\n{text}"
            for host, process, text in zip(hosts, processes, said, strict=True)
        )
        return [
            json.loads((Path(directory) / f"{rank}.json").read_text()) for rank in range(len(hosts))
        ]


def _environment(rank: int, num_hosts: int, directory: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(num_hosts),
        "PYTHONPATH": f"{_PROGRAM.parent}:{os.environ.get('PYTHONPATH', '')}",
        "GLOO_SOCKET_IFNAME": INTERFACE,
        RENDEZVOUS_VARIABLE: f"{directory}/meeting",
        # All hosts are on this machine's cores: threads that wait for each other waste them.
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // num_hosts)),
    }
