"""`dragoman join`: train as one of the machines that a scheduler started."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dragoman.base.errors import MachineError
from dragoman.cli.options import (
    FRESH,
    PLACES,
    RANKS,
    RECIPE,
    SET,
    Command,
    Option,
    Options,
    positive,
)

_WAIT_S: Final = 6 * 3600.0
"""How long the first machine may prepare text; the scheduler's own limit is usually shorter."""
_APPEAR_S: Final = 120.0
"""How long a shared folder may take to show a file that another machine wrote."""
_LOOK_EVERY_S: Final = 1.0


@Command(
    "join",
    "train as one of the machines a scheduler started",
    "Train as one of the machines that a scheduler started; the files of dragoman generate call "
    "it.",
    *(RECIPE, SET),
    Option("--at", required=True, help="ADDRESS:PORT of the first machine"),
    Option(
        "--node",
        type=int,
        help="the number of this machine, from 0 (default: as the scheduler says)",
    ),
    Option(
        "--nodes", type=positive, help="the number of machines (default: as the scheduler says)"
    ),
    *PLACES,
    RANKS.but(default=1, help="processes that train on this machine (default: 1)"),
    FRESH,
)
def run(options: Options) -> None:
    """Train a recipe as one of several machines that run this same command."""
    import hashlib

    from dragoman.base.disk_errors import disk_errors_named
    from dragoman.base.files import write_whole
    from dragoman.cluster.scheduled import ScheduledNode, met
    from dragoman.recipe.recipe import load_recipe
    from dragoman.recipe.run_directory import RunDirectory
    from dragoman.run import run as steps
    from dragoman.telemetry.console import ConsoleSink

    recipe = load_recipe(options.recipe, options.overrides)
    place = ScheduledNode.read(
        options.at, node=options.node, nodes=options.nodes, environment=os.environ
    )
    note = options.runs / f".join-{hashlib.sha256(place.token.encode()).hexdigest()[:16]}"
    if place.node == 0:
        # Beside the runs, in a folder that all machines share.
        shards = options.prepared or options.runs.parent / steps.default_place(recipe)
        prepared = _once_free(
            lambda: steps.prepare(recipe, directory=shards, workers=options.workers)
        )
        directory = steps.start(recipe, prepared=prepared, runs=options.runs, fresh=options.fresh)
        with disk_errors_named(options.runs):
            write_whole(note, directory.path.name)
    try:
        with met(place, wait_s=_WAIT_S) as share:
            if place.node:
                directory = RunDirectory.open(options.runs / _read_when_there(note))
            steps.train_share(directory, share, ranks=options.ranks, listeners=[ConsoleSink()])
    finally:
        if place.node == 0:
            note.unlink(missing_ok=True)
    print(f"run directory: {directory.path}")


def _once_free(prepare: Callable[[], Path]) -> Path:
    """The prepared shards. If another job prepares the same corpus, wait, then use its shards."""
    from dragoman.corpus.workplace import OccupiedError

    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            return prepare()
        except OccupiedError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_LOOK_EVERY_S)


def _read_when_there(note: Path) -> str:
    """The first machine's note, once the shared folder shows it; raises MachineError if it never
    does."""
    deadline = time.monotonic() + _APPEAR_S
    while True:
        with contextlib.suppress(FileNotFoundError):
            if text := note.read_text(encoding="utf-8"):
                return text
        if time.monotonic() > deadline:
            raise MachineError(
                "the run that the first machine made is not here",
                place=note.parent,
                remedy="--runs must name a folder that all machines share",
            )
        time.sleep(_LOOK_EVERY_S)
