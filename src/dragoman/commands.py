"""What each command does: options in, a call of run.py, a few lines out."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from dragoman.console import print_dry_run, print_inventory, print_prepared, print_recipes
from dragoman.errors import ConfigError
from dragoman.recipe import Recipe, list_recipes, load_recipe
from dragoman.run_directory import RunDirectory


def recipes(_options: Namespace) -> int:
    """List the shipped recipes."""
    print_recipes(list_recipes())
    return 0


def run(options: Namespace) -> int:
    """Prepare, train, evaluate and translate a few sentences; or say what it will take."""
    recipe = load_recipe(options.recipe, options.overrides)
    if options.dry_run:
        print_dry_run(recipe)
        return 0
    from dragoman.run import run as run_all
    from dragoman.summary import print_summary

    directory = run_all(
        recipe,
        runs=options.runs,
        prepared=options.prepared,
        workers=options.workers,
        ranks=options.ranks,
        fresh=options.fresh,
    )
    print_summary(directory)
    return 0


def prepare(options: Namespace) -> int:
    """Text files -> shards."""
    from dragoman.corpus.manifest import Manifest
    from dragoman.run import prepare as prepare_shards

    recipe = load_recipe(options.recipe, options.overrides)
    directory = prepare_shards(recipe, directory=options.prepared, workers=options.workers)
    print_prepared(Manifest.load(directory), directory)
    return 0


def train(options: Namespace) -> int:
    """Train a recipe, or go on with a run."""
    from dragoman.run import prepare, start
    from dragoman.run import train as train_run

    path = Path(options.recipe)
    if path.is_dir():
        if options.overrides:
            raise ConfigError(
                "a run keeps the recipe it was started with",
                place="--set",
                remedy=f"start a new run: dragoman train {path / 'recipe.toml'} --set ...",
            )
        directory = RunDirectory.open(path)
    else:
        recipe = load_recipe(options.recipe, options.overrides)
        prepared = prepare(recipe, directory=options.prepared, workers=options.workers)
        directory = start(recipe, prepared=prepared, runs=options.runs, fresh=options.fresh)
    train_run(directory, ranks=options.ranks)
    print(f"run directory: {directory.path}")
    return 0
