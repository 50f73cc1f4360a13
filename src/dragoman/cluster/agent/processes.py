"""The processes of this host beside the workers: the one that measures, and the store.

Both import PyTorch, which takes seconds, while the controller is busy with other things.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dragoman.base.errors import MachineError
from dragoman.distributed.launch import NO_GPUS, rank_environment

_STORE_S: Final = 60.0


class Measuring:
    """The process of `dragoman.training.measuring`: creating this starts it, `close` ends it.

    ranks: the number of ranks on this host, which share its cores.
    on_processor: the process uses no GPU.
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

    def open_store(self, address: str) -> int:
        """Open a store in this process, and return its port. Raises MachineError."""
        return _port(self._answer("store", timeout_s=_STORE_S, address=address), address)

    def measure_network(self, environment: Mapping[str, str]) -> None:
        """Tell the process to start measuring the network, as one rank of several.

        It prints its results to its standard output.
        """
        own = {name: value for name, value in environment.items() if os.environ.get(name) != value}
        self._send("network", environment=own)

    def close(self) -> None:
        """End it, whatever it is doing."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()

    def _send(self, do: str, **values: Any) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: there will be no answer
            self.process.stdin.write(json.dumps({"do": do, **values}).encode() + b"\n")
            self.process.stdin.flush()

    def _answer(self, do: str, *, timeout_s: float, **values: Any) -> str:
        """The line that it answers; "" if it has ended or is too slow, and is killed for that."""
        assert self.process.stdout is not None
        self._send(do, **values)
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            self.process.kill()
        return self.process.stdout.readline().decode()


class StoreProcess:
    """The process of `dragoman.distributed.store`, which waits for its address."""

    def __init__(self) -> None:
        program = [sys.executable, "-P", "-m", "dragoman.distributed.store"]
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def open(self, address: str, *, port: int = 0) -> int:
        """Listen on this address alone, and return the port; 0 chooses a free one.

        Raises MachineError if it cannot listen there.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):  # it has ended: there will be no answer
            self._process.stdin.write(f"{address} {port}\n".encode())
            self._process.stdin.flush()
        return _port(self._process.stdout.readline().decode(), address, wanted=port)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


@dataclass
class Prepared:
    """The helper processes of an agent: the one that measures, and the store.

    `measuring` starts its process if none runs, `store` at its first call; `close` ends both.
    """

    _measuring: Measuring | None = None
    _store: StoreProcess | None = None

    def measuring(self, *, ranks: int, on_processor: bool) -> Measuring:
        """The process that measures; a new one if it has ended."""
        if self._measuring is None or self._measuring.process.poll() is not None:
            self._measuring = Measuring(ranks=ranks, on_processor=on_processor)
        return self._measuring

    def store(self) -> StoreProcess:
        """The store of a training."""
        if self._store is None:
            self._store = StoreProcess()
        return self._store

    def close(self) -> None:
        """End the processes that have started."""
        for process in (self._measuring, self._store):
            if process is not None:
                process.close()


def _port(answer: str, address: str, *, wanted: int = 0) -> int:
    if not answer.strip():
        raise MachineError(
            f"cannot listen at {address}" + (f", port {wanted}" if wanted else ""),
            remedy="check that the address is this machine's own and that the port is free",
        )
    return int(answer)
