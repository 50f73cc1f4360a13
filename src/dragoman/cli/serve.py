"""`dragoman serve`: translations over HTTP, and a page for people."""

from pathlib import Path

from dragoman.cli.options import BATCH_CELLS, THREADS, Command, Option, Options, keywords, positive


@Command(
    "serve",
    "translations over HTTP, and a page for people",
    "Serve translations over HTTP: a page for people, an interface for programs and that of "
    "LibreTranslate. Requests that come together are translated together.",
    Option(
        "bundles",
        type=Path,
        nargs="+",
        metavar="BUNDLE",
        help="an export; one for each language pair",
    ),
    Option("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"),
    Option("--port", type=int, default=8320, help="0: any free one (default: 8320)"),
    Option(
        "--token-file",
        type=Path,
        help="a file with the token that clients must send (default: the variable DRAGOMAN_TOKEN)",
    ),
    *(THREADS, BATCH_CELLS),
    Option(
        "--timeout", type=positive, default=30, help="seconds that a request may take (default: 30)"
    ),
    Option(
        "--queue",
        type=positive,
        default=65_536,
        help="subword pieces that may wait (default: 65536)",
    ),
    Option(
        "--requests-per-client",
        type=positive,
        default=256,
        help="requests of one client at a time (default: 256)",
    ),
)
def run(options: Options) -> int:
    """Answer requests until a signal comes, then finish those under way."""
    from dragoman.serve.server import ServeOptions, serve

    return serve(ServeOptions(**keywords(options)))
