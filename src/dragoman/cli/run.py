"""`dragoman run`: prepare, train, evaluate and show some translations."""

from __future__ import annotations

from argparse import Namespace

from dragoman.cli import options as shared
from dragoman.cli.options import Commands


def add_parser(commands: Commands) -> None:
    """Add `dragoman run`."""
    parser = commands.add_parser(
        "run",
        help="prepare, train, score and translate, in one go",
        description="Prepare, train, score the test set and translate, in one go. The same "
        "command again goes on with what is unfinished.",
    )
    shared.add_recipe(parser)
    shared.add_places(parser)
    shared.add_training(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what it will take, do nothing")
    parser.set_defaults(run_command=run)


def run(options: Namespace) -> int:
    """Prepare, train, evaluate and show some translations; or say what it will take."""
    from dragoman.cli import console
    from dragoman.recipe.recipe import load_recipe

    recipe = load_recipe(options.recipe, options.overrides)
    if options.dry_run:
        console.print_dry_run(recipe, world_size=options.ranks or 1)
        return 0
    from dragoman.cli.summary import print_summary
    from dragoman.run.progress import preparing
    from dragoman.run.run import run as run_all
    from dragoman.telemetry.console import ConsoleSink

    directory = run_all(
        recipe,
        runs=options.runs,
        prepared=options.prepared,
        workers=options.workers,
        ranks=options.ranks,
        fresh=options.fresh,
        show=preparing(),
        listeners=[ConsoleSink()],
    )
    print_summary(directory)
    return 0
