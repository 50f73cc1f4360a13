"""`dragoman prepare`: text files -> token shards."""

from dragoman.cli.options import PREPARED, RECIPE, SET, WORKERS, Command, Options


@Command(
    "prepare",
    "text files -> token shards",
    "Turn text files into token shards. Every dropped pair has a reason and can be read. The same "
    "command again goes on.",
    *(RECIPE, SET, PREPARED, WORKERS),
)
def run(options: Options) -> None:
    """Text files -> token shards; print the pairs kept and dropped."""
    from dragoman.api.training import prepare
    from dragoman.cli.console import print_prepared
    from dragoman.corpus.manifest import Manifest
    from dragoman.recipe.recipe import load_recipe

    directory = prepare(
        load_recipe(options.recipe, options.overrides),
        directory=options.prepared,
        workers=options.workers,
        progress=True,
    )
    print_prepared(Manifest.load(directory), directory)
