"""Pages that are written from the code: none is stale, and docstrings are read as meant."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

import dragoman

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def docstrings() -> ModuleType:
    spec = spec_from_file_location("docstrings", REPOSITORY / "tools/reference/docstrings.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["docstrings"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def taught(first: str, second: int, third: float) -> None:
    """Add things up; the sum. More about it.

    first: what comes first,
        and its second line. second, third: numbers; None: all of them.
    Prose goes on: not with a name.
    Raises ValueError if first: is wrong.
    """


@pytest.mark.smoke
def test_names_are_separated_from_prose_and_errors(docstrings: ModuleType) -> None:
    parsed = docstrings.Docstring.of(taught, ["first", "second", "third"])
    assert parsed.prose == [
        "Add things up; the sum. More about it.",
        "Prose goes on: not with a name.",
    ]
    assert parsed.meanings == {
        ("first",): "what comes first, and its second line.",
        ("second", "third"): "numbers; None: all of them.",
    }
    assert parsed.raises == "Raises ValueError if first: is wrong."
    assert parsed.meaning("third") == "numbers; None: all of them."


def test_no_page_is_stale() -> None:
    done = subprocess.run(
        [sys.executable, REPOSITORY / "tools/write_reference.py", "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_every_option_of_a_function_is_explained(docstrings: ModuleType) -> None:
    things = [getattr(dragoman, name) for name in dragoman.__all__]
    things = [one for one in things if inspect.isfunction(one)]
    translator = dragoman.Translator
    functions = [(one, one) for one in [*things, translator.translate, translator.stream]]
    for documented, function in [*functions, (translator, translator.__init__)]:
        parameters = inspect.signature(function).parameters.values()
        names = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
        found = docstrings.Docstring.of(documented, names)
        assert [name for name in names if not found.meaning(name)] == [], documented
