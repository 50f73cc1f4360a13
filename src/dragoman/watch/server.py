"""Serves the page of a run to this machine's browser and to nobody else."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from dragoman.errors import MachineError
from dragoman.watch.live import LiveRun, Now
from dragoman.watch.page import live, shell

_LOOPBACK: Final = "127.0.0.1"


class WatchServer(ThreadingHTTPServer):
    """The page of one run on the loopback interface; port 0 takes a free one.

    Only requests that name this machine are answered, so that no web page elsewhere can read it
    through a name of its own.
    """

    daemon_threads = True

    def __init__(self, run: LiveRun, *, port: int) -> None:
        self._run = run
        self._lock = threading.Lock()
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


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer

    def do_GET(self) -> None:
        """Answer with the page or with its changing part."""
        if self.headers.get("Host") not in self.server.names:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
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

    def _answer(self, body: bytes, nonce: str) -> None:
        policy = (
            "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
            f"script-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'"
        )
        self.send_response(HTTPStatus.OK)
        for name, value in (
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", policy),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal belongs to the user."""


def serve(run: LiveRun, *, port: int) -> None:
    """Serve until Ctrl-C."""
    with WatchServer(run, port=port) as server:
        print(f"{server.address}  (Ctrl-C ends the page, not the run)", flush=True)
        server.serve_forever()
