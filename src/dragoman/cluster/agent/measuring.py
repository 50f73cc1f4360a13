"""The process of this host that measures: first its steps, later the network to other hosts."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from dragoman.distributed.launch import NO_GPUS, rank_environment


class Measuring:
    """The process of `dragoman.training.measuring`: creating this starts it, `close` ends it.

    ranks: of this host, which share its cores.
    on_processor: its GPUs are not used.
    """

    def __init__(self, *, ranks: int, on_processor: bool) -> None:
        program = [sys.executable, "-P", "-m", "dragoman.training.measuring"]
        self.process = subprocess.Popen(
            program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=rank_environment(ranks) | (NO_GPUS if on_processor else {}),
        )

    def steps(self, *, timeout_s: float) -> dict[str, float]:
        """The results of `step_rate`; empty if that fails or takes too long."""
        try:
            found: dict[str, float] = json.loads(self._answer("steps", timeout_s=timeout_s))
        except ValueError:
            return {}
        return found

    def open_store(self, address: str, *, timeout_s: float) -> str:
        """The port of a store at this address of the host; "" if none can be opened."""
        return self._answer("store", timeout_s=timeout_s, address=address).strip()

    def measure_network(self, environment: Mapping[str, str]) -> None:
        """Tell the process to start measuring the network, as one rank of several.

        It prints its results to its standard output.
        """
        own = {name: value for name, value in environment.items() if os.environ.get(name) != value}
        self._tell("network", environment=own)

    def close(self) -> None:
        """End it, whatever it is doing."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()

    def _tell(self, do: str, **values: Any) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: there will be no answer
            self.process.stdin.write(json.dumps({"do": do, **values}).encode() + b"\n")
            self.process.stdin.flush()

    def _answer(self, do: str, *, timeout_s: float, **values: Any) -> str:
        """The line that it answers; "" if none comes in time, after which none will come."""
        assert self.process.stdout is not None
        self._tell(do, **values)
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            self.process.kill()
        return self.process.stdout.readline().decode()
