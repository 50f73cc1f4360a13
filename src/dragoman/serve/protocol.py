"""HTTP/1.1 whose heads are bounded in bytes and in time, and whose connections in number.

httptools joins the parts of a header as they come, each time anew, and uvicorn sets no limit: one
client that sends a header of 60 MB, which needs no token, would hold the server up. So would one
that opens as many connections as a process may have files, and leaves them idle.
"""

from __future__ import annotations

import asyncio
import resource
from typing import ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES: Final = 65_536
HEAD_S: Final = 10.0
MAX_CONNECTIONS: Final = 4096
_OTHER_FILES: Final = 100
"""That the process has open beside its connections, at most."""


def allow_connections() -> None:
    """Let the process have as many connections as it may, up to MAX_CONNECTIONS."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    wanted = MAX_CONNECTIONS + _OTHER_FILES
    files = wanted if unlimited else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
        soft = files
    if soft != resource.RLIM_INFINITY:
        BoundedProtocol.max_connections = max(1, min(MAX_CONNECTIONS, soft - _OTHER_FILES))


class BoundedProtocol(HttpToolsProtocol):
    """A connection that is closed where a head is too long (431) or does not arrive (408).

    Where there are too many, the one that has asked for nothing for longest makes room for a new
    one; where all are being answered, the new one is refused (503).
    """

    max_connections: ClassVar[int] = MAX_CONNECTIONS
    _idle: ClassVar[dict[BoundedProtocol, None]] = {}
    """Those of which no request is under way, the one that has been so for longest first."""
    _stray_bytes = 0
    """Received since a head, a part of a body or a message was last complete; trailers, too."""
    _advanced = False
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head, if there is room."""
        super().connection_made(transport)
        self._idle[self] = None
        if len(self.connections) > self.max_connections:
            longest = next(iter(self._idle))
            del self._idle[longest]
            longest._refuse(b"503 Service Unavailable", told=longest is self)
        if not transport.is_closing():
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._idle.pop(self, None)
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, and refuse what only grows."""
        self._advanced = False
        super().data_received(data)
        self._stray_bytes = 0 if self._advanced else self._stray_bytes + len(data)
        if self._stray_bytes > MAX_HEAD_BYTES:
            self._refuse(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        """A further request begins on the connection."""
        super().on_message_begin()
        if self._head_timer is None:
            self._wait_for_head()

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._advanced = True
        self._idle.pop(self, None)
        self._stop_waiting()
        framing = (b"content-length", b"transfer-encoding")
        if any(name in framing for name, _ in self.headers) and self.parser.should_upgrade():
            # httptools would not read the body, and take it for the next request.
            self._refuse(b"400 Bad Request", told=True)
        else:
            super().on_headers_complete()

    def on_response_complete(self) -> None:
        """The answer was given; a further request may wait for its own."""
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._idle[self] = None

    def on_body(self, body: bytes) -> None:
        """A part of the body is there."""
        self._advanced = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is there."""
        self._advanced = True
        if not self.transport.is_closing():  # refused at its head, there is no request to complete
            super().on_message_complete()

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self._late)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _late(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_for_head()  # an earlier request of the connection is still being answered
        else:
            self._refuse(b"408 Request Timeout")

    def _refuse(self, status: bytes, *, told: bool = False) -> None:
        """told: though it has not begun to ask for anything."""
        self._stop_waiting()
        if self.transport.is_closing():
            return
        if (told or self._stray_bytes) and (self.cycle is None or self.cycle.response_complete):
            empty = b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(b"HTTP/1.1 " + status + empty)
        self.transport.close()
