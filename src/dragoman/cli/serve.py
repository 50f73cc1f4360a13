"""`dragoman serve`: translations over HTTP, and a page for people."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from dragoman.cli import options as shared
from dragoman.cli.options import Commands, positive


def add_parser(commands: Commands) -> None:
    """Add `dragoman serve`."""
    parser = commands.add_parser(
        "serve",
        help="translations over HTTP, and a page for people",
        description="Serve translations over HTTP: a page for people, an interface for programs "
        "and that of LibreTranslate. Requests that come together are translated "
        "together.",
    )
    parser.add_argument(
        "bundles", type=Path, nargs="+", metavar="BUNDLE", help="one a language pair"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    parser.add_argument("--port", type=int, default=8320, help="0: any free one (default: 8320)")
    parser.add_argument("--token-file", type=Path, help="what clients must know; or DRAGOMAN_TOKEN")
    shared.add_cores(parser)
    parser.add_argument("--timeout", type=positive, default=30, help="seconds a request may take")
    parser.add_argument(
        "--queue", type=positive, default=65_536, help="subword pieces that may wait"
    )
    parser.add_argument(
        "--requests-per-client", type=positive, default=256, help="under way at a time"
    )
    parser.set_defaults(run_command=run)


def run(options: Namespace) -> int:
    """Answer requests until a signal comes, then finish those under way."""
    from dragoman.serve.server import serve

    return serve(options)
