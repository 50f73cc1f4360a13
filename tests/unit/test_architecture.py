"""ARCHITECTURE.md names files that exist; lists of packages are complete and in order."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "dragoman"
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
OF_A_RUN = ("events/", "checkpoints/", "tensorboard/", "samples/", "runs/", "report/", "export/")
TABLES = sorted(PACKAGE.glob("**/__init__.py"))


def is_there(name: str) -> bool:
    """A file or folder of the package, or of the repository."""
    return any(path.exists() for path in (PACKAGE / name, PACKAGE / f"{name}.py", ROOT / name))


def test_every_path_is_there() -> None:
    named = re.findall(r"`([a-z_]+/[a-z_0-9/]*(?:\.py)?)`", TEXT)
    tree = re.findall(r"\b([a-z]+/[a-z_0-9]*)", TEXT.split("```")[1])
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    paths = [name for name in named if not name.startswith(OF_A_RUN)] + tree + links
    assert len(paths) > 50
    assert [path for path in paths if not is_there(path)] == []


def test_every_name_with_dots_is_defined() -> None:
    found = re.findall(r"`([a-z_]+(?:\.(?!toml|json)[A-Za-z_]+)+)`", TEXT)
    names = [name for name in found if (PACKAGE / name.partition(".")[0]).is_dir()]
    assert len(names) > 2
    for name in names:
        path, last = PACKAGE.joinpath(*name.split(".")[:-1]), name.rpartition(".")[2]
        if not (path / f"{last}.py").is_file():
            assert re.search(
                rf"^(class|def) {last}\b", path.with_suffix(".py").read_text("utf-8"), re.MULTILINE
            ), name


def order_of_imports() -> list[str]:
    """The packages of the import contract, those that import no other one first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [name.partition(".")[2] for name in settings["contracts"][0]["layers"]]
    return [name for name in reversed(layers) if name != "__main__"]


def test_every_list_of_packages_has_the_order_of_imports() -> None:
    order = order_of_imports()
    assert set(order) == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([a-z_]+)` \| ", readme, re.MULTILINE) == order
    listed = ast.get_docstring(ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))) or ""
    assert re.findall(r"^([a-z_]+)  +\S", listed, re.MULTILINE) == order


def test_the_drawing_has_the_order_of_imports() -> None:
    order = order_of_imports()
    data, events = TEXT.split("```")[1].split("events of all")
    for part, least in ((data, 8), (events, 3)):
        drawn = [name for name in re.findall(r"\b([a-z]+)/", part) if name in order]
        assert len(set(drawn)) >= least
        assert drawn == sorted(drawn, key=order.index)


@pytest.mark.parametrize("file", TABLES, ids=lambda path: path.parent.name)
def test_a_package_lists_modules_that_it_has(file: Path) -> None:
    doc = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    rows = re.findall(r"^([a-z_0-9]+(?:, [a-z_0-9]+)*)  +\S", doc, re.MULTILINE)
    listed = [name for row in rows for name in row.split(", ")]
    assert [
        name for name in listed if not is_there(str(file.parent.relative_to(PACKAGE) / name))
    ] == []
    if listed and file.parent.name != "cli":  # there the other modules are the commands
        assert {path.stem for path in file.parent.glob("[a-z]*.py")} <= set(listed)
