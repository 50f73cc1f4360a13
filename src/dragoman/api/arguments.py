"""The kinds of arguments, and their check before a function begins. Free of torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial, wraps
from inspect import signature
from operator import index
from pathlib import Path
from typing import Annotated, Any, Final, ParamSpec, TypeAlias, TypeVar

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    SkipValidation,
    ValidationError,
    validate_call,
)

from dragoman.base.disk_errors import STANDARD_OUTPUT, as_machine_error, is_full
from dragoman.base.errors import NAMES_OPTIONS, ConfigError, DragomanError
from dragoman.base.interrupts import was_interrupted
from dragoman.recipe.recipe import Recipe
from dragoman.recipe.run_directory import RunDirectory

OF_CALLER: Final = "a function that dragoman was given has raised it"
"""The note on an OSError that the caller's own code raised."""
_OPTION: Final = re.compile(r"--([a-z][a-z-]*[a-z])(?: (?=\S*[0-9A-Z./])([^\s;,()]+))?")
"""An option of the command line in an error, and its value if that looks like one."""
_WHOLE: Final = re.compile(r"--([a-z][a-z-]*[a-z])(?: (.*))?")
_SET: Final = re.compile(r"--set (?=[a-z_]+\.)")
_PARAMETERS: Final = {
    "set": "overrides",
    "from": "origin",
    "sample": "sampling",
}
"""Options whose names differ from those of their parameters."""
Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def whole(value: object) -> int:
    """An integer of any kind, including numpy's, but not a bool; raises ValueError."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError("it is not a whole number")
    return index(value)


Count: TypeAlias = Annotated[int, Field(ge=1), BeforeValidator(whole)]
Flag: TypeAlias = Annotated[bool, Field(strict=True)]
CheckpointChoice: TypeAlias = int | str
"""A step, a word such as "best", or a directory."""


Texts: TypeAlias = Annotated[Iterable[str], SkipValidation]
"""A list, a column of a table, a generator: each text is checked when it is read."""
RecipeLike: TypeAlias = InstanceOf[Recipe] | Mapping[str, Any] | str | Path
"""A recipe, the name of a shipped one, a TOML file, or a dictionary of its sections."""
RunLike: TypeAlias = InstanceOf[RunDirectory] | str | Path
"""A run, or the path of its directory."""


def checked(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """The function, with a check of its arguments against their annotations before it begins.

    Raises ConfigError for a wrong argument, with the parameter and its value. An OSError of the
    function becomes a MachineError, unless the caller's own code raised the OSError. Errors name
    parameters, or options if the command line called the function.
    """

    form = signature(function)
    paths = [name for name, one in form.parameters.items() if "Path" in str(one.annotation)]

    @wraps(function)
    def bare(*arguments: Parameters.args, **named: Parameters.kwargs) -> Returned:
        given = form.bind(*arguments, **named).arguments
        for name in paths:
            _refuse_nul(given.get(name), place=name)
        return function(*arguments, **named)

    # The type of the result may be in a module that is imported late.
    bare.__annotations__ = {
        name: kind for name, kind in function.__annotations__.items() if name != "return"
    }
    validated = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(bare)
    name = function.__qualname__.removesuffix(".__init__")
    parameters = list(form.parameters)

    @wraps(function)
    def call(*arguments: Parameters.args, **named: Parameters.kwargs) -> Returned:
        try:
            return validated(*arguments, **named)
        except DragomanError as error:
            if not NAMES_OPTIONS.get():
                error.reword(partial(_with_parameters, parameters=parameters))
            raise
        except OSError as error:
            # The command line ends in its own way if its output or the user has gone.
            is_of_system = error.errno is not None or is_full(error)
            if not is_of_system or error.filename == STANDARD_OUTPUT or was_interrupted():
                raise
            if OF_CALLER in getattr(error, "__notes__", ()):
                raise
            raise as_machine_error(error) from error
        except ValidationError as error:
            if error.title not in (function.__name__, function.__qualname__):
                raise  # from something that the function itself has read
            first = error.errors()[0]
            place = first["loc"][0]
            if isinstance(place, int):
                place = parameters[place] if place < len(parameters) else "arguments"
            missing = first["type"].startswith("missing")
            said = first["msg"].removeprefix("Value error, ")
            why = f"{said[:1].lower()}{said[1:]}"
            remedy = f"see help(dragoman.{name})"
            if first["type"] == "unexpected_keyword_argument":
                near = get_close_matches(str(place), parameters, n=1)
                remedy = f"did you mean {near[0]}?" if near else remedy
            if first["type"] == "sequence_str":
                raise ConfigError(
                    "is one text and not a list of texts",
                    place=place,
                    remedy=f"put it into brackets: [{first['input']!r:.40}]",
                ) from error
            raise ConfigError(
                "is missing" if missing else f"{first['input']!r:.60} cannot be used: {why}",
                place=place,
                remedy=remedy,
            ) from error

    return call


def _refuse_nul(value: object, *, place: str) -> None:
    """Raises ConfigError for a path with a NUL character, for which Python raises only ValueError.

    value: a path, or a list or tuple of paths; anything else is passed over.
    """
    if isinstance(value, list | tuple):
        for one in value:
            _refuse_nul(one, place=place)
    elif isinstance(value, str | Path) and "\0" in str(value):
        raise ConfigError(
            f"{str(value)!r:.60} has a NUL character, which no path can have",
            place=place,
            remedy="remove it",
        )


def _with_parameters(text: str, parameters: Sequence[str]) -> str:
    """A text with the names of parameters in place of options; other options stay."""

    def parameter(option: re.Match[str]) -> str:
        name = _PARAMETERS.get(option[1], option[1].replace("-", "_"))
        if name not in parameters:
            return option[0]
        if option[2] is None:
            return name
        return f"{name} {option[2]}" if option[0] == text else f'{name}="{option[2]}"'

    text = _SET.sub("", text)
    whole = _WHOLE.fullmatch(text)  # a place: the option as it was given
    return parameter(whole) if whole else _OPTION.sub(parameter, text)


def checkpoints_of(given: CheckpointChoice | Sequence[CheckpointChoice]) -> list[str]:
    """The names of one or several checkpoints; raises ConfigError if there is none or one is ""."""
    names = [str(given)] if isinstance(given, int | str) else [*map(str, given)]
    if not names or not all(names):
        raise ConfigError("is empty", place="checkpoint", remedy='give "best" or a step')
    return names


def path_of(model: RunLike) -> Path:
    """The path of a run or an export."""
    return model.path if isinstance(model, RunDirectory) else Path(model)


def opened_run(run: RunLike) -> RunDirectory:
    """The run at a path; raises CheckpointError if there is none."""
    return run if isinstance(run, RunDirectory) else RunDirectory.open(Path(run))
