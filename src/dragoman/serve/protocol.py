"""HTTP/1.1 whose heads are bounded in bytes and in time.

httptools joins the parts of a header as they come, each time anew, and uvicorn sets no limit: one
client that sends a header of 60 MB, which needs no token, would hold the server up.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES: Final = 65_536
HEAD_S: Final = 10.0


class BoundedProtocol(HttpToolsProtocol):
    """A connection that is closed where a head is too long (431) or does not arrive (408)."""

    _stray_bytes = 0
    """Received since a head, a part of a body or a message was last complete; trailers, too."""
    _advanced = False
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
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
        self._stop_waiting()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body is there."""
        self._advanced = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is there."""
        self._advanced = True
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

    def _refuse(self, status: bytes) -> None:
        self._stop_waiting()
        if self.transport.is_closing():
            return
        if self._stray_bytes and (self.cycle is None or self.cycle.response_complete):
            empty = b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(b"HTTP/1.1 " + status + empty)
        self.transport.close()
