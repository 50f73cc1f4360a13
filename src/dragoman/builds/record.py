"""`build.json`: when a build began, and what each of its stages has made."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError

from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import CheckpointError
from dragoman.base.files import write_whole
from dragoman.base.settings import Section
from dragoman.builds.plan import StageName

RECORD: Final = "build.json"


class BuildStage(Section):
    """A stage that has ended.

    inputs: their digest. started, ended: UTC seconds since 1970. facts: its results, with its
    `output`, a file or folder. skipped: why it was left out; "" if it was not.
    """

    name: StageName
    inputs: str = ""
    started: float
    ended: float
    facts: dict[str, Any] = Field(default_factory=dict)
    skipped: str = ""


class BuildRecord(Section):
    """started: when the build began, UTC seconds since 1970; None: its clock is not running. plan:
    the digest of the plan for which stages were left out."""

    started: float | None = None
    plan: str = ""
    stages: dict[StageName, BuildStage] = Field(default_factory=dict)

    @property
    def last_s(self) -> float:
        """When the last stage ended, or the build began; UTC seconds since 1970."""
        return max([self.started or 0.0, *(one.ended for one in self.stages.values())])

    @classmethod
    def read(cls, directory: Path) -> BuildRecord:
        """The record of a build; an empty one if there is none. Raises CheckpointError if it is
        damaged."""
        file = directory / RECORD
        try:
            return cls.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return cls()
        except (OSError, ValidationError) as error:
            raise CheckpointError(
                "is not the record of a build",
                place=file,
                remedy="remove it: the clock starts again, and finished parts are kept",
            ) from error

    def save(self, directory: Path) -> None:
        """Write it."""
        with disk_errors_named(directory):
            write_whole(directory / RECORD, self.model_dump_json(indent=1))
