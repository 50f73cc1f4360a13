"""`dragoman recipes`: the shipped recipes, a row each."""

from __future__ import annotations

from argparse import Namespace

from dragoman.cli.options import Commands


def add_parser(commands: Commands) -> None:
    """Add `dragoman recipes`."""
    parser = commands.add_parser(
        "recipes",
        help="list the shipped recipes",
        description="List the recipes that are shipped, and what each is for.",
    )
    parser.set_defaults(run_command=run)


def run(_options: Namespace) -> int:
    """List the shipped recipes."""
    from dragoman.cli.console import print_recipes
    from dragoman.recipe.recipe import list_recipes

    print_recipes(list_recipes())
    return 0
