"""`dragoman inspect`: every file of a run with purpose and size."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from dragoman.cli.options import Commands


def add_parser(commands: Commands) -> None:
    """Add `dragoman inspect`."""
    parser = commands.add_parser(
        "inspect",
        help="every file of a run with purpose and size",
        description="List every file of a run, a checkpoint or prepared shards with purpose and "
        "size.",
    )
    parser.add_argument("path", type=Path, metavar="RUN|CHECKPOINT|PREPARED", help="its directory")
    parser.set_defaults(run_command=run)


def run(options: Namespace) -> int:
    """Print every file with its purpose and size."""
    from dragoman.cli.console import print_inventory

    print_inventory(options.path)
    return 0
