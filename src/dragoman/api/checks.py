"""The check of arguments before a function begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, wraps
from importlib import import_module
from inspect import signature
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, ParamSpec, TypeVar

from dragoman.api.kinds import CheckpointChoice, RunLike, kinds_of
from dragoman.base.errors import ConfigError, DragomanError

if TYPE_CHECKING:
    from pydantic import ValidationError

    from dragoman.recipe.run_directory import RunDirectory

OF_CALLER: Final = "a function that dragoman was given has raised it"
"""The note on an OSError that the caller's own code raised."""
Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def checked(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """The function, with a check of its arguments against their annotations before it begins.

    Raises ConfigError for a wrong argument, with the parameter and its value. An OSError of the
    function becomes a MachineError, unless the caller's own code raised the OSError.
    """

    @wraps(function)
    def call(*arguments: Parameters.args, **named: Parameters.kwargs) -> Returned:
        from pydantic import ValidationError

        from dragoman.base.disk_errors import (
            STANDARD_OUTPUT,
            as_machine_error,
            correct_remedy,
            is_full,
        )
        from dragoman.base.interrupts import was_interrupted

        try:
            given = [plain(value) for value in arguments]
            return validated()(*given, **{name: plain(value) for name, value in named.items()})
        except DragomanError as error:
            correct_remedy(error)
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
            raise _wrong_argument(function, error) from error

    @cache
    def validated() -> Callable[..., Returned]:
        from pydantic import ConfigDict, InstanceOf, PlainValidator, validate_call

        from dragoman.cluster.hosts import Hosts
        from dragoman.recipe.recipe import Recipe
        from dragoman.recipe.run_directory import RunDirectory

        form = signature(function)

        @wraps(function)
        def bare(*arguments: Any, **named: Any) -> Returned:
            for name, value in form.bind(*arguments, **named).arguments.items():
                if function.__annotations__.get(name) != "Texts":
                    _refuse_nul(value, place=name)
            return function(*arguments, **named)

        bare.__annotations__ = kinds_of(
            function,
            [name for name in function.__annotations__ if name != "return"],
            Recipe=InstanceOf[Recipe],
            RunDirectory=InstanceOf[RunDirectory],
            Hosts=InstanceOf[Hosts],
            Texts=Annotated[Any, PlainValidator(_texts)],
        )
        config = ConfigDict(arbitrary_types_allowed=True, strict=True, allow_inf_nan=False)
        return validate_call(config=config)(bare)

    return call


def plain(value: Any) -> Any:
    """An integer of any kind, such as numpy's, as Python's; anything else as it is."""
    is_whole = (
        hasattr(value, "__index__")
        and not isinstance(value, bool)
        and not hasattr(value, "__len__")
    )
    return index(value) if is_whole else value


def _texts(value: Any) -> Any:
    """Texts as they are: each of them is checked when it is read."""
    from pydantic_core import PydanticCustomError

    if isinstance(value, str):
        raise PydanticCustomError("sequence_str", "one text")
    if not isinstance(value, Iterable):
        raise ValueError("it is not a list of texts")
    return value


def _wrong_argument(function: Callable[..., Any], error: ValidationError) -> ConfigError:
    from difflib import get_close_matches

    parameters = list(signature(function).parameters)
    first = error.errors()[0]
    place = first["loc"][0]
    if isinstance(place, int):
        place = parameters[place] if place < len(parameters) else "arguments"
    name = function.__qualname__.removesuffix(".__init__")
    is_public = name.partition(".")[0] in import_module("dragoman").__all__
    remedy = f"see help({'dragoman' if is_public else function.__module__}.{name})"
    if first["type"].startswith("missing"):
        return ConfigError("is missing", place=place, remedy=remedy)
    if first["type"] == "sequence_str":
        return ConfigError(
            "is one text and not a list of texts",
            place=place,
            remedy=f"put it into brackets: [{first['input']!r:.40}]",
        )
    if first["type"] == "unexpected_keyword_argument":
        near = get_close_matches(str(place), parameters, n=1)
        remedy = f"did you mean {near[0]}?" if near else remedy
    why = first["msg"].removeprefix("Value error, ")
    return ConfigError(
        f"{first['input']!r:.60} cannot be used: {why[:1].lower()}{why[1:]}",
        place=place,
        remedy=remedy,
    )


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


def checkpoints_of(given: CheckpointChoice | Sequence[CheckpointChoice]) -> list[str]:
    """The names of one or several checkpoints, also of those with commas between them.

    Raises ConfigError if there is none, or if one is "".
    """
    several = [given] if isinstance(given, int | str) else given
    names = [name for one in several for name in str(one).split(",")]
    if not names or not all(names):
        raise ConfigError("is empty", place="checkpoint", remedy='give "best" or a step')
    return names


def path_of(model: RunLike) -> Path:
    """The path of a run or an export."""
    from dragoman.recipe.run_directory import RunDirectory

    return model.path if isinstance(model, RunDirectory) else Path(model)


def opened_run(run: RunLike) -> RunDirectory:
    """The run at a path; raises CheckpointError if there is none."""
    from dragoman.recipe.run_directory import RunDirectory

    return run if isinstance(run, RunDirectory) else RunDirectory.open(path_of(run))


def optional_path(path: str | Path | None) -> Path | None:
    """The path, if there is one."""
    return None if path is None else Path(path)
