"""One directory holds all of a run; its name says which recipe made it and when.

runs/<name>-<utc>-<digest>/
    recipe.toml              the resolved recipe
    corpus.json              where the shards lie, and their manifest's digest
    manifest.json            the sources of the shards
    source.model target.model   the subword models
    origin.json              the origin of the weights, if they were not drawn at random
    events/                  the events: prepare.jsonl, and log.jsonl of the run
    tensorboard/             the events for TensorBoard
    checkpoints/             step-NNNNNNN directories
    samples/                 translations of test sets
"""

from __future__ import annotations

import errno
import hashlib
import json
import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from dragoman.base.errors import CheckpointError, MachineError
from dragoman.base.files import read_regular, whole_directory
from dragoman.corpus.manifest import Manifest
from dragoman.recipe.recipe import Recipe, digest, dump_toml, recorded_recipe

ORIGIN_FILE: Final = "origin.json"
"""In a run's directory: the origin of its weights before the first step."""
PREPARE_EVENTS: Final = "prepare.jsonl"
"""In the folder of events: those of the preparation of the corpus."""
_DIGEST_CHARACTERS: Final = 8
_LONGEST_RECORD: Final = 1 << 20
_BREATH_S: Final = 0.05
_BUNDLE: Final = "bundle.json"
"""The file that distinguishes an export from a run."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The paths of one run."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))  # callers may give a string

    @property
    def recipe_file(self) -> Path:
        """The file of the resolved recipe."""
        return self.path / "recipe.toml"

    @property
    def events(self) -> Path:
        """The folder of the files of events."""
        return self.path / "events"

    @property
    def checkpoints(self) -> Path:
        """The directory of all checkpoints."""
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        """The folder of event files in TensorBoard's own format."""
        return self.path / "tensorboard"

    @property
    def samples(self) -> Path:
        """The folder of translations of test sets."""
        return self.path / "samples"

    @property
    def own_samples(self) -> Path:
        """Those that a run with a budget ended with, whatever was evaluated later."""
        return self.samples / "of-run"

    def recipe(self) -> Recipe:
        """The resolved recipe of this run."""
        return recorded_recipe(self.recipe_file)

    def prepared(self) -> Path:
        """The prepared corpus of this run, checked to be the one it started with.

        Raises CheckpointError if it is gone or was prepared again from other text, or if the run
        does not say where it lies; CorpusError if its manifest cannot be read.
        """
        file = self.path / "corpus.json"
        try:
            record = json.loads(read_regular(file, limit=_LONGEST_RECORD))
            directory, known = Path(record["prepared"]), record["digest"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(
                "does not say where the prepared corpus lies",
                place=file,
                remedy="restore it from a backup, or start a new run (fresh)",
            ) from error
        remedy = (
            f"prepare the corpus again with: dragoman prepare {shlex.quote(str(self.recipe_file))}"
        )
        if not (directory / "manifest.json").is_file():
            raise CheckpointError("the prepared corpus is gone", place=directory, remedy=remedy)
        if Manifest.load(directory).digest != known:
            raise CheckpointError(
                "the prepared corpus is not the one this run was started with",
                place=directory,
                remedy="start a new run (fresh)",
            )
        return directory

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """The run at this path; raises CheckpointError if there is none."""
        path = Path(path)
        # Its name is its place on hosts and in the record; `.` has none.
        run = cls(path if path.name not in ("", "..") else path.resolve())
        if (path / _BUNDLE).is_file():
            raise CheckpointError(
                "is an export",
                place=path,
                remedy="name the run that it was made of (an imported model has none); dragoman "
                "compare, score, serve, synthesize and translate take exports",
            )
        if not path.exists():
            raise CheckpointError("does not exist", place=path, remedy="check the name")
        if not run.recipe_file.is_file():
            raise CheckpointError(
                "is not a run directory: it holds no recipe.toml",
                place=path,
                remedy="name a directory that dragoman run or dragoman train made",
            )
        return run

    @classmethod
    def create(
        cls,
        recipe: Recipe,
        *,
        prepared: Path,
        runs: Path,
        origin: str = "",
        fill: Callable[[RunDirectory], None] | None = None,
    ) -> RunDirectory:
        """A new run directory, complete or not there at all.

        origin: digest of the model that it starts from.
        fill: writes that model into the draft of the directory.
        Raises MachineError if the directory cannot be created, CorpusError without a prepared
        corpus.
        """
        # Imported here: commands that only read a run start sooner without all kinds of events.
        from dragoman.telemetry.events import event_file

        path = _new_name(runs, recipe, origin)
        digest_of_corpus = Manifest.load(prepared).digest
        record = {"prepared": str(prepared.resolve()), "digest": digest_of_corpus}
        try:
            with whole_directory(path) as draft:
                (draft / "recipe.toml").write_text(dump_toml(recipe), encoding="utf-8")
                for name in ("manifest.json", "source.model", "target.model"):
                    shutil.copyfile(prepared / name, draft / name)
                events = event_file(prepared / "events")
                if events.is_file():  # they belong to the record of every run of the corpus
                    (draft / "events").mkdir()
                    shutil.copyfile(events, draft / "events" / PREPARE_EVENTS)
                (draft / "corpus.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
                if fill is not None:
                    fill(cls(draft))
        except OSError as error:
            taken = error.errno in (errno.EEXIST, errno.ENOTEMPTY)
            raise MachineError(
                f"cannot create the run directory: {error.strerror}",
                place=path,
                remedy="another process has just made it; run the command again"
                if taken
                else "free disk space, or choose another folder for runs",
            ) from error
        return cls(path)

    @classmethod
    def newest(cls, recipe: Recipe, *, runs: str | Path, origin: str = "") -> RunDirectory | None:
        """The latest run of exactly this recipe from this origin, or None."""
        pattern = f"{recipe.name}-*-{_label(recipe, origin)}"
        found = sorted(
            path for path in Path(runs).glob(pattern) if (path / "recipe.toml").is_file()
        )
        return cls(found[-1]) if found else None


def _new_name(runs: Path, recipe: Recipe, origin: str) -> Path:
    """The path of a run that begins now; waits if one began in this second."""
    while True:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        path = runs / f"{recipe.name}-{stamp}-{_label(recipe, origin)}"
        if not path.exists():
            return path
        time.sleep(_BREATH_S)


def runs_in(folder: Path) -> list[Path]:
    """The directories of all runs in a folder, the newest first, without exports beside them."""
    found = [
        path for path in folder.glob("[!.]*/recipe.toml") if not path.with_name(_BUNDLE).is_file()
    ]
    found.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    return [path.parent for path in found]


def _label(recipe: Recipe, origin: str) -> str:
    """The digits that end the name of a run."""
    whole = digest(recipe)
    if origin:
        whole = hashlib.sha256(f"{whole} {origin}".encode()).hexdigest()
    return whole[:_DIGEST_CHARACTERS]
