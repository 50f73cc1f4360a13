"""A host's end of its connection to the controller (`lines`)."""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

SILENCE_S: Final = 30
"""The controller sends something every second; after this long without anything it is gone."""


class Channel:
    """Lines from standard input, and JSON to standard output. Nothing else writes there."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
        self._lock = threading.Lock()
        self._pending = b""
        # Output that programs print here must not come between the lines.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())

    def say(self, **answer: Any) -> None:
        """Send an Answer. If the controller is gone, its silence will show it."""
        line = json.dumps(answer).encode() + b"\n"
        with self._lock:
            try:
                self._out.write(line)
            except OSError:
                return

    def hear(self) -> Iterator[bytes]:
        """The controller's lines; ends when the controller is gone.

        Signs of life are left out, and questions for the time are answered.
        """
        silent_s = 0.0
        while silent_s < SILENCE_S:
            while b"\n" in self._pending:
                line, _, self._pending = self._pending.partition(b"\n")
                silent_s = 0.0
                if line == b"time":
                    self.say(time=time.time())
                elif line:
                    yield line
            # Waits are counted, not the clock: a machine that slept has heard nothing.
            started = time.monotonic()
            if select.select([sys.stdin], [], [], 1.0)[0]:
                received = os.read(sys.stdin.fileno(), 1 << 16)
                if not received:
                    return
                self._pending += received
            else:
                silent_s += min(time.monotonic() - started, 2.0)

    def expect(self) -> bytes:
        """The controller's next line; this program ends if the controller is gone."""
        for line in self.hear():
            return line
        sys.exit()
