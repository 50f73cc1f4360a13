"""Commands for machines that a scheduler starts: write its file, and what that file runs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final

from dragoman.errors import ConfigError, MachineError
from dragoman.files import disk_errors_named, write_whole
from dragoman.run_directory import RunDirectory

_WAIT_S: Final = 6 * 3600.0
"""How long the first machine may prepare text; the scheduler's own limit comes first mostly."""
_APPEAR_S: Final = 120.0
"""How long a shared folder may take to show on one machine what another wrote."""
_PASSWORD: Final = re.compile(r"://[^/\s]*@")
_LOOK_EVERY_S: Final = 1.0


def join(options: Namespace) -> int:
    """Train a recipe as one of several machines that run this same command."""
    from dragoman import run as steps
    from dragoman.cluster.scheduled import Place, met
    from dragoman.recipe import load_recipe

    recipe = load_recipe(options.recipe, options.overrides)
    place = Place.read(options.at, node=options.node, nodes=options.nodes, environment=os.environ)
    note = options.runs / f".join-{hashlib.sha256(place.token.encode()).hexdigest()[:16]}"
    if place.node == 0:
        # Beside the runs: what all machines share.
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
            steps.train_share(directory, share, ranks=options.ranks)
    finally:
        if place.node == 0:
            note.unlink(missing_ok=True)
    print(f"run directory: {directory.path}")
    return 0


def generate(options: Namespace) -> int:
    """Write the file of a scheduler to standard output."""
    from dragoman.cluster.launchers.job import ScheduledJob
    from dragoman.cluster.launchers.kubernetes import kubernetes
    from dragoman.cluster.launchers.skypilot import skypilot
    from dragoman.cluster.launchers.slurm import slurm
    from dragoman.recipe import load_recipe

    recipe = load_recipe(options.recipe, options.overrides)
    for override in options.overrides:
        if _PASSWORD.search(override):
            raise ConfigError(
                "the password in this address would stand in the file",
                place=f"--set {override.partition('=')[0].strip()}",
                remedy="write the address into the recipe",
            )
    if options.gpus > 0 and options.slots:
        raise ConfigError(
            "a machine trains on its GPUs or on its processors",
            place=f"--gpus {options.gpus} --slots {options.slots}",
            remedy="leave one of the two out",
        )
    job = ScheduledJob(
        name=options.name or recipe.name.lower().replace("_", "-"),
        recipe=options.recipe,
        folder=PurePosixPath(options.folder),
        nodes=options.nodes,
        gpus=options.gpus,
        ranks=options.gpus or options.slots or 1,
        hours=options.hours,
        image=options.image,
        overrides=options.overrides,
    )
    match options.kind:
        case "slurm":
            text = slurm(job)
        case "kubernetes":
            if not job.image:
                raise ConfigError(
                    "pods need an image",
                    place="--image",
                    remedy="build docker/Dockerfile, push it and name it",
                )
            text = kubernetes(job)
        case "skypilot":
            text = skypilot(job, accelerator=options.gpu)
    sys.stdout.write(text)
    return 0


def _once_free(prepare: Callable[[], Path]) -> Path:
    """The shards. Jobs of one corpus that begin together prepare it once, and all use it."""
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
    """What the first machine wrote, once the shared folder shows it here."""
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
