"""`dragoman setup`: a Python with torch on every host, over ssh."""

from __future__ import annotations

from argparse import Namespace

from dragoman.cli import options as shared
from dragoman.cli.options import Commands


def add_parser(commands: Commands) -> None:
    """Add `dragoman setup`."""
    parser = commands.add_parser(
        "setup",
        help="make a Python with torch on every host, over ssh",
        description="Make a Python with torch on every host, over ssh.",
    )
    shared.add_hosts(parser, required=True)
    parser.set_defaults(run_command=run)


def run(options: Namespace) -> int:
    """Make a Python with what dragoman needs on every host."""
    from dragoman.base.terminal import open_console
    from dragoman.cluster.hosts import load_hosts
    from dragoman.cluster.setup import set_up

    set_up(load_hosts(options.hosts), tell=open_console(outlives_reader=True).print)
    return 0
