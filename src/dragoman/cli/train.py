"""`dragoman train`: token shards -> checkpoints, on this machine or on several hosts."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dragoman.base.errors import ConfigError
from dragoman.cli import options as shared
from dragoman.cli.options import RECIPE_HELP, Commands

if TYPE_CHECKING:
    from dragoman.cluster.hosts import Hosts
    from dragoman.recipe.run_directory import RunDirectory

_OF_A_NEW_RUN: Final = {
    "--from": ("origin", "weights"),
    "--fresh": ("fresh", "checkpoints"),
    "--prepared": ("prepared", "shards"),
    "--workers": ("workers", "shards"),
    "--set": ("overrides", "recipe"),
}
"""What a run that is named does not take: where the option is read, what it would change."""


def add_parser(commands: Commands) -> None:
    """Add `dragoman train`."""
    parser = commands.add_parser("train", help="token shards -> checkpoints; resumes by default")
    parser.add_argument("recipe", metavar="RECIPE|RUN", help=f"{RECIPE_HELP}, or a run directory")
    parser.add_argument(
        "--from",
        dest="origin",
        type=Path,
        metavar="BUNDLE|RUN",
        help="start from the weights and vocabulary of a bundle, a Hugging Face export or a run",
    )
    shared.add_overrides(parser)
    shared.add_places(parser)
    shared.add_training(parser)
    shared.add_hosts(parser)
    parser.add_argument("--dry-run", action="store_true", help="print every command, run none")
    parser.set_defaults(run_command=run)


def run(options: Namespace) -> int:
    """Train a recipe or go on with a run, on this machine or on several hosts."""
    from dragoman.cluster.hosts import load_hosts
    from dragoman.run import run as steps

    hosts = None if options.hosts is None else load_hosts(options.hosts)
    if hosts is not None and options.ranks is not None:
        raise ConfigError(
            "the hosts say how many ranks each has", place="--ranks", remedy="leave it out"
        )
    if options.dry_run:
        _dry_run(options, hosts)
        return 0
    directory = _opened(options)
    if hosts is not None:
        return train_on(hosts, directory)
    steps.train(directory, ranks=options.ranks)
    print(f"run directory: {directory.path}")
    return 0


def _opened(options: Namespace) -> RunDirectory:
    """The run that was named, or that of the recipe that was: the newest, or a new one."""
    from dragoman.cli.console import preparing
    from dragoman.recipe.recipe import load_recipe
    from dragoman.recipe.run_directory import RunDirectory
    from dragoman.run import run as steps

    path = Path(options.recipe)
    if not path.is_dir():
        recipe = load_recipe(options.recipe, options.overrides)
        origin = None
        if options.origin is not None:
            from dragoman.formats.load import Origin

            origin = Origin.open(options.origin)
            recipe = origin.adapt(recipe)
        with preparing() as progress:
            prepared = steps.prepare(
                recipe,
                directory=options.prepared,
                workers=options.workers,
                progress=progress,
                origin=origin,
            )
        return steps.start(
            recipe, prepared=prepared, runs=options.runs, fresh=options.fresh, origin=origin
        )
    for flag, (option, kept) in _OF_A_NEW_RUN.items():
        if getattr(options, option):
            raise ConfigError(
                f"a run that is named keeps the {kept} it was started with",
                place=flag,
                remedy="leave it out, or start another run: "
                f"dragoman train {shlex.quote(str(path / 'recipe.toml'))} {flag}",
            )
    return RunDirectory.open(path)


def train_on(hosts: Hosts, directory: RunDirectory) -> int:
    """Train or go on with a run on these hosts; prints what doctor found if they are not fit."""
    from dragoman.cli.console import open_console
    from dragoman.cluster.doctor_view import print_findings
    from dragoman.cluster.training import NotFitError
    from dragoman.run import run as steps

    try:
        steps.train_on(hosts, directory, tell=open_console(outlives_reader=True).print)
    except NotFitError as error:
        print_findings(error.findings, error.facts, open_console())
        raise
    print(f"run directory: {directory.path}")
    return 0


def _dry_run(options: Namespace, hosts: Hosts | None) -> None:
    """What it will take; with hosts also every command that will be run."""
    from dragoman.cli.console import print_dry_run
    from dragoman.cluster.commands import planned_commands
    from dragoman.recipe.recipe import load_recipe
    from dragoman.recipe.run_directory import RunDirectory

    path = Path(options.recipe)
    directory = RunDirectory.open(path) if path.is_dir() else None
    recipe = load_recipe(directory.recipe_file if directory else options.recipe, options.overrides)
    world_size = sum(hosts.ranks_per_host) if hosts else options.ranks or 1
    print_dry_run(recipe, world_size=world_size)
    if hosts is not None:
        run = directory.path.name if directory else f"{recipe.name}-TIME-DIGEST"
        print("", *planned_commands(hosts, run=run), sep="\n")
