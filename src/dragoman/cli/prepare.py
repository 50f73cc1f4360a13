"""`dragoman prepare`: text files -> token shards."""

from __future__ import annotations

from argparse import Namespace

from dragoman.cli import options as shared
from dragoman.cli.options import Commands


def add_parser(commands: Commands) -> None:
    """Add `dragoman prepare`."""
    parser = commands.add_parser(
        "prepare",
        help="text files -> token shards",
        description="Turn text files into token shards. Every dropped pair has a reason and can "
        "be read. The same command again goes on.",
    )
    shared.add_recipe(parser)
    shared.add_places(parser)
    parser.set_defaults(run_command=run)


def run(options: Namespace) -> int:
    """Text files -> shards."""
    from dragoman.api.training import prepare
    from dragoman.cli import console
    from dragoman.corpus.manifest import Manifest
    from dragoman.recipe.recipe import load_recipe

    directory = prepare(
        load_recipe(options.recipe, options.overrides),
        directory=options.prepared,
        workers=options.workers,
        progress=True,
    )
    console.print_prepared(Manifest.load(directory), directory)
    return 0
