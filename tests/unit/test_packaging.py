"""What the package says of itself: its dependencies are those that its code imports."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
OF_OTHERS = {
    "comet": "a program of its own runs in the environment that has it",
    "triton": "comes with torch where there are GPUs",
    "IPython": "a notebook that shows our objects has it",
}
"""Modules that no extra installs, with the reason."""
NOT_INSTALLED = {"mlflow": ["mlflow-skinny"], "wandb": ["wandb"]}
"""Distributions of modules that the environment of the tests may lack."""
CALLS = ("import_module", "_library")


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def requirements() -> list[Requirement]:
    """Of the package and of the extras of users."""
    extras = project()["optional-dependencies"]
    users = [one for name, given in extras.items() if name not in ("dev", "docs") for one in given]
    return [Requirement(one) for one in (*project()["dependencies"], *users)]


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules that run-time code imports, by their first name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (one.name.split(".")[0] for one in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.split(".")[0]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in CALLS:
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value.split(".")[0]
        yield from imported(node)


def test_every_import_of_another_package_is_declared() -> None:
    files = [*SOURCE.rglob("*.py")]
    modules = {one: file for file in files for one in imported(ast.parse(file.read_text("utf-8")))}
    foreign = {
        name: file for name, file in modules.items()
        if name not in sys.stdlib_module_names and name not in ("dragoman", *OF_OTHERS)
    }  # fmt: skip
    assert {"torch", "starlette", "pydantic_core", "mlflow"} <= foreign.keys()
    known = {**packages_distributions(), **NOT_INSTALLED}
    declared = {canonicalize_name(one.name) for one in requirements()}
    missing = {
        name: file.relative_to(ROOT).as_posix()
        for name, file in foreign.items()
        if not {canonicalize_name(one) for one in known.get(name, [name])} & declared
    }
    assert missing == {}


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_no_version_of_a_dependency_is_shut_out_before_it_is_known(
    requirement: Requirement,
) -> None:
    assert {one.operator for one in requirement.specifier} <= {">="}


def test_the_package_says_who_makes_it_and_for_whom() -> None:
    from trove_classifiers import classifiers

    about = project()
    assert about["authors"]
    assert set(about["classifiers"]) <= classifiers
    named = {
        match[1] for one in about["classifiers"] if (match := re.match(r".* :: (3\.\d+)$", one))
    }
    least = about["requires-python"].removeprefix(">=")
    assert least in named
