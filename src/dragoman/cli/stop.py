"""`dragoman stop`: save and end a training, from another terminal."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Final

from dragoman.cli.options import Commands

_STOP_S: Final = 180.0


def add_parser(commands: Commands) -> None:
    """Add `dragoman stop`."""
    parser = commands.add_parser(
        "stop",
        help="save and end a training, from another terminal",
        description="Save a training and end it, from another terminal.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.set_defaults(run_command=run)


def run(options: Namespace) -> int:
    """End a training from another terminal; everything is saved first."""
    from dragoman.base.terminal import open_console
    from dragoman.recipe.run_directory import RunDirectory
    from dragoman.telemetry.session import stop_session

    directory = RunDirectory.open(options.run)
    session = stop_session(directory.path, wait_s=_STOP_S)
    open_console().print(session.problem or f"{directory.path}: {session.state}", soft_wrap=True)
    return 0
