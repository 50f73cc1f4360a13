"""A small folder of text with a recipe, for commands that shall fail, and what they then say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tiny_recipe import TINY

SENTENCES = [
    (f"The cell number {n} is empty.", f"Die Zelle Nummer {n} ist leer.") for n in range(60)
]
SMALL = (
    TINY
    + """\
[train]
max_steps = 2
log_every_steps = 1
validate_every_steps = 1
[checkpoint]
every_steps = 1
keep_last = 2
[evaluate]
bootstrap_samples = 0
"""
)


def write_good_folder() -> None:
    Path("small.toml").write_text(SMALL)
    Path("train.en").write_text("".join(f"{source}\n" for source, _ in SENTENCES))
    Path("train.de").write_text("".join(f"{target}\n" for _, target in SENTENCES))


def replace(name: str, old: str, new: str) -> Callable[[], object]:
    return lambda: Path(name).write_text(Path(name).read_text().replace(old, new))


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr; its remedy follows a semicolon."""
    error = capsys.readouterr().err.strip()
    assert error.count("\n") == 0, error
    assert error.startswith("dragoman: ")
    assert "; " in error, error
    return error
