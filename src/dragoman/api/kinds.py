"""The kinds of parameters: what a function takes, and how the command line writes it.

This module and those of the functions import nothing heavy, so that help is there at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias, get_type_hints

if TYPE_CHECKING:
    from dragoman.cluster.hosts import Hosts
    from dragoman.recipe.recipe import Recipe
    from dragoman.recipe.run_directory import RunDirectory
    from dragoman.telemetry.events import Event


class Option(NamedTuple):
    """How the command line writes a parameter, if not by its own name.

    flag: its option; a positional parameter with a flag is an option, too. metavar: the word for
    its value. choices: the values to choose from, if other packages may add some. Not a dataclass:
    these take longer to import.
    """

    flag: str = ""
    metavar: str = ""
    choices: Callable[[], Sequence[str]] | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        """The schema of the parameter, with a check of the choices."""
        schema, choices = handler(source), self.choices
        if choices is None:
            return schema
        from pydantic_core.core_schema import no_info_after_validator_function

        def check(value: str) -> str:
            if value not in choices():
                raise ValueError(f"it is none of {', '.join(choices())}")
            return value

        return no_info_after_validator_function(check, schema)


class Between(NamedTuple):
    """A whole number in this range; pydantic checks it, and so does the command line."""

    least: int
    most: int | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        """The schema of the number, with the bounds."""
        bounds = {"ge": self.least} | ({} if self.most is None else {"le": self.most})
        return handler(source) | bounds


Count: TypeAlias = Annotated[int, Between(1)]
Beam: TypeAlias = Annotated[int, Between(1, 1000)]
"""How many hypotheses a search keeps."""
Port: TypeAlias = Annotated[int, Between(0, 65_535)]
CheckpointChoice: TypeAlias = int | str
"""A step, a word such as "best", or a directory."""
RecipeLike: TypeAlias = Annotated[
    "Recipe | Mapping[str, Any] | str | Path", Option(metavar="RECIPE")
]
"""A recipe, the name of a shipped one, a TOML file, or a dictionary of its sections."""
RunLike: TypeAlias = Annotated["RunDirectory | str | Path", Option(metavar="RUN")]
"""A run, or the path of its directory."""
ModelLike: TypeAlias = Annotated["RunDirectory | str | Path", Option(metavar="RUN|EXPORT")]
"""A run, or the path of a run or an export."""
HostsLike: TypeAlias = Annotated["Hosts | str | Path", Option(metavar="HOSTS")]
Overrides: TypeAlias = Annotated[Sequence[str], Option("--set", "SECTION.KEY=VALUE")]
Origin: TypeAlias = Annotated[str | Path, Option("--from", "RUN|FOLDER")]
RayAddress: TypeAlias = Annotated[str | None, Option(metavar="ADDRESS")]
Target: TypeAlias = Annotated[str, Option("--target", "LANGUAGE")]
Checkpoints: TypeAlias = CheckpointChoice | Sequence[CheckpointChoice]
TermsLike: TypeAlias = Mapping[str, str] | str | Path
"""A dictionary of translations of words, or a file of source TAB target."""
OnEvent: TypeAlias = Callable[["Event"], None]
Texts: TypeAlias = Iterable[str]
"""A list, a column of a table, a generator: each text is checked when it is read."""
EngineName: TypeAlias = Literal["auto", "ctranslate2", "torch"]
TextFormat: TypeAlias = Literal["line", "document", "markup"]
Context: TypeAlias = Literal["sentence", "paragraph"]


def kinds_of(
    function: Callable[..., Any], parameters: Iterable[str], **names: object
) -> dict[str, Any]:
    """The kinds of these parameters of a function.

    names: the meaning of names that its module imports for type checkers alone; of those that are
    left out, any object will do.
    """
    function = getattr(function, "__wrapped__", function)
    stand_ins = dict.fromkeys(("Recipe", "RunDirectory", "Hosts", "Event"), object)
    annotations = {name: function.__annotations__[name] for name in parameters}
    bare = type("bare", (), {"__annotations__": annotations})
    space = {**globals(), **function.__globals__, **stand_ins, **names}
    return get_type_hints(bare, space, include_extras=True)
