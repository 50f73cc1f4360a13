"""HTTP/1.1 by uvicorn and httptools, with the bounds that they lack, and the end of the server.

uvicorn bounds the body of a request that waits and the answer that waits. Its `limit_concurrency`
counts idle connections and refuses every client, and h11 instead of httptools takes a second for a
megabyte sent in chunks of one byte. So this module bounds the following attacks, none of which
needs a token:

endless head        a head or trailer without end: httptools joins all parts again with each new one
slow head           a head that never arrives
idle connections    in any number, from one address or many
pipelining          requests sent without waiting for answers, which uvicorn parses and keeps
slow reader         an answer that is not read, or a few bytes at a time
upgrade smuggling   an upgrade with a body, which httptools would read as the next request
trailer smuggling   trailers that change a field that a proxy has checked in the head, such as Host
second host         a whole address instead of a path, whose host is not the one in Host
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import re
import resource
import socket
import time
from collections import Counter
from functools import lru_cache
from types import FrameType
from typing import ClassVar, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES: Final = 65_536
HEAD_S: Final = 10.0
UNREAD_S: Final = 10.0
"""Time in which a client must read LEAST_READ_BYTES of its answer."""
LEAST_READ_BYTES: Final = 8192
MAX_CONNECTIONS: Final = 4096
SHARE_OF_ONE_ADDRESS: Final = 4
"""One address has at most 1/4 of the connections."""
SOCKET_BYTES: Final = 65_536
"""The kernel keeps about twice as much for each connection, each way."""
_OTHER_FILES: Final = 100
"""Files that the process has open beside its connections, at most."""
_WHOLE_ADDRESS: Final = re.compile(rb"[^/?]*://([^/?#]*)")
_CHECK_EVERY_S: Final = 0.5
_LAST_WORDS_S: Final = 2.0
"""Seconds after the limit in which answers may still be read."""
GRACE_S: Final = 5
"""Seconds after the limit for connections to end; uvicorn then cancels each with a traceback."""


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


@lru_cache(maxsize=4096)
def client_of(address: str) -> str:
    """The client behind an address: for IPv6 its /64 network, as one host has every address in
    it."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))


class _UnwelcomeError(Exception):
    """Raised in a callback of the parser, which then stops; uvicorn calls send_400_response."""


class BoundedProtocol(HttpToolsProtocol):
    """A connection with bounds; `check` must be called every second or so.

    It is closed if a head is too long (431) or does not arrive (408), and aborted if its answers
    are not read. If one client has too many connections, its longest idle one is closed. If all
    clients together have too many, that of the client with the most idle ones is closed. If only
    the new one is idle, it is refused (503).
    """

    max_connections: ClassVar[int] = MAX_CONNECTIONS
    _open: ClassVar[Counter[str]] = Counter()
    """Connections of each client."""
    _idle: ClassVar[dict[str, dict[BoundedProtocol, None]]] = {}
    """Idle connections of each client, the longest idle one first."""
    _who = ""
    _stray_bytes = 0
    """Received since a head, a part of a body or a message was last complete; trailers, too."""
    _advanced = False
    _begun = False
    """Whether a head has begun and is not complete."""
    _head_since: float | None = None
    """Since when the connection waits for a head."""
    _unread: tuple[int, float] | None = None
    """Bytes of an answer that the client does not read, and since when there are so many."""
    _last_request = False
    """Whether reading has stopped: a request is being answered, and others may follow it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head, if there is room (idle connections)."""
        super().connection_made(transport)
        self._who = client_of(self.client[0] if self.client else "")
        self._open[self._who] += 1
        self._become_idle()
        if self._open[self._who] > max(1, self.max_connections // SHARE_OF_ONE_ADDRESS):
            longest = next(iter(self._idle[self._who]))
        elif len(self.connections) > self.max_connections:
            most = max(self._idle, key=lambda who: len(self._idle[who]))
            longest = next(iter(self._idle[most]))
        else:
            return
        longest._refuse(b"503 Service Unavailable", always=longest is self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadlines."""
        self._become_busy()
        self._open[self._who] -= 1
        if not self._open[self._who]:
            del self._open[self._who]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse; refuse a request whose head never ends (endless head)."""
        if self._last_request or self.transport.is_closing():
            return
        self._advanced = False
        super().data_received(data)
        self._stray_bytes = 0 if self._advanced else self._stray_bytes + len(data)
        if self._stray_bytes > MAX_HEAD_BYTES:
            self._refuse(b"431 Request Header Fields Too Large")

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not valid; ignore it if the request before it is still being
        answered (pipelining)."""
        if self._answers() and not self.cycle.more_body:
            self._last_request = True
            self.cycle.keep_alive = False
        elif not self.transport.is_closing():
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        """A request begins; its predecessor must have had its answer (pipelining)."""
        if self._answers():
            raise _UnwelcomeError
        super().on_message_begin()
        self._begun = True
        self._head_since = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; httptools reports trailers here too (trailer smuggling)."""
        if self._begun:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete (upgrade smuggling, second host)."""
        self._advanced = True
        address = _WHOLE_ADDRESS.match(self.url)
        if address and [address[1].lower()] != [
            value.lower() for name, value in self.headers if name == b"host"
        ]:
            raise _UnwelcomeError
        framing = (b"content-length", b"transfer-encoding")
        if any(name in framing for name, _ in self.headers) and self.parser.should_upgrade():
            raise _UnwelcomeError
        self._become_busy()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """The answer was given; another request may come."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._become_idle()

    def on_body(self, body: bytes) -> None:
        """A part of the body has arrived."""
        self._advanced = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._advanced = True
        super().on_message_complete()

    def check(self, now: float) -> None:
        """Close it if no head arrives, and abort it if the answer is not read (slow head, slow
        reader)."""
        unread = self.transport.get_write_buffer_size()
        if not unread or (self._answers() and not self.flow.write_paused):
            self._unread = None  # or the answer is still being written, and has room
        elif self._unread is None or unread <= self._unread[0] - LEAST_READ_BYTES:
            self._unread = unread, now
        elif now - self._unread[1] >= UNREAD_S:
            self.transport.abort()
            return
        if self._head_since is not None and now - self._head_since >= HEAD_S:
            self._refuse(b"408 Request Timeout")

    def _answers(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _become_idle(self) -> None:
        """Wait for the next request: none is under way."""
        self._begun = False
        self._head_since = self.loop.time()
        self._idle.setdefault(self._who, {})[self] = None

    def _become_busy(self) -> None:
        """A request is under way, or none will come."""
        self._begun = False
        self._head_since = None
        idle = self._idle.get(self._who, {})
        idle.pop(self, None)
        if not idle:
            self._idle.pop(self._who, None)

    def _refuse(self, status: bytes, *, always: bool = False) -> None:
        """Close the connection, with this status if a request has begun and has no answer yet.

        always: send the status even if the client has not begun a request.
        """
        always = always or self._begun or self._stray_bytes > 0
        self._become_busy()
        if self.transport.is_closing():
            return
        if always and not self._answers():
            empty = b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(b"HTTP/1.1 " + status + empty)
        self.transport.close()


class Ending:
    """The time left for answers: unlimited until a signal ends the server, then limit_s."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._deadline = math.inf

    def begin(self) -> None:
        """Start the time; a second signal changes nothing."""
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
        """Whether connections are cut off now, even if answers are unread."""
        return time.monotonic() > self._deadline + _LAST_WORDS_S


class EndingServer(uvicorn.Server):
    """A uvicorn server that tells the application before it ends, and checks connections until
    then."""

    def __init__(self, config: uvicorn.Config, ending: Ending) -> None:
        super().__init__(config)
        self._ending = ending
        self._checking: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start like uvicorn; from then on connections are checked, even while the server ends."""
        await super().startup(sockets)
        self._checking = asyncio.create_task(self._check_connections())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end; then uvicorn waits for the answers under way."""
        self._ending.begin()
        super().handle_exit(sig, frame)

    async def _check_connections(self) -> None:
        """Keep the deadlines of all connections; so they need no timers of their own."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_CHECK_EVERY_S)
            now = loop.time()
            for connection in list(self.server_state.connections):
                assert isinstance(connection, BoundedProtocol)
                if self._ending.is_over:
                    connection.transport.abort()
                else:
                    connection.check(now)
