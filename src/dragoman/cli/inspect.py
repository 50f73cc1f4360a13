"""`dragoman inspect`: every file of a run with purpose and size."""

from pathlib import Path

from dragoman.cli.options import Command, Option, Options


@Command(
    "inspect",
    "every file of a run with purpose and size",
    "List every file of a run, a checkpoint or prepared shards with purpose and size.",
    Option(
        "path",
        type=Path,
        metavar="RUN|CHECKPOINT|PREPARED",
        help="the directory of a run, of a checkpoint or of prepared shards",
    ),
)
def run(options: Options) -> None:
    """Print every file with its purpose and size."""
    from dragoman.cli.console import print_inventory

    print_inventory(options.path)
