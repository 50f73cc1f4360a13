"""The settings of a generated file, and the command that it starts on every machine."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from dragoman.base.errors import ConfigError

PORT: Final = 29_400
"""The port at which the machines of a run meet, on the first one's private address."""
_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_HOURS: Final = 24 * 365
_GPUS: Final = 64


def quoted(value: str | Sequence[str]) -> str:
    """A string or list for YAML, which reads JSON except for escaped surrogate pairs (emoji)."""
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class ScheduledJob:
    """A training for a scheduler.

    name: the scheduler's name for it: a DNS label, as Kubernetes requires.
    recipe: a shipped recipe, or a TOML file by its path on the machines.
    folder: shared by all machines, for runs and prepared text.
    gpus: of each machine; with 0 the ranks compute on its processor.
    ranks: of each machine.
    hours: after them the scheduler may end the job; it can be resumed.
    image: of the container; "" for the environment that is there already.
    """

    name: str
    recipe: str
    folder: PurePosixPath
    nodes: int
    gpus: int
    ranks: int
    hours: int
    image: str = ""
    overrides: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"{self.name!r} cannot be a job's name",
                place="--name",
                remedy="use up to 63 small letters, digits and hyphens, a letter first",
            )
        if not self.folder.is_absolute():
            raise ConfigError(
                f"{self.folder} is not absolute",
                place="--folder",
                remedy="name the shared folder as all machines see it",
            )
        # A line break would end a comment of a script, or a block of YAML.
        for word in (str(self.folder), self.recipe, *self.overrides):
            if not word.isprintable():
                raise ConfigError(
                    f"{word!r} does not fit on one line",
                    place="generate",
                    remedy="write it without line breaks",
                )
        if not 0 <= self.gpus <= _GPUS:
            raise ConfigError(f"{self.gpus} GPUs", place="--gpus", remedy=f"0 to {_GPUS}")
        if self.hours > _HOURS:
            raise ConfigError(f"{self.hours} hours", place="--hours", remedy="at most a year")

    def command(self, *, at: str) -> list[str]:
        """`dragoman join` as an argument list; at: ADDRESS:PORT in the scheduler's own words."""
        overrides = [word for override in self.overrides for word in ("--set", override)]
        return [
            *("dragoman", "join", "--at", at, self.recipe, "--ranks", str(self.ranks)),
            *("--runs", str(self.folder / "runs")),  # shards lie beside them, by their digest
            *overrides,
        ]

    def shell_command(self, *, at: str) -> str:
        """The same for bash, which takes every word literally except `at`, where it fills in
        variables."""
        before, after = self.command(at=at)[:3], self.command(at=at)[4:]
        return f'{shlex.join(before)} "{at}" {shlex.join(after)}'
