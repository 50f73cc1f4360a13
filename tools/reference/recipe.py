"""The sections of a recipe, from their own docstrings."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dragoman.recipe.recipe import Recipe

HEADER = """# Recipe

A recipe is a TOML file. Keys that it leaves out have the default below; `--set section.key=value`
on the command line overrides both. An unknown key is an error that names the nearest one.
"""


def meanings(section: type[BaseModel]) -> dict[str, str]:
    """The docstring under each field of a section."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def table(section: type[BaseModel], path: str) -> str:
    """A section and, after it, the sections inside it."""
    known = meanings(section)
    rows, inner = [], []
    for name, field in section.model_fields.items():
        if inspect.isclass(field.annotation) and issubclass(field.annotation, BaseModel):
            inner.append(table(field.annotation, f"{path}.{name}" if path else name))
            continue
        if not path and (listed := section_of_list(field)):
            inner.append(table(listed, f"[{name}]"))
        meaning = f"{known.get(name, '')} {choices(field)}".strip()
        value = default(field) if path or name != "name" else "the name of the file"
        rows.append(f"| `{name}` | {value} | {meaning} |")
    summary = (inspect.getdoc(section) or "").split("\n\n")[0].replace("\n", " ")
    heading = f"\n## `[{path}]`\n\n{summary}\n" if path else ""
    body = "\n| key | default | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n" if rows else ""
    return heading + body + "".join(inner)


def section_of_list(field: FieldInfo) -> type[BaseModel] | None:
    """The section that a list of tables is made of."""
    kinds = [kind for kind in get_args(field.annotation) if inspect.isclass(kind)]
    return next((kind for kind in kinds if issubclass(kind, BaseModel)), None)


def choices(field: FieldInfo) -> str:
    """The values to choose from, if the field has such."""
    if get_origin(field.annotation) is not Literal:
        return ""
    return f"One of {', '.join(f'`{value}`' for value in get_args(field.annotation))}."


def default(field: FieldInfo) -> str:
    """The default as TOML has it."""
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    return f"`{json.dumps(value)}`"


def page() -> str:
    """The whole page."""
    return HEADER + table(Recipe, "")
