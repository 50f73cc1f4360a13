"""`dragoman train`: token shards -> checkpoints, on this machine or on several hosts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.base.errors import ConfigError
from dragoman.cli.options import (
    FRESH,
    FROM,
    HOSTS,
    PLACES,
    RANKS,
    RECIPE,
    SET,
    Command,
    Option,
    Options,
)

if TYPE_CHECKING:
    from dragoman.cluster.hosts import Hosts
    from dragoman.recipe.recipe import Recipe
    from dragoman.recipe.run_directory import RunDirectory


@Command(
    "train",
    "token shards -> checkpoints; resumes by default",
    "Train checkpoints from token shards, on this machine or with --hosts on several. It resumes "
    "by default, exactly, on any number of ranks; text that is not prepared yet is prepared first.",
    RECIPE.but(metavar="RECIPE|RUN", help=f"{RECIPE.settings['help']}, or a run directory"),
    FROM,
    *(SET, *PLACES, RANKS, FRESH, HOSTS),
    Option("--dry-run", action="store_true", help="print every command, run none"),
)
def run(options: Options) -> None:
    """Train a recipe or go on with a run, on this machine or on several hosts."""
    import shlex

    from dragoman.cluster.hosts import load_hosts
    from dragoman.recipe.recipe import load_recipe

    hosts = None if options.hosts is None else load_hosts(options.hosts)
    if hosts is not None and options.ranks is not None:
        raise ConfigError(
            "cannot be given with --hosts, which sets the ranks of each host",
            place="--ranks",
            remedy="leave it out",
        )
    path = Path(options.recipe)
    if path.is_dir():
        for flag, given, kept in (
            ("--from", options.origin, "weights"),
            ("--fresh", options.fresh, "checkpoints"),
            ("--prepared", options.prepared, "shards"),
            ("--workers", options.workers, "shards"),
            ("--set", options.overrides, "recipe"),
        ):
            if given:
                raise ConfigError(
                    f"a run that is named keeps the {kept} it was started with",
                    place=flag,
                    remedy="leave it out, or start another run: "
                    f"dragoman train {shlex.quote(str(path / 'recipe.toml'))} {flag}",
                )
    if options.dry_run:
        _dry_run(options, hosts)
        return
    train_shown(
        path if path.is_dir() else load_recipe(options.recipe, options.overrides),
        origin=options.origin,
        prepared=options.prepared,
        runs=options.runs,
        workers=options.workers,
        ranks=options.ranks,
        hosts=hosts,
        fresh=options.fresh,
    )


def train_shown(recipe: Recipe | RunDirectory | Path, **options: Any) -> None:
    """Train as `dragoman.train` does, and print the directory of the run.

    If the hosts are not fit to train, doctor's findings are printed first.
    """
    from dragoman.api.training import train
    from dragoman.base.terminal import open_console
    from dragoman.cluster.doctor_view import print_findings
    from dragoman.cluster.training import NotFitError

    try:
        directory = train(recipe, **options, progress=True)
    except NotFitError as error:
        print_findings(error.findings, error.facts, open_console())
        raise
    print(f"run directory: {directory.path}")


def _dry_run(options: Options, hosts: Hosts | None) -> None:
    """Print the forecast of a run; with hosts, print also every command that would run."""
    from dragoman.cli.console import print_dry_run
    from dragoman.cluster.dry_run import planned_commands
    from dragoman.recipe.recipe import load_recipe
    from dragoman.recipe.run_directory import RunDirectory
    from dragoman.run.worker import default_ranks

    path = Path(options.recipe)
    directory = RunDirectory.open(path) if path.is_dir() else None
    recipe = load_recipe(directory.recipe_file if directory else options.recipe, options.overrides)
    if options.origin is not None:
        from dragoman.formats.load import Origin

        recipe = Origin.open(options.origin).adapt(recipe)
    world_size = sum(hosts.ranks_per_host) if hosts else options.ranks or default_ranks()
    print_dry_run(recipe, world_size=world_size)
    if hosts is not None:
        run = directory.path.name if directory else f"{recipe.name}-TIME-DIGEST"
        print("", *planned_commands(hosts, run=run), sep="\n")
