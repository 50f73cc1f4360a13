"""The state of a run as a page for a browser on this machine only.

The page refreshes itself and needs nothing from other servers.
"""

from __future__ import annotations

import html
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any, Final

from dragoman.base import units
from dragoman.base.errors import MachineError
from dragoman.base.printable import printable
from dragoman.reporting import plots
from dragoman.reporting.elements import escape, figures, problems, section, values, whole_page
from dragoman.reporting.svg import Axis, BarPlot, LinePlot, Series
from dragoman.watch.live import LiveRun, Now
from dragoman.watch.screen import host_cells, how_fast, how_well, times

_MEGA = 1e6


def shell(now: Now, *, nonce: str) -> str:
    """The whole page. Its script replaces the part of `live` every 2 s, every 10 s if hidden."""
    style, script = (
        resources.files("dragoman.watch").joinpath(name).read_text(encoding="utf-8")
        for name in ("watch.css", "watch.js")
    )
    head = f'<link rel="icon" href="data:,"><style>{style}</style>'
    head += '<noscript><meta http-equiv="refresh" content="5"></noscript>'
    body = "<p id='lost' hidden>dragoman watch does not answer any more</p>"
    body += f"<main id='live'>{live(now)}</main><script nonce=\"{nonce}\">{script}</script>"
    return whole_page(printable(now.facts.name), body, head=head)


def live(now: Now) -> str:
    """The part that changes: the body of the page."""
    curves = [*plots.trained(now.facts), *plots.learning_rate(now.facts)]
    shares = now.phases
    shares |= {"other": max(1 - sum(shares.values()), 0.0)} if shares else {}
    step = BarPlot("a step", list(shares.items()), units.SHARE.text)
    parts = (
        *_head(now),
        problems("To look at", now.alerts, kind="remedy"),
        section("Curves", figures(curves)),
        section("A step", figures([step])),
        section("Hosts", "".join(_hosts(now))),
    )
    return printable("".join(parts))


def _head(now: Now) -> Iterator[str]:
    facts = now.facts
    last = facts.max_steps or facts.last_step
    share = facts.last_step / last if last else 0.0
    yield (
        f"<header data-title='{share:.0%} {html.escape(facts.name)}'><h1>{escape(facts.name)}</h1>"
        f"<p class='state'><span class='badge plain'>{escape(facts.state)}</span> "
        f"{units.COUNT.text(facts.last_step)} of {units.COUNT.text(last)} steps</p>"
        f"<progress max='1' value='{share:.4f}'></progress><p class='times'>"
    )
    yield " · ".join(escape(text) for text in times(now))
    yield f"</p>{values((*how_well(now), *how_fast(now)))}</header>"


def _hosts(now: Now) -> Iterator[str]:
    if not now.hosts:
        return
    yield "<div class='hosts'>"
    for host in now.hosts:
        cells = {
            name: text
            for name, text in host_cells(now, host).items()
            if name not in ("host", "out, lately") and text != "-"
        }
        yield f"<div class='host'><h3>{escape(host.name)}</h3>{values(cells.items())}</div>"
    yield "</div>"
    # Minutes before the last sample of a host, by its own clock.
    series = [
        Series(
            host.name,
            [((one.time - host.rates[-1].time) / 60, one.sent / _MEGA) for one in host.rates],
        )
        for host in now.hosts
        if host.rates
    ]
    x = Axis("minutes before the last sample", lambda minutes: f"{abs(minutes):.3g}")
    label = f"sent, MB/s{plots.lines_note(len(series), 'hosts')}"
    y = Axis(label, "{:.3g}".format, from_zero=True)
    yield figures([LinePlot(series[: plots.MOST_LINES], x, y)])


_LOOPBACK: Final = "127.0.0.1"
_MOST_CONNECTIONS: Final = 64
_CONNECTION_S: Final = 10.0
"""Seconds for a request and its answer; a browser on the same machine takes milliseconds."""


class WatchServer(ThreadingHTTPServer):
    """The page of one run on the loopback interface; port 0 takes a free one.

    Requests that do not name this machine are refused, and so are those that a page of another
    site triggered, except by a link to the page. Each connection has a thread, ten seconds and one
    request; if there are 64, a new one is closed. Raises MachineError if the port cannot be used.
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
                remedy="name another --port, or leave it out for a free one",
            ) from error

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        return f"http://{_LOOPBACK}:{self.server_port}/"

    @property
    def names(self) -> set[str]:
        """The values that the header Host of a request may have."""
        return {f"{host}:{self.server_port}" for host in (_LOOPBACK, "localhost")}

    def now(self) -> Now:
        """The present state of the run."""
        with self._lock:
            self._run.look()
            return self._run.now()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether another connection may have a thread; if so, sets its deadline."""
        if len(self._deadlines) >= _MOST_CONNECTIONS:
            return False
        self._deadlines[request] = time.monotonic() + _CONNECTION_S
        return True

    def service_actions(self) -> None:
        """Called at least twice a second: end connections that send or read too slowly."""
        for request, deadline in list(self._deadlines.items()):
            if time.monotonic() > deadline:
                with suppress(OSError):  # it has just been closed
                    request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, which makes room for another."""
        self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error, except that a client disconnected."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer

    def do_GET(self) -> None:
        """Answer with the page or with the part that changes."""
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
        """Whether a page of another site made this request; a link may lead to our page."""
        given = [self.headers.get_all(f"Sec-Fetch-{what}", []) for what in ("Site", "Mode")]
        given.append(self.headers.get_all("Origin", []))
        if any(len(values) > 1 for values in given):
            return True  # several headers of one name: which one the browser meant is not known
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
        """The name of this server, without the version of Python."""
        return "dragoman"

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the terminal belongs to the user."""


def serve(run: LiveRun, *, port: int) -> None:
    """Serve until Ctrl-C."""
    with WatchServer(run, port=port) as server:
        print(f"{server.address}  (Ctrl-C ends the page, not the run)", flush=True)
        server.serve_forever()
