"""The names of `import dragoman`, from signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

from pydantic import BaseModel

import dragoman
from dragoman.base.docstrings import Docstring

HEADER = """# Python

The functions and classes of `import dragoman`; `help(dragoman.train)` says the same.
[How to use it](../how-to/python.md).

`RecipeLike` is a `Recipe`, the name of a shipped one, the path of a TOML file, or a dictionary with
the content of such a file. `RunLike` is a `RunDirectory` or the path of one; functions that
translate take the path of an export as well.
`OnEvent` is a function that is called with each `Event`. Nothing is printed unless `progress=True`
asks for it.
"""
GROUPS = {
    "From text to scores": (
        *("load_recipe", "recipes", "sample_text", "run_recipe", "prepare", "train", "stop"),
        *("evaluate", "average"),
    ),
    "From two languages to a model": ("build",),
    "Translations": ("translate", "Translator", "translate_file"),
    "Other models and formats": ("export", "push", "import_model"),
    "More from the same text": (
        "compare",
        "exam",
        "calibrate",
        "distill",
        "synthesize",
        "ask_teacher",
        "score",
        "score_documents",
        "choose",
        "align",
    ),
    "Plans and answers": (
        *("plan", "doctor", "report", "status", "worth", "inventory", "read_events", "jobs"),
    ),
    "What functions take and return": (
        "Recipe",
        "RunDirectory",
        "Evaluation",
        "DocumentScores",
        "Built",
        "Translation",
        "Comparison",
        "Exam",
        "Distilled",
        "Synthesized",
        "Taught",
        "Scored",
        "Chosen",
        "Aligned",
        "Worth",
        "Event",
    ),
    "Errors": (
        "DragomanError",
        "ConfigError",
        "CorpusError",
        "CheckpointError",
        "TrainingError",
        "DivergenceError",
        "MachineError",
        "InterruptedRunError",
    ),
}
RETURNED = {
    "evaluation.exam": ("Failure", "Mark"),
    "builds.record": ("BuildStage",),
    "evaluation.metrics": ("Score",),
    "formats.export": ("Exported", "Verified"),
    "reporting.render": ("Report",),
    "reporting.verdict": ("Verdict",),
    "cluster.options": ("Option",),
    "cluster.plan": ("Plan",),
    "formats.hub": ("Pushed",),
    "formats.import_folder": ("Imported",),
    "evaluation.paired": ("PairedComparison", "PairedScore"),
}
"""Types that no user makes, so that they are not in `dragoman.__all__`."""
SHOWN = {
    "CheckpointChoice": "int | str",
    "Count": "int",
    "Port": "int",
    "Overrides": "Sequence[str]",
    "Origin": "str | Path",
    "Target": "str",
    "ModelLike": "RunLike",
    "System": "RunLike",
    "HostsLike": "Hosts | str | Path",
    "Checkpoints": "int | str | Sequence[int | str]",
    "Kind": "str",
    "Quantization": "str",
    "RunQuantization": "str",
    "EngineName": "str",
    "TextFormat": "str",
    "Texts": "Iterable[str]",
}
"""Annotations as a reader needs them; docstrings list the values."""
ANNOTATED = re.compile(r"Annotated\[(.*), Option\([^()]*\)\]")
"""How the command line writes a parameter, which Python does not need."""


def page() -> str:
    """The whole page."""
    listed = {name for names in GROUPS.values() for name in names}
    missing = listed ^ {name for name in dragoman.__all__ if not name.startswith("__")}
    assert not missing, f"GROUPS and dragoman.__all__ differ: {missing}"
    text = HEADER
    for title, names in GROUPS.items():
        text += f"\n## {title}\n"
        for name in names:
            text += entry(name, getattr(dragoman, name))
        if title.startswith("What functions"):
            for module, others in RETURNED.items():
                for name in others:
                    text += entry(name, getattr(import_module(f"dragoman.{module}"), name))
    return text


def entry(name: str, thing: Any) -> str:
    """A function or a class with its methods."""
    text = f"\n### {name}\n\n"
    if not inspect.isclass(thing):
        return text + described(f"dragoman.{name}", thing)
    if issubclass(thing, Exception):
        docstring = Docstring.of(thing, inspect.signature(thing).parameters)
        return f"{text}{body(docstring)}\nIt derives from `{thing.__bases__[0].__name__}`.\n"
    if name == "Recipe":
        return f"{text}{body(Docstring.of(thing))}\nIts sections and keys: [recipe](recipe.md).\n"
    shown = fields_of(thing)
    if shown:
        docstring = Docstring.of(thing, shown)
        rows = (
            f"| `{key}` | `{kind(of)}` | {docstring.meaning(key)} |".replace(" | None", " \\| None")
            for key, of in shown.items()
        )
        table = "\n".join(["| field | type | meaning |", "|---|---|---|", *rows])
        text += "\n\n".join([*docstring.prose, table]) + "\n"
    else:
        text += described(f"dragoman.{name}", thing, thing.__init__)
    for method, function in methods(thing):
        text += f"\n#### {name}.{method}\n\n{described(method, function)}"
    return text


def fields_of(thing: type) -> dict[str, str]:
    """The fields of a dataclass or of a pydantic model, with their annotations."""
    if issubclass(thing, BaseModel):
        return {key: str(thing.__annotations__[key]) for key in thing.model_fields}
    found = fields(thing) if is_dataclass(thing) else ()
    return {one.name: str(one.type) for one in found if not one.name.startswith("_")}


def methods(thing: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties with a docstring of their own."""
    for name, member in list(vars(thing).items()):  # pydantic adds to it when it is first used
        function = (
            member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        )
        if not name.startswith("_") and inspect.isfunction(function) and function.__doc__:
            yield name, member if isinstance(member, property) else function


def described(call: str, thing: Any, function: Any = None) -> str:
    """The signature, then the docstring."""
    if isinstance(thing, property):
        returned = kind(inspect.signature(thing.fget).return_annotation)
        return f"```python\n{call}: {returned}\n```\n\n{body(Docstring.of(thing.fget))}"
    signature = inspect.signature(function or thing)
    parameters = [one for one in signature.parameters.values() if one.name not in ("self", "cls")]
    returned = "" if function else f" -> {kind(signature.return_annotation)}"
    shown = [written(one) for one in parameters]
    if starts := [at for at, one in enumerate(parameters) if one.kind is one.KEYWORD_ONLY]:
        shown.insert(starts[0], "*")
    line = f"{call}({', '.join(shown)}){returned}"
    if len(line) > 88:
        line = f"{call}(\n" + "".join(f"    {one},\n" for one in shown) + f"){returned}"
    docstring = Docstring.of(thing, [one.name for one in parameters])
    return f"```python\n{line}\n```\n\n{body(docstring)}"


def written(parameter: inspect.Parameter) -> str:
    """A parameter as a signature has it."""
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    value = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{stars}{parameter.name}: {kind(parameter.annotation)}{value}"


def kind(annotation: object) -> str:
    """An annotation in the words of a reader."""
    plain = ANNOTATED.sub(r"\1", str(annotation))
    return re.sub(r"\w+", lambda word: SHOWN.get(word[0], word[0]), plain)


def body(docstring: Docstring) -> str:
    """Prose, then a list of names, then what is raised."""
    listed = "\n".join(
        f"- {', '.join(f'`{name}`' for name in names)}: {text}"
        for names, text in docstring.meanings.items()
    )
    return "\n\n".join(filter(None, [*docstring.prose, listed, docstring.raises])) + "\n"
