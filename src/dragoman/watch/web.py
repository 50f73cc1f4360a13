"""The report of a run, written again while the run goes on, and served to this machine alone."""

from __future__ import annotations

import math
import tempfile
import threading
import time
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from dragoman.base.errors import MachineError
from dragoman.reporting.render import Report
from dragoman.watch.live import LiveRun

PAGE: Final = "report.html"
_LOOPBACK: Final = "127.0.0.1"
_WRITE_EVERY_S: Final = 5.0


def follow(run: LiveRun, directory: Path, over: threading.Event | None = None) -> None:
    """Write the report again after news, until the run has ended.

    The page reloads itself while the run goes on.

    over: set by who wants it to end earlier.
    Raises MachineError if the directory cannot be written.
    """
    over = over or threading.Event()
    written_at = -math.inf
    while True:
        if run.look() or time.monotonic() - written_at > 10 * _WRITE_EVERY_S:
            facts = run.now().facts
            refresh_s = None if facts.has_ended else _WRITE_EVERY_S
            Report.of(facts).write(directory, refresh_s=refresh_s)
            written_at = time.monotonic()
            if facts.has_ended and not run.may_turn:
                return
        if over.wait(_WRITE_EVERY_S):
            return


class _Handler(SimpleHTTPRequestHandler):
    def send_head(self) -> Any:
        """Refuse a request for another name: a page of another site may have led it here."""
        port = self.connection.getsockname()[1]
        names = [f"{host}:{port}" for host in (_LOOPBACK, "localhost")]
        if self.headers.get_all("Host", []) not in [[name] for name in names]:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            return None
        if self.path == "/":
            self.path = f"/{PAGE}"
        return super().send_head()

    def end_headers(self) -> None:
        """No copy of the page is kept: it changes."""
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the terminal belongs to the user."""


def page_server(directory: Path, *, port: int) -> ThreadingHTTPServer:
    """A server of the files of a directory on the loopback interface; port 0 takes a free one.

    Raises MachineError if the port cannot be used.
    """
    try:
        return ThreadingHTTPServer((_LOOPBACK, port), partial(_Handler, directory=str(directory)))
    except OSError as error:
        raise MachineError(
            f"cannot listen on port {port}: {error.strerror}",
            remedy="name another port, or leave it out for a free one",
        ) from error


def serve(run: LiveRun, *, port: int) -> None:
    """Serve the report of a run until Ctrl-C."""
    over = threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="dragoman-watch-") as scratch,
        page_server(Path(scratch), port=port) as server,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://{_LOOPBACK}:{server.server_address[1]}/"
        print(f"{address}  (Ctrl-C ends the page, not the run)", flush=True)
        try:
            follow(run, Path(scratch), over)
            over.wait()
        finally:
            server.shutdown()
