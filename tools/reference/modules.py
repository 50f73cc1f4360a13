"""The last section of ARCHITECTURE.md: the tables that stand at the head of every package."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import dragoman

TITLE = "## Every module"
_INTRODUCTION = """
The packages in the order of the imports, each with the table of its modules from its `__init__.py`.
Below a module stand its public functions, classes and constants. `make docs` writes this section. A
module of `cli` that is not listed is a command of its name.
"""
_MOST_NAMES = 18
_WIDTH = 100


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
            rows = "\n".join(
                part
                for line in table.strip().splitlines()
                for part in (line, *_names(folder, line))
            )
            yield f"**{name}**: {' '.join(first.split())}\n\n```\n{rows}\n```\n"


def _names(folder: Path, row: str) -> list[str]:
    """The public functions, classes and constants of a row's modules, on lines below it."""
    found = re.match(r"([a-z0-9_]+(?:, [a-z0-9_]+)*) {2,}(?=\S)", row)
    if found is None:
        return []
    names, constants = [], []
    for module in found[1].split(", "):
        file = folder / f"{module}.py"
        if file.exists():
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    names.append(node.name)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    constants.append(node.target.id)
    names = [name for name in (*names, *constants) if not name.startswith("_")]
    if len(names) > _MOST_NAMES:
        names = [*names[:_MOST_NAMES], "..."]
    indent = " " * found.end()
    return textwrap.wrap(", ".join(names), _WIDTH, initial_indent=indent, subsequent_indent=indent)


def _docstring(folder: Path) -> str:
    return ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
