"""`build.json`: when a build began, and what each of its stages has made.

The clock measures wall time from the first command on. A stage gets its share of the time left
when it begins; the stages that follow get the time that it does not use. A stage is done when its
output is there and its inputs are as they were.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError

from dragoman.base import units
from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import CheckpointError, ConfigError
from dragoman.base.files import read_regular, write_whole
from dragoman.base.settings import Section
from dragoman.builds.plan import FILE, BuildPlan, StageName

RECORD: Final = "build.json"
_LONGEST: Final = 1 << 24
_REPORT_S: Final = 1.0
"""Seconds of the budget for the work after the last stage."""


class BuildStage(Section):
    """The record of a stage.

    inputs: their digest. output: the file or folder that is there when it is done. started, ended:
    UTC seconds since 1970. seconds_s: the time that it was given. facts: its results. skipped: why
    it was not done; "" if it was not left out.
    """

    name: StageName
    inputs: str
    output: str = ""
    started: float
    seconds_s: float
    ended: float | None = None
    facts: dict[str, Any] = Field(default_factory=dict)
    skipped: str = ""

    @property
    def is_done(self) -> bool:
        """Whether it has ended, and its output is there."""
        return self.ended is not None and not self.skipped and Path(self.output).exists()

    @property
    def spent_s(self) -> float | None:
        """Seconds from its beginning to its end; None before that."""
        return None if self.ended is None else self.ended - self.started


class OverError(ConfigError):
    """The budget of a build was over before a stage began."""


class BuildRecord(Section):
    """When a build began, in UTC seconds since 1970, and its stages; None: its clock is not
    running."""

    started: float | None = None
    stages: dict[StageName, BuildStage] = Field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> BuildRecord:
        """The record of a build; an empty one if there is none. Raises CheckpointError if it is
        damaged."""
        file = directory / RECORD
        try:
            return cls.model_validate_json(read_regular(file, limit=_LONGEST))
        except FileNotFoundError:
            return cls()
        except (OSError, ValidationError) as error:
            raise CheckpointError(
                "is not the record of a build",
                place=file,
                remedy="remove it: the clock starts again, and finished parts are kept",
            ) from error

    def save(self, directory: Path) -> BuildRecord:
        """Write it; returns it."""
        with disk_errors_named(directory):
            write_whole(directory / RECORD, self.model_dump_json(indent=1))
        return self

    def without_clock(self) -> BuildRecord:
        """Without the clock, for a build that has trained nothing: a stage that has begun and not
        ended begins again, too, as its time was a share of the old budget."""
        ended = {name: stage for name, stage in self.stages.items() if stage.ended is not None}
        return BuildRecord(stages=ended)


def digest_of(*parts: object) -> str:
    """A digest of the inputs of a stage."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class Stages:
    """Does each stage of a plan once, on one clock. ended: called after each stage that has ended
    or was left out."""

    def __init__(
        self,
        directory: Path,
        plan: BuildPlan,
        budget_s: float,
        *,
        began: float,
        ended: Callable[[BuildStage], None],
    ) -> None:
        self.directory, self.plan, self.budget_s, self._ended = directory, plan, budget_s, ended
        record = BuildRecord.read(directory)
        if record.started is None:
            record = record.model_copy(update={"started": began}).save(directory)
        self.record = record

    @property
    def started(self) -> float:
        """When the build began, in UTC seconds since 1970."""
        assert self.record.started is not None
        return self.record.started

    def do(
        self,
        name: StageName,
        inputs: str,
        work: Callable[[BuildStage], tuple[Path, Mapping[str, Any]]],
        *,
        has_begun: Callable[[], bool] = lambda: True,
    ) -> BuildStage:
        """Do the stage if it is not done yet; returns its record.

        work: does the stage; gives its output and its facts. After an error that it raises, the
        next command resumes it. has_begun: whether the stage has left something to resume from
        when its time is over.
        Raises OverError if the time of the build is over before the stage begins.
        """
        stage = self.record.stages.get(name)
        is_same = stage is not None and stage.inputs == inputs
        if stage is not None and is_same and stage.is_done:
            return stage
        is_over = stage is not None and time.time() > stage.started + stage.seconds_s
        if stage is None or not is_same or (is_over and not has_begun()):
            stage = self._keep(self._begun(name, inputs))
        output, facts = work(stage)
        changes = {"ended": time.time(), "output": str(output), "facts": dict(facts)}
        return self._end(stage.model_copy(update=changes))

    def skip(self, name: StageName, why: str) -> None:
        """Record that a stage is not done; one that has begun keeps the time that it took."""
        now, stage = time.time(), self.record.stages.get(name)
        if stage is None or stage.ended is not None:
            stage = BuildStage(name=name, inputs="", started=now, seconds_s=0.0)
        changes = {"inputs": self._plan_digest(), "ended": now, "skipped": why}
        self._end(stage.model_copy(update=changes))

    def was_skipped(self, *names: StageName) -> bool:
        """Whether an earlier command with the same plan left one of these stages out."""
        stages = [stage for name in names if (stage := self.record.stages.get(name))]
        return any(one.skipped and one.inputs == self._plan_digest() for one in stages)

    def forget_clock(self) -> None:
        """Let the clock start again with the next command."""
        self.record = self.record.without_clock().save(self.directory)

    def _plan_digest(self) -> str:
        return digest_of(self.plan.model_dump())

    def _keep(self, stage: BuildStage) -> BuildStage:
        stages = {**self.record.stages, stage.name: stage}
        self.record = self.record.model_copy(update={"stages": stages}).save(self.directory)
        return stage

    def _end(self, stage: BuildStage) -> BuildStage:
        self._ended(self._keep(stage))
        return stage

    def _begun(self, name: StageName, inputs: str) -> BuildStage:
        shares = self.plan.shares()
        names = list(shares)
        still = sum(shares[one] for one in names[names.index(name) :])
        now = time.time()
        left_s = self.started + self.budget_s - _REPORT_S - now
        if left_s <= 0:
            raise OverError(
                f"the budget of {units.DURATION.text(self.budget_s)} was over before {name}",
                place=self.directory / FILE,
            )
        return BuildStage(
            name=name, inputs=inputs, started=now, seconds_s=left_s * shares[name] / still
        )
