"""Parts that other packages add to ours: filters, metrics, schedules, strategies, export formats.

A package names each part in its pyproject.toml:

    [project.entry-points."dragoman.filters"]
    commas = "my_package:COMMAS"

From then on a recipe may use it by its name, as if it were ours. A package is code that the user
has installed: it is trusted like dragoman itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from dragoman.base.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Part = TypeVar("Part")


class Parts(dict[str, Part]):
    """The parts of one kind by name: ours, and those of other packages when they are needed.

    group: of the entry points, such as "filters". ours: wins over a part of the same name.
    """

    def __init__(self, group: str, ours: Mapping[str, Part]) -> None:
        super().__init__(ours)
        self.ours = frozenset(ours)
        self.group = group

    def __missing__(self, name: str) -> Part:
        """Load a part of another package; raises KeyError if there is none of this name."""
        point = self._points()[name]
        try:
            self[name] = point.load()
        except Exception as error:
            package = "" if point.dist is None else f" of {point.dist.name}"
            raise ConfigError(
                f"cannot be imported: {error}",
                place=f"{self.group} {name}{package}",
                remedy="repair that package, or remove it",
            ) from error
        return self[name]

    def names(self) -> list[str]:
        """The names of all parts, ours first; nothing is loaded."""
        return [*self, *(name for name in self._points() if name not in self)]

    def load_all(self) -> dict[str, Part]:
        """All parts by name."""
        return {name: self[name] for name in self.names()}

    def known(self, name: str) -> str:
        """The name itself, for a validator of pydantic; its error if there is no such part."""
        if name not in self and name not in self._points():
            from pydantic_core import PydanticKnownError

            expected = ", ".join(map(repr, self.names())) or "the name of an installed part"
            raise PydanticKnownError("literal_error", {"expected": expected})
        return name

    def _points(self) -> dict[str, EntryPoint]:
        from importlib.metadata import entry_points  # slow, and seldom needed

        return {point.name: point for point in entry_points(group=f"dragoman.{self.group}")}
