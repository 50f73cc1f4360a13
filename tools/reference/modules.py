"""The last section of ARCHITECTURE.md: the tables that stand at the head of every package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import dragoman

TITLE = "## Every module"
_INTRODUCTION = """
The packages in the order of the imports, each with the table of its modules from its `__init__.py`
(`make docs` writes this section). A module of `cli` that is not listed is a command of its name.
"""


def section() -> str:
    """The section, in Markdown."""
    return "\n".join([TITLE, _INTRODUCTION, *_tables()])


def _tables() -> Iterator[str]:
    root = Path(dragoman.__file__).parent
    order = [line.split()[0] for line in _docstring(root).splitlines() if "  " in line.strip()]
    packages = [root / name for name in order if (root / name).is_dir()]
    for package in packages:
        for folder in (package, *sorted(path.parent for path in package.glob("*/__init__.py"))):
            first, _, table = _docstring(folder).partition("\n\n")
            name = folder.relative_to(root).as_posix()
            yield f"**{name}**: {' '.join(first.split())}\n\n```\n{table.strip()}\n```\n"


def _docstring(folder: Path) -> str:
    return ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
