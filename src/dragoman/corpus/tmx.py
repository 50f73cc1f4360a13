"""Translation memories (TMX 1.4b, Localization Industry Standards Association 2005) as lines.

The XML is read as a stream, with expat, in bounded memory. Entities cannot be declared and nothing
outside the file is read, so neither "billion laughs" nor references to other files have any effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.parsers import expat

from dragoman.base.errors import CorpusError
from dragoman.corpus.language import base_language
from dragoman.corpus.pairs import RUN_BYTES, LineReader, NamedPath

_CODES: Final = frozenset({"bpt", "ept", "it", "ph", "ut"})
"""Elements of a segment that hold the codes of another format, not text."""
_PARTS: Final = ("tu", "tuv", "seg")
"""Each is inside the one before it, and inside no other of these."""
_MOST_NESTED: Final = 64
_MOST_NAMES: Final = 10_000
"""Different names of elements and attributes, which the parser keeps; TMX has some 50."""
_MOST_VARIANTS: Final = 1000
"""Segments of one translation unit."""
_MOST_SHOWN: Final = 8
_LONGEST_UNIT: Final = RUN_BYTES // 4
"""Characters of one translation unit."""


@dataclass(frozen=True, slots=True)
class TmxFile(NamedPath):
    """A translation memory, and the source and target languages to read from it."""

    languages: tuple[str, str]

    def open(self) -> LineReader:
        """A reader of `source TAB target` lines."""
        return TmxReader(self.path, self.languages)


class TmxReader(LineReader):
    """Reads each translation unit as a line of `source TAB target`.

    A side that the unit lacks is empty. If a unit has several variants in a language, the first one
    in exactly this language counts, or else the first one with another region.
    """

    def __init__(self, path: Path, languages: tuple[str, str]) -> None:
        super().__init__(path)
        self._languages = languages

    def _unpacked(self) -> Iterator[bytes]:
        units = _Units(self._languages)
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = units.start
        parser.EndElementHandler = units.end
        parser.CharacterDataHandler = units.characters
        parser.SkippedEntityHandler = units.skipped
        parser.StartDoctypeDeclHandler = _refuse_declarations
        fed = 0
        try:
            for piece in super()._unpacked():
                parser.Parse(piece, False)
                fed += len(piece)
                if len(parser.intern) > _MOST_NAMES:
                    raise _UnfitError(
                        f"it uses more than {_MOST_NAMES} different names of elements and "
                        "attributes, so it is not a TMX file that can be read"
                    )
                if fed - parser.CurrentByteIndex > RUN_BYTES:
                    raise _UnfitError(f"a tag in it is longer than {RUN_BYTES >> 20} MiB")
                yield units.take()
            if fed:
                parser.Parse(b"", True)
                yield units.take()
        except (expat.ExpatError, ValueError, LookupError) as error:
            raise self._unfit(f"is not XML that can be read: {error}") from error
        except _UnfitError as error:
            raise self._unfit(f"{error} (line {parser.CurrentLineNumber})") from error
        if units.seen and units.missing:
            has = ", ".join(sorted(units.seen))
            raise CorpusError(
                f"has no segments in {units.missing[0]!r}, but in {has}",
                place=self.path,
                remedy="correct corpus.source_language or corpus.target_language",
            )

    def _unfit(self, problem: str) -> CorpusError:
        return CorpusError(problem, place=self.path, remedy="export the translation memory again")


class _UnfitError(Exception):
    """A fault of the file."""


class _Units:
    """Turns the events of expat into lines.

    seen: languages of segments, the first few. missing: the wanted ones that no segment had so far.
    """

    def __init__(self, languages: tuple[str, str]) -> None:
        self._codes = [*map(_plain, languages)]
        self._lines: list[str] = []
        self._depth = 0
        self._open_parts = 0
        self._size = 0
        self._num_segments = 0
        self._variants: dict[str, str] = {}
        self._language = ""
        self._text: list[str] = []
        self._code_depth = 0
        self.seen: set[str] = set()
        self.missing = list(languages)

    def take(self) -> bytes:
        """The lines since the last call, which are then forgotten, so that memory stays bounded."""
        lines, self._lines = self._lines, []
        return "".join(lines).encode(errors="replace")

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        if self._depth > _MOST_NESTED:
            raise _UnfitError(f"elements in it are nested more than {_MOST_NESTED} deep")
        name = _local(name)
        if name in _PARTS:
            self._start_part(name, attributes)
        elif self._in_segment:
            self._code_depth += bool(self._code_depth) or name in _CODES

    def end(self, name: str) -> None:
        self._depth -= 1
        if self._code_depth:
            self._code_depth -= 1
        elif _local(name) in _PARTS:
            self._end_part(_local(name))

    def characters(self, text: str) -> None:
        if not self._open_parts:
            return
        self._size += len(text)
        if self._size > _LONGEST_UNIT:
            raise _UnfitError(f"a translation unit in it has over {_LONGEST_UNIT} characters")
        if self._in_segment and not self._code_depth:
            self._text.append(text)

    def skipped(self, _name: str, _is_parameter: bool) -> None:
        """Replace an entity that another file declares with a space."""
        self.characters(" ")

    @property
    def _in_segment(self) -> bool:
        return self._open_parts == len(_PARTS)

    def _start_part(self, name: str, attributes: Mapping[str, str]) -> None:
        if _PARTS.index(name) != self._open_parts:
            holder = f"a <{_PARTS[self._open_parts - 1]}>" if self._open_parts else "no <tu>"
            raise _UnfitError(
                f"a <{name}> in it lies in {holder}, but <tu> holds <tuv>, which holds <seg>"
            )
        self._open_parts += 1
        if name == "tu":
            self._variants, self._size, self._num_segments = {}, 0, 0
        elif name == "tuv":
            self._language = attributes.get("xml:lang", attributes.get("lang", ""))[:35]
        else:
            self._text = []

    def _end_part(self, name: str) -> None:
        self._open_parts -= 1
        if name == "tu":
            sides = map(self._side, self._codes)
            self._lines.append("\t".join(sides) + "\n")
        elif name == "seg":
            self._num_segments += 1
            if self._num_segments > _MOST_VARIANTS:
                raise _UnfitError(f"a translation unit in it has over {_MOST_VARIANTS} segments")
            text = " ".join("".join(self._text).split())
            self._variants.setdefault(_plain(self._language), text)
            if len(self.seen) < _MOST_SHOWN:
                self.seen.add(self._language)
            if self.missing:
                self.missing = [one for one in self.missing if not _fits(self._language, one)]

    def _side(self, language: str) -> str:
        exact = self._variants.get(language)
        fitting = (text for code, text in self._variants.items() if _fits(code, language))
        return next(fitting, "") if exact is None else exact


def _local(name: str) -> str:
    """The name of an element without the prefix of its namespace."""
    return name.rpartition(":")[2]


def _plain(code: str) -> str:
    """A language's code in lower case with hyphens: pt_BR is pt-br."""
    return code.lower().replace("_", "-")


def _fits(code: str, language: str) -> bool:
    return base_language(code) == base_language(language)


def _refuse_declarations(_name: str, _system: str | None, _public: str | None, own: bool) -> None:
    """Refuse declarations in the file; a reference to tmx14.dtd is harmless: it is never read."""
    if own:
        raise _UnfitError("declares elements or entities of its own, which is not safe to read")
