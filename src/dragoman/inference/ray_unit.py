"""One unit of work on a node of a Ray cluster: a group of lines, done as the command would do it.

A process reads the files of the model with its first unit and keeps the model. Only text,
numbers and bytes are sent. An error that a user can mend comes back as words, so that Ray does not
repeat the unit. Free of torch until a unit needs it.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter

from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import (
    CheckpointError,
    ConfigError,
    CorpusError,
    DragomanError,
    MachineError,
)
from dragoman.base.line_files import TransformLines
from dragoman.base.memory import keep_freed_memory, memory_errors_named
from dragoman.base.settings import Section
from dragoman.base.version import VERSION
from dragoman.formats.ctranslate2_engine import Sampling
from dragoman.formats.kinds import Quantization
from dragoman.inference.synthesize import Synthesis, SynthesisDirection
from dragoman.inference.translator import open_translator

_ERRORS: Final = {
    kind.__name__: kind for kind in (CheckpointError, ConfigError, CorpusError, MachineError)
}


class Job(Section, ABC):
    """The work on every unit.

    cores: how many cores a unit uses. packages: the versions that all nodes must have, by name.
    """

    cores: int = 1
    packages: dict[str, str]

    @abstractmethod
    def open(self, folder: Path, counts: Counter[str]) -> AbstractContextManager[TransformLines]:
        """The function that transforms lines, with the models whose files are in the folder."""


class SynthesisJob(Job):
    """`synthesize`; the fields are its parameters.

    checkpoints: folders in that of the model; none for an export.
    sampling: how many of the likeliest pieces to draw from, and the temperature.
    """

    command: Literal["synthesize"] = "synthesize"
    checkpoints: tuple[str, ...]
    overrides: tuple[str, ...]
    engine: Literal["ctranslate2", "torch"]
    quantization: Quantization | None
    sampling: tuple[int, float] | None
    target_language: str
    direction: SynthesisDirection
    n_best: int

    @contextmanager
    def open(self, folder: Path, counts: Counter[str]) -> Iterator[TransformLines]:
        """See `Job.open`; opens the model with its engine."""
        with open_translator(
            folder,
            checkpoints=[str(folder / name) for name in self.checkpoints] or ["best"],
            overrides=self.overrides,
            engine=self.engine,
            threads=self.cores,
            quantization=self.quantization,
            sampling=None if self.sampling is None else Sampling(*self.sampling),
            target=self.target_language,
        ) as opened:
            yield Synthesis(opened, self.direction, self.n_best, counts).lines


class ScoringJob(Job):
    """`score`.

    models: the folder of each model, and that of its checkpoint in it; "" for an export.
    columns: the columns in each line of the pairs. tokens: the token before the texts of each
    model.
    """

    command: Literal["score"] = "score"
    models: tuple[tuple[str, str], ...]
    columns: int
    tokens: tuple[str, ...]

    @contextmanager
    def open(self, folder: Path, counts: Counter[str]) -> Iterator[TransformLines]:
        """See `Job.open`; loads the models into PyTorch."""
        import torch

        from dragoman.distributed.world import join_world
        from dragoman.formats.load import load_translation_model
        from dragoman.inference.scoring import PairScorer

        torch.set_num_threads(self.cores)
        keep_freed_memory()
        with join_world() as world:
            models = [
                load_translation_model(
                    folder / model, [str(folder / model / which) if which else "best"], world
                )
                for model, which in self.models
            ]
            yield PairScorer(
                models[0],
                models[1] if len(models) > 1 else None,
                columns=self.columns,
                counts=counts,
                tokens=self.tokens,
            ).lines


_AnyJob: Final[TypeAdapter[SynthesisJob | ScoringJob]] = TypeAdapter(
    Annotated[SynthesisJob | ScoringJob, Field(discriminator="command")]
)


class Finished(Section):
    """A unit that is done: the text for each line, and counts; or the error that prevented it."""

    written: tuple[str, ...] = ()
    counts: dict[str, int] = Field(default_factory=dict)
    error: tuple[str, str, str, str] | None = None
    """Its class, problem, place and remedy."""

    def raise_error(self) -> None:
        """Raises the DragomanError that prevented it, if one did."""
        if self.error is not None:
            kind, problem, place, remedy = self.error
            raise _ERRORS[kind](problem, place=place, remedy=remedy)


class _OpenedJob:
    """The last job that this process opened."""

    key = ""
    stack = ExitStack()
    counts: Counter[str]
    lines: TransformLines


def do_unit(key: str, job: str, files: Mapping[str, Any], text: str, first: int) -> str:
    """Do one unit in a process of Ray; returns a Finished as JSON.

    key: a digest of the job and the content of its files. job: as JSON. files: references of Ray to
    the content of files, by name. text: the lines, ended by newlines. first: the number of the
    first line.
    Prints when it begins and ends, which Ray writes to the log of the process.
    """
    began_s = time.time()
    print(json.dumps({"unit": first, "began": began_s}), flush=True)
    done = _do(key, job, files, text, first)
    print(json.dumps({"unit": first, "took_s": time.time() - began_s}), flush=True)
    return done.model_dump_json()


def _do(key: str, job: str, files: Mapping[str, Any], text: str, first: int) -> Finished:
    try:
        with memory_errors_named("give the node more memory, or each unit more cores"):
            if _OpenedJob.key != key:
                _open(key, _AnyJob.validate_json(job), files)
            lines = text.split("\n")[:-1]
            _OpenedJob.counts.clear()
            written = tuple(chain.from_iterable(_OpenedJob.lines(lines, first)))
            return Finished(written=written, counts=dict(_OpenedJob.counts))
    except DragomanError as error:
        kind = next(name for name in _ERRORS if isinstance(error, _ERRORS[name]))
        place = error.place
        if not isinstance(error, CorpusError):  # that is about a line, which is wrong everywhere
            place = f"node {_node()}" + (f", {place}" if place else "")
        said = (kind, error.problem, place, error.remedy)
        return Finished(error=said)


def _open(key: str, job: Job, files: Mapping[str, Any]) -> None:
    import ray

    _check_packages(job.packages)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a unit is given cores alone
    _OpenedJob.stack.close()
    _OpenedJob.key = ""
    with tempfile.TemporaryDirectory(prefix="dragoman-") as name, disk_errors_named(Path(name)):
        folder = Path(name)
        for file, content in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(ray.get(content))
        _OpenedJob.counts = Counter()
        _OpenedJob.stack = ExitStack()
        _OpenedJob.lines = _OpenedJob.stack.enter_context(job.open(folder, _OpenedJob.counts))
    _OpenedJob.key = key


def versions(*packages: str) -> dict[str, str]:
    """The versions of dragoman and of packages on this machine, by name."""
    return {package: _installed(package) for package in ("dragoman", *packages)}


def _installed(package: str) -> str:
    """The version of a package, without its build; "" if it is not there."""
    if package == "dragoman":
        return VERSION
    try:
        return version(package).split("+")[0]
    except PackageNotFoundError:
        return ""


def _check_packages(packages: Mapping[str, str]) -> None:
    """Raises MachineError if this node lacks a package or has another version of it."""
    for package, wanted in packages.items():
        if (found := _installed(package)) != wanted:
            raise MachineError(
                f"has {package} {found}, not {wanted}" if found else f"has no {package}",
                remedy=f"install there: pip install {package}=={wanted}",
            )


def _node() -> str:
    import ray

    return str(ray.util.get_node_ip_address())
