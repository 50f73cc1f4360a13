"""Splits our docstrings into the meaning of each name and the prose around it.

A docstring names parameters or fields at the start of a line or of a sentence: `ranks: processes on
this machine; None: one.` or `source, reference: a text and its translation.` The help of the
command line and the reference are made from it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

NAMING = re.compile(r"(?:^|(?<=\. ))(\w+(?:, \w+)*): ")
RAISES = re.compile(r"(?:^|(?<=\. ))(?=Raises )")


@dataclass(frozen=True, slots=True)
class Docstring:
    """The parts of a docstring.

    opening: the paragraphs before the first name. rest: those after it.
    meanings: by the names that share one, in order. raises: the errors.
    """

    opening: list[str]
    rest: list[str]
    meanings: dict[tuple[str, ...], str]
    raises: str

    @classmethod
    def of(cls, thing: object, names: Collection[str] = ()) -> Docstring:
        """The docstring of a class or function with these parameters or fields."""
        opening: list[str] = []
        rest: list[str] = []
        meanings: dict[tuple[str, ...], str] = {}
        raises = ""
        for paragraph in (inspect.getdoc(thing) or "").split("\n\n"):
            for part in _parts(paragraph):
                named = NAMING.match(part)
                if named and set(named[1].split(", ")) <= set(names):
                    meanings[tuple(named[1].split(", "))] = part[named.end() :]
                elif named and meanings and part[0].islower():  # one of a parameter's values
                    meanings[[*meanings][-1]] += f" {part}"
                elif part.startswith("Raises "):
                    raises = part
                else:
                    (rest if meanings else opening).append(part)
        return cls(opening, rest, meanings, raises)

    @property
    def prose(self) -> list[str]:
        """All paragraphs that explain no name."""
        return [*self.opening, *self.rest]

    @property
    def summary(self) -> str:
        """The first sentence."""
        return re.split(r"(?<=\.) (?=[A-Z])", self.opening[0])[0] if self.opening else ""

    def meaning(self, name: str) -> str:
        """The meaning of one name; "" if there is none."""
        return next((text for names, text in self.meanings.items() if name in names), "")


def _parts(paragraph: str) -> Iterator[str]:
    """A paragraph, cut before each name that is explained, before each block of lines that is
    indented less than such an explanation, and before what is raised."""
    part: list[str] = []
    for line in paragraph.splitlines():
        begins = NAMING.match(line) or line.startswith("Raises ")
        in_names = bool(part) and NAMING.match(part[0])
        is_new_block = in_names and not line.startswith(" ") and part[-1].endswith((".", "?"))
        if part and (begins or is_new_block):
            yield from _sentences(" ".join(part))
            part = []
        part.append(line.strip() if part else line)
    yield from _sentences(" ".join(part))


def _sentences(text: str) -> Iterator[str]:
    """Text, cut where a sentence within it explains a name or says what is raised."""
    start = 0
    for cut in sorted({one.start() for rule in (NAMING, RAISES) for one in rule.finditer(text)}):
        if text[start:cut].strip():
            yield text[start:cut].strip()
        start = cut
    yield text[start:].strip()
