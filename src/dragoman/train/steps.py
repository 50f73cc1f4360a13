"""Names of checkpoints, step-0004000. They are in order by number: one may have eight digits."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PREFIX: Final = "step-"


def step_name(step: int) -> str:
    """The name of the checkpoint of this step."""
    return f"{_PREFIX}{step:07d}"


def step_number(name: str) -> int:
    """The step of the checkpoint of this name; -1 where no checkpoint is named so."""
    digits = name.removeprefix(_PREFIX)
    return int(digits) if digits != name and digits.isdecimal() else -1


def step_directories(directory: Path) -> list[Path]:
    """The checkpoints in a directory, the newest last; none of them is checked."""
    found = (path for path in directory.glob(f"{_PREFIX}*") if step_number(path.name) >= 0)
    return sorted(found, key=lambda path: step_number(path.name))
