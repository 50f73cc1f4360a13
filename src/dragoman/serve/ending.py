"""How the server ends: what is under way is finished, and what would take too long says so."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from types import FrameType
from typing import Final

import uvicorn

from dragoman.serve.protocol import BoundedProtocol

_LOOK_EVERY_S: Final = 0.5
_LAST_WORDS_S: Final = 2.0
"""After the limit, for answers to be read."""
GRACE_S: Final = 5
"""After the limit, for connections to end; then uvicorn cancels, with a traceback for each."""


class Ending:
    """From a signal on, answers that go on and on have so many seconds; until then, for ever."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._deadline = math.inf

    def begin(self) -> None:
        """A signal has come; a further one changes nothing."""
        self._deadline = min(self._deadline, time.monotonic() + self._limit_s)

    @property
    def has_begun(self) -> bool:
        """Whether a signal has come."""
        return self._deadline < math.inf

    @property
    def left_s(self) -> float:
        """Seconds that are left; infinite before the signal."""
        return max(0.0, self._deadline - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether who has not read its answer by now will not get it."""
        return time.monotonic() > self._deadline + _LAST_WORDS_S


class EndingServer(uvicorn.Server):
    """uvicorn that tells the application before it ends, and ends connections that are stuck."""

    def __init__(self, config: uvicorn.Config, ending: Ending) -> None:
        super().__init__(config)
        self._ending = ending
        self._looking: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's; from then on connections are looked at, also while it ends."""
        await super().startup(sockets)
        self._looking = asyncio.create_task(self._look())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """As uvicorn's, which then waits for what is under way."""
        self._ending.begin()
        super().handle_exit(sig, frame)

    async def _look(self) -> None:
        """Keep the deadlines of connections; they need no timers of their own."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            now = loop.time()
            for connection in list(self.server_state.connections):
                assert isinstance(connection, BoundedProtocol)
                if self._ending.is_over:
                    connection.transport.abort()
                else:
                    connection.look(now)
