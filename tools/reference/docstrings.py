"""Splits our docstrings into the meaning of each name and the prose around it.

A docstring names parameters or fields at the start of a line or of a sentence: `ranks: processes on
this machine; None: one.` or `source, reference: a text and its translation.`
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

NAMING = re.compile(r"(?:^|(?<=\. ))(\w+(?:, \w+)*): ")
RAISES = re.compile(r"(?:^|(?<=\. ))(?=Raises )")


@dataclass(frozen=True)
class Docstring:
    """prose: paragraphs. meanings: by the names that share one, in order. raises: the errors."""

    prose: list[str]
    meanings: dict[tuple[str, ...], str]
    raises: str

    @classmethod
    def of(cls, thing: object, names: Collection[str] = ()) -> Docstring:
        """The docstring of a class or function with these parameters or fields."""
        prose, meanings, raises = [], {}, ""
        for paragraph in (inspect.getdoc(thing) or "").split("\n\n"):
            for part in parts(paragraph):
                named = NAMING.match(part)
                if named and set(named[1].split(", ")) <= set(names):
                    meanings[tuple(named[1].split(", "))] = part[named.end() :]
                elif part.startswith("Raises "):
                    raises = part
                else:
                    prose.append(part)
        return cls(prose, meanings, raises)

    def meaning(self, name: str) -> str:
        """The meaning of one name; "" if there is none."""
        return next((text for names, text in self.meanings.items() if name in names), "")


def parts(paragraph: str) -> Iterator[str]:
    """A paragraph, cut before each name that is explained, before each block of lines that is
    indented less than such an explanation, and before what is raised."""
    part: list[str] = []
    for line in paragraph.splitlines():
        begins = NAMING.match(line) or line.startswith("Raises ")
        in_names = bool(part) and NAMING.match(part[0])
        if part and (begins or (in_names and not line.startswith(" ") and ends(part[-1]))):
            yield from sentences(" ".join(part))
            part = []
        part.append(line.strip() if part else line)
    yield from sentences(" ".join(part))


def ends(line: str) -> bool:
    """Whether a sentence ends with this line."""
    return line.endswith((".", "?"))


def sentences(text: str) -> Iterator[str]:
    """Text, cut where a sentence within it explains a name or says what is raised."""
    start = 0
    for cut in sorted({one.start() for rule in (NAMING, RAISES) for one in rule.finditer(text)}):
        if text[start:cut].strip():
            yield text[start:cut].strip()
        start = cut
    yield text[start:].strip()
