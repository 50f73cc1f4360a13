"""`dragoman recipes`: the shipped recipes, a row each."""

from dragoman.cli.options import Command, Options


@Command(
    "recipes",
    "list the shipped recipes",
    "List the recipes that come with dragoman, with the purpose of each.",
)
def run(_options: Options) -> None:
    """List the shipped recipes."""
    from dragoman.cli.console import print_recipes
    from dragoman.recipe.recipe import list_recipes

    print_recipes(list_recipes())
