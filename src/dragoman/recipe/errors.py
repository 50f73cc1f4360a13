"""What is wrong with a recipe, said in the words of the person who wrote it."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dragoman.base.errors import ConfigError

_LONGEST_VALUE: Final = 200
"""Characters of a value in an error."""
Location = tuple[int | str, ...]

_TOML_LINE: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")
_HEADER: Final = re.compile(r"\s*(\[\[?)([^\[\]]+)\]")
_BARE: Final = r"(?:[\w-]+|\"[^\"]*\"|'[^']*')"
_KEY: Final = re.compile(rf"\s*({_BARE}(?:\s*\.\s*{_BARE})*)\s*=")


def from_toml(error: tomllib.TOMLDecodeError, *, place: str, in_file: bool = True) -> ConfigError:
    """What the TOML parser did not understand, and where."""
    found = _TOML_LINE.search(str(error))
    line = f":{found[1]}" if found and found[1] and in_file else ""
    problem = _TOML_LINE.sub("", str(error))
    return ConfigError(
        f"not TOML: {problem[:1].lower()}{problem[1:]}",
        place=f"{place}{line}",
        remedy='a line is key = value, text in quotes: kind = "cosine"',
    )


def from_validation(
    error: ValidationError,
    root: type[BaseModel],
    *,
    file: Path,
    text: str,
    overrides: Mapping[tuple[str, ...], str],
) -> ConfigError:
    """The first wrong value, with the line of the file or the override it stands in.

    root: the model that was validated, whose fields are searched for the nearest match.
    text: what the file holds; overrides: what each `--set` said, by the path of its key.
    """
    # An unknown key often is the cause of what else is wrong.
    details = min(error.errors(), key=lambda entry: entry["type"] != "extra_forbidden")
    location = details["loc"]
    said = [given for path, given in overrides.items() if _related(path, location)]
    line = line_of(text, location)
    in_file = f"{file}:{line}" if line else str(file)
    problem, remedy = _explain(details, root)
    # Where keys disagree, the one that the problem names is the one at fault.
    said.sort(key=lambda given: given.partition("=")[0].rpartition(".")[2].strip() in problem)
    return ConfigError(problem, place=f"--set {said[-1]}" if said else in_file, remedy=remedy)


def line_of(text: str, location: Location) -> int | None:
    """The line (from 1) that sets this key; for a key of an inline table, the line of the table.

    None if the file says nothing of it. Read line by line, for a file that tomllib accepts.
    """
    table: Location = ()
    seen: Counter[Location] = Counter()
    best: tuple[int, int | None] = (0, None)
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            table = path = _split(header[2])
            if header[1] == "[[":
                table = path = (*path, seen[path])
                seen[path[:-1]] += 1
        elif key := _KEY.match(line):
            path = (*table, *_split(key[1]))
        else:
            continue
        if len(path) > best[0] and location[: len(path)] == path:
            best = (len(path), number)
    return best[1]


def _split(dotted: str) -> Location:
    return tuple(part.strip(" \t\"'") for part in dotted.split("."))


def _related(path: Location, location: Location) -> bool:
    shared = min(len(path), len(location))
    return shared > 0 and path[:shared] == location[:shared]


def _explain(details: ErrorDetails, root: type[BaseModel]) -> tuple[str, str]:
    """Problem and remedy."""
    location, value = details["loc"], details["input"]
    key = _dotted(location)
    if details["type"] == "extra_forbidden":
        return f"unknown key {key[:_LONGEST_VALUE]}", _where_it_belongs(location, root)
    if details["type"] == "value_error":
        problem = details["msg"].removeprefix("Value error, ")
        return problem, "change it in the recipe or with --set section.key=value"
    if details["type"] == "model_type":
        many = isinstance(location[-1], int)
        header = _header(_dotted(location[:-1]) if many else key, many=many)
        return f"{key} is a section, not a value", f"write {header} and its keys on lines below it"
    if details["type"] == "missing":
        return f"{key} is missing", f"write a line {location[-1]} = ..."
    must = details["msg"].replace("Input should be", "must be").replace("String should", "must")
    default = _default(location, root)
    remedy = f"the default is {default!r}" if default is not None else "give it such a value"
    if details["type"] == "literal_error":
        choices = [choice.strip("' ") for choice in re.split(", | or ", details["ctx"]["expected"])]
        remedy = _nearest(str(value), choices) or remedy
    written = repr(value)
    if len(written) > _LONGEST_VALUE:
        written = f"{written[:_LONGEST_VALUE]}..."
    return f"{key} = {written}: {must[:1].lower()}{must[1:]}", remedy


def _where_it_belongs(location: Location, root: type[BaseModel]) -> str:
    """The place that has a key of this name, else the nearest known key, else all keys."""
    key = str(location[-1])
    section = _model_at(location[:-1], root)
    known = list(section.model_fields) if section else []
    for name, field in root.model_fields.items():
        model = _model_in(field.annotation)
        if model and key in model.model_fields:
            return f"it belongs to {_header(name, many=model is not field.annotation)}"
    top = root.model_fields.get(key)
    if top and not _model_in(top.annotation):
        return "it belongs to the top of the file, before any section"
    return _nearest(key, known) or f"the keys here are {', '.join(known)}"


def _header(name: str, *, many: bool) -> str:
    """The line that begins a section, or an entry where there may be many of them."""
    return f"[[{name}]]" if many else f"[{name}]"


def _nearest(word: str, choices: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(choices), n=1)
    return f"did you mean {near[0]}?" if near else ""


def _default(location: Location, root: type[BaseModel]) -> Any:
    section = _model_at(location[:-1], root)
    field = section.model_fields.get(str(location[-1])) if section else None
    return field.get_default() if field and not field.is_required() else None


def _model_at(location: Location, root: type[BaseModel]) -> type[BaseModel] | None:
    """The section at this path of keys and list positions."""
    model: type[BaseModel] | None = root
    for part in location:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if model else None
        model = _model_in(field.annotation) if field else None
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The section that a field holds: itself, or in a tuple."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _dotted(location: Location) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")
