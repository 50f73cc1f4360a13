"""Machines: their faults, their set-up, and trainings that a scheduler starts."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Final, Literal

from dragoman.api.checks import checked, opened_run, optional_path
from dragoman.api.kinds import Count, HostsLike, Option, Overrides, RecipeLike, RunLike
from dragoman.base.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from dragoman.cluster.checks import Finding
    from dragoman.cluster.facts import ClusterFacts
    from dragoman.cluster.hosts import Hosts
    from dragoman.recipe.run_directory import RunDirectory

_NEEDED_BYTES: Final = 2_000_000_000
"""Free disk that each host must have: for code, some data, some checkpoints."""
_PASSWORD: Final = re.compile(r"://[^/\s]*@")
_WAIT_S: Final = 6 * 3600.0
"""How long the first machine may prepare text; the scheduler's own limit is usually shorter."""
_APPEAR_S: Final = 120.0
"""How long a shared folder may take to show a file that another machine wrote."""
_LOOK_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Examination:
    """What doctor has found. facts: what it measured."""

    findings: list[Finding]
    facts: ClusterFacts

    @property
    def is_fit(self) -> bool:
        """Whether a training would start."""
        from dragoman.cluster.checks import is_fit

        return is_fit(self.findings)


@checked
def doctor(*, hosts: HostsLike | None = None, run: RunLike | None = None) -> Examination:
    """Find faults of this machine, or of hosts, with remedies.

    Of hosts it examines the network between them, too.

    hosts: hosts.toml, or the inline form 10.0.0.1:2,10.0.0.2:1; None: this machine.
    run: with hosts: a run, whose files on the hosts are compared as well.
    Raises ConfigError if the hosts cannot be read, MachineError if one cannot be reached.
    """
    from dragoman.cluster.checks import RunNeeds, examine, examine_here
    from dragoman.cluster.facts import ClusterFacts
    from dragoman.cluster.hosts import Host, Hosts

    if hosts is None:
        from dragoman.cluster.host_facts import facts_here

        if run is not None:
            raise ConfigError(
                "compares the files of a run on its hosts", place="run", remedy="name its hosts"
            )
        seen = facts_here()
        gpus = seen.gpus_visible
        own = Host(address="localhost", name=seen.host, gpus=gpus, slots=0 if gpus else 1)
        needs = RunNeeds(Hosts(host=(own,)), needed_bytes=_NEEDED_BYTES)
        return Examination(examine_here(seen, needs), ClusterFacts(hosts=(seen,)))
    from dragoman.cluster.collect import collect_facts, remember
    from dragoman.cluster.training import digests_here

    hosts = _hosts_of(hosts)
    directory = None if run is None else opened_run(run)
    place = "" if directory is None else f"runs/{directory.path.name}"
    facts = collect_facts(hosts, run=place).facts
    remember(hosts, facts)
    digests = {} if directory is None else digests_here(directory)
    needs = RunNeeds(hosts, needed_bytes=_NEEDED_BYTES, digests=digests)
    return Examination(examine(facts, needs), facts)


@checked
def setup(*, hosts: HostsLike) -> None:
    """Install a Python environment with torch on every host, over ssh.

    hosts: hosts.toml, or the inline form 10.0.0.1:2,10.0.0.2:1.
    Raises ConfigError if a host's Python is in no virtual environment, and MachineError.
    """
    from dragoman.api.progress import line_printer
    from dragoman.cluster.setup import set_up

    set_up(_hosts_of(hosts), print_line=line_printer(True))


def _hosts_of(hosts: HostsLike) -> Hosts:
    from dragoman.cluster.hosts import load_hosts

    return load_hosts(str(hosts)) if isinstance(hosts, str | Path) else hosts


@checked
def jobs(
    scheduler: Literal["slurm", "kubernetes", "skypilot"],
    recipe: Annotated[str, Option(metavar="RECIPE")],
    *,
    folder: str,
    overrides: Overrides = (),
    name: str | None = None,
    nodes: Count = 1,
    gpus: int = 0,
    slots: Count | None = None,
    gpu: str = "V100",
    hours: Count = 24,
    image: str = "",
) -> str:
    """Write a job file for Slurm, Kubernetes or SkyPilot.

    These schedulers start the machines themselves; the job runs `dragoman join` on each.

    scheduler: the program that starts the machines.
    recipe: a shipped recipe, or a TOML file by its path on the machines.
    folder: a folder that all machines share.
    overrides: as for `train`.
    name: the name of the job; None: the recipe's.
    nodes: the number of machines.
    gpus: GPUs in each machine.
    slots: ranks on each machine without GPUs; None: 1.
    gpu: the kind of GPU, as SkyPilot names it.
    hours: the time limit of the job in hours.
    image: the image of the container, for Kubernetes.
    Returns the text of the file. Raises ConfigError.
    """
    from dragoman.cluster.schedulers import SCHEDULERS, ScheduledJob
    from dragoman.recipe.recipe import load_recipe

    loaded = load_recipe(recipe, overrides)
    for override in overrides:
        if _PASSWORD.search(override):
            raise ConfigError(
                "the password in this address would stand in the file",
                place=override.partition("=")[0].strip(),
                remedy="write the address into the recipe",
            )
    if gpus > 0 and slots:
        raise ConfigError(
            "a machine trains on its GPUs or on its processors",
            place=f"gpus {gpus}, slots {slots}",
            remedy="leave one of the two out",
        )
    job = ScheduledJob(
        name=name or loaded.name.lower().replace("_", "-"),
        recipe=recipe,
        folder=PurePosixPath(folder),
        nodes=nodes,
        gpus=gpus,
        ranks=gpus or slots or 1,
        hours=hours,
        gpu=gpu,
        image=image,
        overrides=overrides,
    )
    return SCHEDULERS[scheduler](job)


@checked
def join(
    recipe: RecipeLike,
    *,
    at: Annotated[str, Option(metavar="ADDRESS:PORT")],
    overrides: Overrides = (),
    node: int | None = None,
    nodes: Count | None = None,
    fresh: bool = False,
    ranks: Count = 1,
    runs: str | Path = "runs",
    prepared: str | Path | None = None,
    workers: Count | None = None,
    progress: bool = False,
) -> RunDirectory:
    """Train as one of the machines that a scheduler started.

    The files of `dragoman jobs` call it on each machine.

    recipe: as for `run_recipe`.
    overrides, fresh, prepared, workers, progress: as for `train`.
    at: where the first machine listens; all machines must reach it.
    node: the number of this machine, from 0; None: as the scheduler says.
    nodes: the number of machines; None: as the scheduler says.
    ranks: processes that train on this machine.
    runs: the folder of all runs, which all machines share.
    Returns the run's directory. Raises the errors of `train`.
    """
    import hashlib

    from dragoman.api.progress import listeners_of
    from dragoman.api.training import recipe_of
    from dragoman.base.disk_errors import disk_errors_named
    from dragoman.base.files import write_whole
    from dragoman.cluster.join import Node, rendezvous
    from dragoman.recipe.run_directory import RunDirectory
    from dragoman.run import run as steps

    loaded = recipe_of(recipe, overrides)
    folder = Path(runs)
    place = Node.read(at, node=node, nodes=nodes, environment=os.environ)
    note = folder / f".join-{hashlib.sha256(place.token.encode()).hexdigest()[:16]}"
    if place.number == 0:
        # Beside the runs, in a folder that all machines share.
        shards = optional_path(prepared) or folder.parent / steps.default_place(loaded)
        ready = _once_free(lambda: steps.prepare(loaded, directory=shards, workers=workers))
        directory = steps.start(loaded, prepared=ready, runs=folder, fresh=fresh)
        with disk_errors_named(folder):
            write_whole(note, directory.path.name)
    try:
        with rendezvous(place, wait_s=_WAIT_S) as share:
            if place.number:
                directory = RunDirectory.open(folder / _read_when_there(note))
            listeners = listeners_of(None, progress)
            steps.train_share(directory, share, ranks=ranks, listeners=listeners)
    finally:
        if place.number == 0:
            note.unlink(missing_ok=True)
    return directory


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
        with suppress(FileNotFoundError):
            if text := note.read_text(encoding="utf-8"):
                return text
        if time.monotonic() > deadline:
            raise MachineError(
                "the run that the first machine made is not here",
                place=note.parent,
                remedy="name a folder for runs that all machines share",
            )
        time.sleep(_LOOK_EVERY_S)
