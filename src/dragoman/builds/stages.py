"""When each stage of a build began and ended: a file per stage, and one for the clock.

The clock measures wall time from the first command on. A stage gets its share of the time left
when it begins; the stages that follow get the time that it does not use.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError

from dragoman.base import units
from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import CheckpointError, ConfigError
from dragoman.base.files import read_regular, write_whole
from dragoman.base.settings import Section
from dragoman.builds.plan import FILE, STAGES, BuildPlan, StageName

_FOLDER: Final = "stages"
_CLOCK: Final = "clock.json"
_LONGEST: Final = 1 << 24
_REPORT_S: Final = 1.0
"""Seconds of the budget for the work after the last stage."""


class BuildStage(Section):
    """The record of a stage.

    asked: a digest of its inputs. started, ended: UTC seconds since 1970. seconds_s: the time
    that it was given. facts: its results. skipped: why it was not done; "" if it was not left out.
    """

    name: StageName
    asked: str
    started: float
    seconds_s: float
    ended: float | None = None
    facts: dict[str, Any] = Field(default_factory=dict)
    skipped: str = ""

    @property
    def spent_s(self) -> float | None:
        """Seconds from its beginning to its end; None before that."""
        return None if self.ended is None else self.ended - self.started


class OverError(ConfigError):
    """The budget of a build was over before a stage began."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of a build: when it began, and its budget."""

    started: float
    budget_s: float

    @property
    def used_s(self) -> float:
        """Seconds since it began."""
        return time.time() - self.started

    @property
    def left_s(self) -> float:
        """Seconds that are left for stages."""
        return self.started + self.budget_s - _REPORT_S - time.time()

    @classmethod
    def of(cls, directory: Path, budget_s: float, *, began: float) -> Clock:
        """The clock of this directory, which starts if it has not started yet. A changed budget
        moves its end. Raises CheckpointError if its file is damaged."""
        file = directory / _CLOCK
        try:
            return cls(float(json.loads(read_regular(file, limit=_LONGEST))), budget_s)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(
                "does not say when the build began", place=file, remedy="remove it to start again"
            ) from error
        with disk_errors_named(directory):
            write_whole(file, json.dumps(began))
        return cls(began, budget_s)


def forget_clock(directory: Path) -> None:
    """Let the clock start again with the next command; only if nothing has been trained. A stage
    that has begun and not ended starts again, too: its time was a share of the old budget."""
    (directory / _CLOCK).unlink(missing_ok=True)
    for name in STAGES:
        stage = read_stage(directory, name)
        if stage is not None and stage.ended is None:
            _record(directory, name).unlink()


@contextmanager
def clock_runs(directory: Path, *, began: float) -> Iterator[None]:
    """Start the clock of a build that is planned now; an error or Ctrl-C stops it again."""
    if (directory / _CLOCK).exists():
        yield
        return
    with disk_errors_named(directory):
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(directory / _CLOCK, json.dumps(began))
    try:
        yield
    except BaseException:
        forget_clock(directory)
        with suppress(OSError):
            directory.rmdir()  # if nothing else is there
        raise


def digest_of(*parts: object) -> str:
    """A digest of the inputs of a stage."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def read_stage(directory: Path, name: StageName) -> BuildStage | None:
    """The record of a stage; None if it has not begun. Raises CheckpointError if it is damaged."""
    file = _record(directory, name)
    try:
        return BuildStage.model_validate_json(read_regular(file, limit=_LONGEST))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise CheckpointError(
            "is not the record of a stage",
            place=file,
            remedy="remove it: the stage is looked at again",
        ) from error


def _record(directory: Path, name: StageName) -> Path:
    return directory / _FOLDER / f"{name}.json"


def save_stage(directory: Path, stage: BuildStage) -> BuildStage:
    """Write the record of a stage; returns it."""
    with disk_errors_named(directory):
        (directory / _FOLDER).mkdir(parents=True, exist_ok=True)
        write_whole(_record(directory, stage.name), stage.model_dump_json(indent=1))
    return stage


@dataclass(frozen=True)
class Stages:
    """Does each stage once, on one clock. ended: called with the record of a stage that has ended
    or was left out."""

    directory: Path
    plan: BuildPlan
    clock: Clock
    ended: Callable[[BuildStage], None]

    def do(
        self,
        name: StageName,
        asked: str,
        work: Callable[[BuildStage], Mapping[str, Any]],
        *,
        has_begun: Callable[[], bool] = lambda: True,
    ) -> BuildStage:
        """Do the stage if it is not done yet; returns its record.

        asked: a digest of its inputs; if it has changed, the stage is done again. has_begun:
        whether the stage has left something to resume from when its time is over. work: does the
        stage and returns its facts; after an error that it raises, the next command resumes the
        stage.
        Raises OverError if the time of the build is over before the stage begins, CheckpointError
        if its record is damaged.
        """
        stage = read_stage(self.directory, name)
        if stage is not None and stage.asked == asked and stage.ended is not None:
            return stage
        if stage is None or stage.asked != asked or (self._is_over(stage) and not has_begun()):
            stage = save_stage(self.directory, self._begun(name, asked))
        facts = dict(work(stage))
        stage = stage.model_copy(update={"ended": time.time(), "facts": facts})
        self.ended(save_stage(self.directory, stage))
        return stage

    def skip(self, name: StageName, asked: str, why: str) -> BuildStage:
        """Record that a stage is not done; one that has begun keeps the time that it took."""
        now = time.time()
        begun = read_stage(self.directory, name)
        if begun is None or begun.ended is not None:
            begun = BuildStage(name=name, asked=asked, started=now, seconds_s=0.0)
        stage = begun.model_copy(update={"asked": asked, "ended": now, "skipped": why})
        self.ended(save_stage(self.directory, stage))
        return stage

    def _begun(self, name: StageName, asked: str) -> BuildStage:
        shares = self.plan.shares()
        names = list(shares)
        still = sum(shares[one] for one in names[names.index(name) :])
        left_s = self.clock.left_s
        if left_s <= 0:
            raise OverError(
                f"the budget of {units.DURATION.text(self.clock.budget_s)} was over before {name}",
                place=self.directory / FILE,
            )
        seconds_s = left_s * shares[name] / still
        return BuildStage(name=name, asked=asked, started=time.time(), seconds_s=seconds_s)

    def _is_over(self, stage: BuildStage) -> bool:
        return time.time() > stage.started + stage.seconds_s
