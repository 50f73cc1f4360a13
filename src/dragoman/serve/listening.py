"""The socket and the uvicorn server, which ends at a signal when its answers have been sent."""

from __future__ import annotations

import math
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from dragoman.base.errors import MachineError
from dragoman.base.process import allow_open_files
from dragoman.serve.limits import Limits

MAX_CONNECTIONS: Final = 4096
_BACKLOG: Final = 1024
_OTHER_FILES: Final = 100
"""Files that the process has open beside its connections, at most."""
_SOCKET_BYTES: Final = 65_536
"""The kernel keeps about twice as much for each connection, each way."""
_GRACE_S: Final = 3
"""Seconds beyond the time of a request for answers that are read slowly."""


def bind(host: str, port: int) -> socket.socket:
    """A socket that has its port; raises MachineError. port: 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        raise MachineError(
            f"cannot listen: {error.strerror}",
            place=f"{host}:{port}",
            remedy="name a free port, and as the host an address of this machine such as 127.0.0.1",
        ) from error
    for size in (socket.SO_RCVBUF, socket.SO_SNDBUF):  # connections inherit them
        listener.setsockopt(socket.SOL_SOCKET, size, _SOCKET_BYTES)
    return listener


class EndingServer(uvicorn.Server):
    """A uvicorn server that tells its application how long it may still answer.

    make_app: called with the function that tells the seconds, which are infinite before a signal.
    """

    def __init__(self, make_app: Callable[[Callable[[], float]], ASGIApp], limits: Limits) -> None:
        self._request_s = limits.request_s
        self._ends_at_s = math.inf
        files = allow_open_files() - _OTHER_FILES
        config = uvicorn.Config(
            make_app(self.ending_in_s),
            http="httptools",
            ws="none",
            log_level="critical",  # no line for what anyone can send; the application has a log
            access_log=False,
            server_header=False,
            proxy_headers=bool(limits.trusted_proxies),
            forwarded_allow_ips=[*limits.trusted_proxies],
            limit_concurrency=max(1, min(MAX_CONNECTIONS, files)),
            timeout_graceful_shutdown=math.ceil(limits.request_s) + _GRACE_S,
        )
        super().__init__(config)

    def ending_in_s(self) -> float:
        """Seconds until answers must have ended; infinite before a signal has come."""
        return max(0.0, self._ends_at_s - time.monotonic())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end; then uvicorn waits for the answers under way."""
        self._ends_at_s = min(self._ends_at_s, time.monotonic() + self._request_s)
        super().handle_exit(sig, frame)

    def answer(self, listener: socket.socket) -> None:
        """Answer requests until a signal comes."""
        # As uvicorn does later, which also repeats them when it has drained.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.handle_exit)
        listener.listen(_BACKLOG)
        host, port = listener.getsockname()[:2]
        name = f"[{host}]" if ":" in host else host
        print(f"serving on http://{name}:{port}", flush=True)
        self.run(sockets=[listener])
