"""`dragoman resume`: go on with a run where it was trained before."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from dragoman.cli.options import Commands
from dragoman.cli.train import train_shown


def add_parser(commands: Commands) -> None:
    """Add `dragoman resume`."""
    parser = commands.add_parser(
        "resume",
        help="go on with a run on the hosts it was on",
        description="Go on with a run where it was trained before: on its hosts, or on this "
        "machine.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.set_defaults(run_command=run)


def run(options: Namespace) -> int:
    """Go on with a run where it was trained before: on its hosts, or on this machine."""
    from dragoman.cluster.hosts import recorded_hosts
    from dragoman.recipe.run_directory import RunDirectory

    directory = RunDirectory.open(options.run)
    return train_shown(directory, hosts=recorded_hosts(directory.path))
