"""`dragoman watch RUN`: show a run until the user ends the command; with --once, once."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from dragoman.cli.options import PRICE, RUN, RUNS, Command, Option, Options

if TYPE_CHECKING:
    from rich.console import Console

    from dragoman.watch.live import LiveRun

_LOOK_EVERY_S: Final = 0.5
_DRAW_EVERY_S: Final = 5.0
"""Redraw at least this often: even without new events the time left decreases."""


@Command(
    "watch",
    "a live screen of a run, or a page with --web",
    "Show a run while it goes on: time left, curves, hosts, network, alerts.",
    RUN.but(nargs="?", help="a run directory (default: the newest)"),
    RUNS,
    Option(
        "--hosts",
        metavar="HOSTS",
        help="hosts.toml, or user@address: read the run there over ssh, by its name or path there",
    ),
    PRICE,
    Option("--once", action="store_true", help="print the state of the run and end"),
    Option("--web", action="store_true", help="a page for the browser, on loopback"),
    Option("--port", type=int, default=0, help="the port of the page (default: a free one)"),
)
def run(options: Options) -> None:
    """Show a run while it runs, here or in a browser. Ctrl-C ends watch, not the run."""
    from dragoman.base.terminal import open_console

    with suppress(KeyboardInterrupt), _opened(options) as run:
        if options.web:
            from dragoman.watch.server import serve

            serve(run, port=options.port)
        elif options.once or not sys.stdout.isatty():
            _print(run, open_console())
        else:
            _follow(run, open_console())


@contextmanager
def _opened(options: Options) -> Iterator[LiveRun]:
    """The named run, here or on hosts; without a name, the newest here."""
    from dragoman.telemetry.host import HourlyPrice
    from dragoman.watch.live import newest_run, open_run

    price = HourlyPrice.parse(options.price) if options.price else None
    if options.hosts is None:
        with closing(open_run(options.run or newest_run(options.runs), price=price)) as run:
            yield run
        return
    from dragoman.base.errors import ConfigError
    from dragoman.cluster.hosts import load_hosts
    from dragoman.watch.remote import remote_run

    if options.run is None:
        raise ConfigError("needs a run", place="watch --hosts", remedy="give its path on the hosts")
    hosts = load_hosts(options.hosts)
    with remote_run(hosts, options.run, price=price) as run:
        yield run


def _print(run: LiveRun, console: Console) -> None:
    from dragoman.watch.screen import screen

    run.look()
    width = console.width if console.is_terminal else 100
    for line in screen(run.now(), width=width, height=1000):
        console.print(line, soft_wrap=True)


def _follow(run: LiveRun, console: Console) -> None:
    """Draw on the whole terminal; redraw after news, a change of its size, or some seconds."""
    from rich.console import ConsoleDimensions, Group
    from rich.live import Live

    from dragoman.watch.screen import screen

    with Live(console=console, screen=True, auto_refresh=False) as live:
        drawn_at, drawn_size = 0.0, None
        while True:
            # Ask the terminal itself: COLUMNS is its width when the shell began.
            size, moment = os.get_terminal_size(sys.stdout.fileno()), time.monotonic()
            if run.look() or size != drawn_size or moment - drawn_at >= _DRAW_EVERY_S:
                console.size = ConsoleDimensions(size.columns, size.lines)
                lines = screen(run.now(), width=size.columns, height=size.lines)
                live.update(Group(*lines), refresh=True)
                drawn_at, drawn_size = moment, size
            time.sleep(_LOOK_EVERY_S)
