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
Below a module stand its public functions and classes, then its public constants and names of types.
`make docs` writes this section. A module of `cli` that is not listed is a command of its name;
`import_model` is `dragoman import`, since `import` is a keyword of Python.
"""
_WIDTH = 100
_VARIABLES = ("TypeVar", "ParamSpec")


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
    """The public names that a row's modules define, on lines below it."""
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
                elif isinstance(node, ast.AnnAssign | ast.Assign):
                    constants += _assigned(node)
    names = [name for name in (*names, *constants) if not name.startswith("_")]
    indent = " " * found.end()
    return textwrap.wrap(", ".join(names), _WIDTH, initial_indent=indent, subsequent_indent=indent)


def _assigned(node: ast.AnnAssign | ast.Assign) -> list[str]:
    """The names that an assignment defines, but not those of type variables."""
    if isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") in _VARIABLES:
        return []
    targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
    return [
        part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
    ]


def _docstring(folder: Path) -> str:
    return ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
