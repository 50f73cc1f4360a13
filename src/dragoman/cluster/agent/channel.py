"""Lines of JSON between an agent and the controller."""

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
    """The agent's end: standard input and output. Nothing else writes to that output."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
        self._lock = threading.Lock()
        self._pending = b""
        # Output that programs print here must not come between the lines.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())

    def say(self, what: str, **values: Any) -> None:
        """Send a message to the controller. If the controller is gone, its silence will show it."""
        line = json.dumps({"say": what, **values}).encode() + b"\n"
        with self._lock:
            try:
                self._out.write(line)
            except OSError:
                return

    def hear(self) -> Iterator[dict[str, Any]]:
        """The controller's messages without its signs of life; ends when the controller is gone."""
        silent_s = 0.0
        while silent_s < SILENCE_S:
            while b"\n" in self._pending:
                line, _, self._pending = self._pending.partition(b"\n")
                silent_s = 0.0
                message = json.loads(line)
                if message["do"] != "stay":
                    yield message
            # Waits are counted, not the clock: a machine that slept has heard nothing.
            started = time.monotonic()
            if select.select([sys.stdin], [], [], 1.0)[0]:
                received = os.read(sys.stdin.fileno(), 1 << 16)
                if not received:
                    return
                self._pending += received
            else:
                silent_s += min(time.monotonic() - started, 2.0)

    def expect(self) -> dict[str, Any]:
        """The controller's next message; the agent ends if the controller is gone."""
        for message in self.hear():
            return message
        sys.exit(1)
