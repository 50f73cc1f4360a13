"""Serves the page of a run to this machine's browser and to nobody else."""

from __future__ import annotations

import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from dragoman.base.errors import MachineError
from dragoman.watch.live import LiveRun, Now
from dragoman.watch.page import live, shell

_LOOPBACK: Final = "127.0.0.1"
_MOST_CONNECTIONS: Final = 64
_CONNECTION_S: Final = 10.0
"""For a request and its answer; a browser on the same machine takes milliseconds."""


class WatchServer(ThreadingHTTPServer):
    """The page of one run on the loopback interface; port 0 takes a free one.

    Only requests that name this machine are answered, and none that a page of another site made a
    browser send. Each connection has a thread, a deadline and one request; if there are too many,
    a new one is closed.
    """

    daemon_threads = True
    request_queue_size = _MOST_CONNECTIONS

    def __init__(self, run: LiveRun, *, port: int) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._deadlines: dict[socket.socket, float] = {}
        try:
            super().__init__((_LOOPBACK, port), _Handler)
        except OSError as error:
            raise MachineError(
                f"cannot listen on port {port}: {error.strerror}",
                remedy="name another --port, or none for a free one",
            ) from error

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{_LOOPBACK}:{self.server_port}/"

    @property
    def names(self) -> set[str]:
        """What a request may call this server."""
        return {f"{host}:{self.server_port}" for host in (_LOOPBACK, "localhost")}

    def now(self) -> Now:
        """Where the run stands at this moment."""
        with self._lock:
            self._run.look()
            return self._run.now()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is a thread for another connection."""
        if len(self._deadlines) >= _MOST_CONNECTIONS:
            return False
        self._deadlines[request] = time.monotonic() + _CONNECTION_S
        return True

    def service_actions(self) -> None:
        """Called twice a second: end connections that send or read too slowly."""
        for request, deadline in list(self._deadlines.items()):
            if time.monotonic() > deadline:
                with suppress(OSError):  # it has just been closed
                    request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, whose thread is then free."""
        self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no error of ours."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer

    def do_GET(self) -> None:
        """Answer with the page or with its changing part."""
        if self.headers.get_all("Host") not in [[name] for name in self.server.names]:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            return
        if self._is_of_another_site():
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        nonce = secrets.token_urlsafe(16)
        pages: dict[str, Callable[[Now], str]] = {
            "/": lambda now: shell(now, nonce=nonce),
            "/live": live,
        }
        make = pages.get(self.path)
        if make is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self._answer(make(self.server.now()).encode(errors="replace"), nonce)

    def _is_of_another_site(self) -> bool:
        """Whether a page of another site asks for this; a link may lead to our page."""
        given = [self.headers.get_all(f"Sec-Fetch-{what}", []) for what in ("Site", "Mode")]
        given.append(self.headers.get_all("Origin", []))
        if any(len(values) > 1 for values in given):
            return True  # which of them a browser meant is anybody's guess
        site, mode, origin = (values[0] if values else None for values in given)
        if origin is not None and origin not in {f"http://{name}" for name in self.server.names}:
            return True
        is_link = self.path == "/" and mode == "navigate"
        return site not in (None, "same-origin", "none") and not is_link

    def _answer(self, body: bytes, nonce: str) -> None:
        policy = (
            "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
            f"script-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        self.send_response(HTTPStatus.OK)
        for name, value in (
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", policy),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        """Nobody needs to know which Python this is."""
        return "dragoman"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal belongs to the user."""


def serve(run: LiveRun, *, port: int) -> None:
    """Serve until Ctrl-C."""
    with WatchServer(run, port=port) as server:
        print(f"{server.address}  (Ctrl-C ends the page, not the run)", flush=True)
        server.serve_forever()
