"""The process that measures. It imports PyTorch once, which takes seconds."""

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
    """The process of `dragoman.training.measuring`: it starts when it is needed; `close` ends it.

    ranks: the number of ranks on this host, which share its cores.
    on_processor: the process uses no GPU.
    """

    def __init__(self, *, ranks: int, on_processor: bool) -> None:
        self._environment = rank_environment(ranks) | (NO_GPUS if on_processor else {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process; a new one if it has ended."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            program = [sys.executable, "-P", "-m", "dragoman.training.measuring"]
            self._process = subprocess.Popen(
                program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment
            )
        return self._process

    def steps(self, *, timeout_s: float) -> dict[str, float]:
        """The results of `step_rate`; empty if that fails or takes too long."""
        process = self.process
        assert process.stdout is not None
        self._send("steps")
        if not select.select([process.stdout], [], [], timeout_s)[0]:
            process.kill()
        try:
            found: dict[str, float] = json.loads(process.stdout.readline())
        except ValueError:
            return {}
        return found

    def measure_network(
        self, environment: Mapping[str, str], *, store: tuple[str, int] | None = None
    ) -> None:
        """Tell the process to measure the network, as one rank of several.

        It prints its results to its standard output.

        store: the address and port at which it opens the store, if this is the first host.
        """
        own = {name: value for name, value in environment.items() if os.environ.get(name) != value}
        self._send("network", environment=own, store=store)

    def close(self) -> None:
        """End it, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(OSError):
                self._process.communicate()

    def _send(self, do: str, **values: Any) -> None:
        stdin = self.process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):  # it has ended: there will be no answer
            stdin.write(json.dumps({"do": do, **values}).encode() + b"\n")
            stdin.flush()
