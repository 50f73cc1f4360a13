"""Pages that are made from the code: they list everything, and docstrings are read as meant."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

import pytest

import dragoman
from dragoman.base.docstrings import Docstring
from dragoman.recipe.recipe import Recipe
from dragoman.telemetry.events import KINDS, Payload

REPOSITORY = Path(__file__).resolve().parents[2]


def taught(first: str, second: int, third: float) -> None:
    """Add things up; the sum. More about it.

    first: what comes first,
        and its second line. second, third: numbers; None: all of them.
    Prose goes on: not with a name.
    Raises ValueError if first: is wrong.
    """


@pytest.mark.smoke
def test_names_are_separated_from_prose_and_errors() -> None:
    parsed = Docstring.of(taught, ["first", "second", "third"])
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


@pytest.mark.smoke
def test_pages_list_commands_keys_functions_and_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "tools")
    commands, recipe, python, events = (
        import_module(f"reference.{name}").page()
        for name in ("commands", "recipe", "python", "events")
    )
    for name in ("run", "train", "serve", "report", "import"):
        assert f"\n## dragoman {name}\n" in commands, name
    for section in Recipe.model_fields:
        assert f"`{section}`" in recipe or f"\n## `[{section}]`\n" in recipe, section
    for name in dragoman.__all__:
        assert name.startswith("__") or f"\n### {name}\n" in python, name
    for name, kind in KINDS.items():
        assert kind.__module__ != Payload.__module__ or f"\n## {name}\n" in events, name


def test_every_option_of_a_function_is_explained() -> None:
    things = [getattr(dragoman, name) for name in dragoman.__all__]
    things = [one for one in things if inspect.isfunction(one)]
    translator = dragoman.Translator
    functions = [(one, one) for one in [*things, translator.translate, translator.stream]]
    for documented, function in [*functions, (translator, translator.__init__)]:
        parameters = inspect.signature(function).parameters.values()
        names = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
        found = Docstring.of(documented, names)
        assert [name for name in names if not found.meaning(name)] == [], documented
