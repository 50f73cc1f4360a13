"""Commands about training and the hosts it happens on: options in, a call, a few lines out."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dragoman.console import open_console, preparing
from dragoman.errors import ConfigError
from dragoman.run_directory import RunDirectory

if TYPE_CHECKING:
    from dragoman.cluster.hosts import Hosts

_NEEDED_BYTES: Final = 2_000_000_000
"""Of disk on each host, where no run says how much: code, some data, some checkpoints."""
_STOP_S: Final = 180.0
_OF_A_NEW_RUN: Final = {
    "--from": ("origin", "weights"),
    "--fresh": ("fresh", "checkpoints"),
    "--prepared": ("prepared", "shards"),
    "--workers": ("workers", "shards"),
    "--set": ("overrides", "recipe"),
}
"""What a run that is named does not take: where the option is read, what it would change."""


def setup(options: Namespace) -> int:
    """Make a Python with what dragoman needs on every host."""
    from dragoman.cluster.hosts import load_hosts
    from dragoman.cluster.setup import set_up

    set_up(load_hosts(options.hosts), tell=open_console(outlives_reader=True).print)
    return 0


def doctor(options: Namespace) -> int:
    """Examine the hosts; the exit code is 1 where training would refuse to start."""
    from dragoman.cluster.checks import Wanted, examine, is_fit
    from dragoman.cluster.doctor_view import findings_as_json, print_findings
    from dragoman.cluster.examine import examine_hosts
    from dragoman.cluster.hosts import load_hosts
    from dragoman.cluster.measured import remember
    from dragoman.cluster.training import digests_here

    hosts = load_hosts(options.hosts)
    run = None if options.run is None else RunDirectory.open(options.run)
    facts = examine_hosts(hosts, run="" if run is None else f"runs/{run.path.name}").facts
    remember(hosts, facts)
    digests = {} if run is None else digests_here(run.path, run.prepared())
    findings = examine(facts, Wanted(hosts, needed_bytes=_NEEDED_BYTES, digests=digests))
    if options.json:
        print(findings_as_json(findings, facts))
    else:
        print_findings(findings, facts, open_console())
    return 0 if is_fit(findings) else 1


def train(options: Namespace) -> int:
    """Train a recipe or go on with a run, on this machine or on several hosts."""
    from dragoman import run as steps
    from dragoman.cluster.hosts import load_hosts

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
        return _train_on(hosts, directory)
    steps.train(directory, ranks=options.ranks)
    print(f"run directory: {directory.path}")
    return 0


def resume(options: Namespace) -> int:
    """Go on with a run where it was trained before: on its hosts, or on this machine."""
    from dragoman import run as steps
    from dragoman.cluster.hosts import recorded_hosts

    directory = RunDirectory.open(options.run)
    hosts = recorded_hosts(directory.path)
    if hosts is not None:
        return _train_on(hosts, directory)
    steps.train(directory)
    print(f"run directory: {directory.path}")
    return 0


def stop(options: Namespace) -> int:
    """End a training from another terminal; everything is saved first."""
    from dragoman.session import stop_session

    directory = RunDirectory.open(options.run)
    session = stop_session(directory.path, wait_s=_STOP_S)
    open_console().print(session.problem or f"{directory.path}: {session.state}", soft_wrap=True)
    return 0


def status(options: Namespace) -> int:
    """Say where runs stand; the newest first."""
    from dragoman.status import print_status, read_status, status_as_json

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


def _opened(options: Namespace) -> RunDirectory:
    """The run that was named, or that of the recipe that was: the newest, or a new one."""
    from dragoman import run as steps
    from dragoman.recipe import load_recipe

    path = Path(options.recipe)
    if not path.is_dir():
        recipe = load_recipe(options.recipe, options.overrides)
        origin = None
        if options.origin is not None:
            from dragoman.export.origin import Origin

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


def _train_on(hosts: Hosts, directory: RunDirectory) -> int:
    from dragoman import run as steps
    from dragoman.cluster.doctor_view import print_findings
    from dragoman.cluster.training import NotFitError

    try:
        steps.train_on(hosts, directory, tell=open_console(outlives_reader=True).print)
    except NotFitError as error:
        print_findings(error.findings, error.facts, open_console())
        raise
    print(f"run directory: {directory.path}")
    return 0


def _dry_run(options: Namespace, hosts: Hosts | None) -> None:
    """What it will take; with hosts also every command that will be run."""
    from dragoman.cluster.commands import planned_commands
    from dragoman.console import print_dry_run
    from dragoman.recipe import load_recipe

    path = Path(options.recipe)
    directory = RunDirectory.open(path) if path.is_dir() else None
    recipe = load_recipe(directory.recipe_file if directory else options.recipe, options.overrides)
    world_size = sum(hosts.ranks_per_host) if hosts else options.ranks or 1
    print_dry_run(recipe, world_size=world_size)
    if hosts is not None:
        run = directory.path.name if directory else f"{recipe.name}-TIME-DIGEST"
        print("", *planned_commands(hosts, run=run), sep="\n")
