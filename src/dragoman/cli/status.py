"""`dragoman status`: where runs stand."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from dragoman.cli.options import Commands


def add_parser(commands: Commands) -> None:
    """Add `dragoman status`."""
    parser = commands.add_parser(
        "status",
        help="where runs stand",
        description="Say where runs stand.",
    )
    parser.add_argument(
        "run", type=Path, metavar="RUN", nargs="*", help="run directories (default: all of --runs)"
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), help="the folder of all runs (default: runs)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run_command=run)


def run(options: Namespace) -> int:
    """Say where runs stand; the newest first."""
    from dragoman.base.terminal import open_console
    from dragoman.recipe.run_directory import RunDirectory
    from dragoman.watch.status import print_status, read_status, status_as_json

    paths = options.run or sorted(
        options.runs.glob("[!.]*/recipe.toml"), key=lambda path: path.stat().st_mtime, reverse=True
    )
    runs = [RunDirectory.open(path.parent if path.is_file() else path).path for path in paths]
    found = [read_status(run) for run in runs]
    if options.json:
        print(status_as_json(found))
    else:
        print_status(found, open_console())
    return 0
