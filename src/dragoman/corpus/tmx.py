"""Translation memories (TMX 1.4b, Localization Industry Standards Association 2005) as lines.

The XML is read as a stream, with expat, in bounded memory. Entities cannot be declared and nothing
outside the file is read, so neither "billion laughs" nor references to other files have any effect.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final
from xml.parsers import expat
from xml.parsers.expat import errors

from dragoman.base.errors import CorpusError
from dragoman.base.languages import (
    closest_language,
    in_other_script,
    is_other_region,
    same_language,
    with_script,
)
from dragoman.corpus.filters import OTHER_SCRIPT
from dragoman.corpus.pairs import RUN_BYTES, FileFacts, LineReader, NamedPath

_CODES: Final = frozenset({"bpt", "ept", "it", "ph", "ut"})
"""Elements of a segment that hold the codes of another format, not text."""
_PARTS: Final = ("tu", "tuv", "seg")
"""Each is inside the one before it, and inside no other of these."""
DAMAGED: Final = "damaged"
"""The reason of a translation unit that cannot be read; its text is the fault."""
_MOST_NESTED: Final = 64
_MOST_NAMES: Final = 10_000
"""Different names of elements and attributes, which the parser keeps; TMX has some 50."""
_MOST_VARIANTS: Final = 1000
"""Segments of one translation unit."""
_MOST_SHOWN: Final = 8
_MOST_REGIONS: Final = 50
_LONGEST_NAME: Final = 100
"""Bytes of a tag, without its attributes."""
_LONGEST_UNIT: Final = RUN_BYTES // 4
"""Characters of one translation unit."""


_NEXT: Final = re.compile(rb"<(?:[^\s<>/:]+:)?tu[\s/>]|</(?:[^\s<>/:]+:)?body\s*>")
"""Where reading can go on after damage: at the next unit, or at the end of the last one."""
_UTF_16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff", b"<\0", b"\0<")
_NOT_A_UNIT: Final = {
    errors.codes[name]
    for name in (
        errors.XML_ERROR_UNKNOWN_ENCODING,
        errors.XML_ERROR_INCORRECT_ENCODING,
        errors.XML_ERROR_NO_ELEMENTS,
        errors.XML_ERROR_UNCLOSED_TOKEN,
        errors.XML_ERROR_UNCLOSED_CDATA_SECTION,
        errors.XML_ERROR_NO_MEMORY,
    )
}
"""Errors of expat that are not damage of one unit: another encoding, or a file that is cut off."""

_MISMATCHED_TAG: Final = errors.codes[errors.XML_ERROR_TAG_MISMATCH]


@dataclass(frozen=True, slots=True)
class TmxFile(NamedPath):
    """A translation memory, and the source and target languages to read from it."""

    languages: tuple[str, str]

    def open(self) -> LineReader:
        """A reader of `source TAB target` lines."""
        return TmxReader(self.path, self.languages)

    def fault_of(self, line: str) -> str:
        """The name of the fault of a unit that is not a pair."""
        return line.partition(" ")[0] if line.startswith(OTHER_SCRIPT) else DAMAGED


class TmxReader(LineReader):
    """Reads each translation unit as a line of `source TAB target`.

    A side that the unit lacks is empty. If a unit has several variants in a language, that of
    `closest_language` counts: another script is another language, another region is taken if the
    exact one is missing, and counted. The line of a damaged unit is the fault, without a tab. That
    of a unit that has a language only in another script is this reason and the text there.
    """

    def __init__(self, path: Path, languages: tuple[str, str]) -> None:
        super().__init__(path)
        self._units = _Units(languages)

    def facts(self) -> FileFacts:
        """The facts of the file, with the regions that stood in for others."""
        return replace(super().facts(), regions=dict(self._units.regions))

    def _unpacked(self) -> Iterator[bytes]:
        units = self._units
        document = _Document(units)
        try:
            for piece in super()._unpacked():
                document.feed(piece)
                yield units.take()
            document.close()
            yield units.take()
        except (expat.ExpatError, ValueError, LookupError) as error:
            raise self._unfit(f"is not XML that can be read: {error}") from error
        except _UnfitError as error:
            raise self._unfit(f"{error} (line {document.line})") from error
        if units.seen and units.missing:
            missing, has = units.missing[0], ", ".join(sorted(units.seen))
            is_bare = any(_fits(code, missing) for code in units.bare)
            raise CorpusError(
                f"has <tuv> in {missing!r} without a <seg>, and none with one"
                if is_bare
                else f"has no segments in {missing!r}, but in {has}",
                place=self.path,
                remedy="correct corpus.source_language or corpus.target_language",
            )

    def _unfit(self, problem: str) -> CorpusError:
        return CorpusError(problem, place=self.path, remedy="export the translation memory again")


class _UnfitError(Exception):
    """A fault of the file."""


class _DamageError(Exception):
    """A fault of one translation unit."""


class _Document:
    """Feeds a file to expat, and after a damaged unit goes on with the next one.

    line: where expat is now.
    """

    def __init__(self, units: _Units) -> None:
        self._units = units
        self._encoding: str | None = None
        self._utf_16: codecs.IncrementalDecoder | None = None
        self._has_doctype = False
        self._first_line = 1
        self._data = b""
        """The bytes from the token on that expat has not finished."""
        self._offset = 0
        """The index of these bytes, as expat counts."""
        self._began_at = -1
        """Where in the bytes the unit begins with which reading went on."""
        self._skipping = False
        self._first_fault = ""
        self._fault_at = 0, 0
        """The index and line of a misplaced element, as expat counts."""
        self._expat = self._new_expat()

    @property
    def line(self) -> int:
        return self._first_line + self._expat.CurrentLineNumber - 1

    def feed(self, piece: bytes, *, final: bool = False) -> None:
        """Parse the next bytes; damaged units become lines that say so."""
        if self._expat.CurrentByteIndex < 0 and not self._data:
            self._see_utf_16(piece)
        if self._utf_16 is not None:
            piece = self._utf_16.decode(piece, final).encode(errors="surrogatepass")
        self._data += piece
        new = piece
        while self._skipping or not self._parsed(new, final):
            new = self._skip()
            if self._skipping:
                return
        index = self._expat.CurrentByteIndex
        if index > self._offset:
            self._data = self._data[index - self._offset :]
            self._began_at -= index - self._offset
            self._offset = index
        if len(self._data) > RUN_BYTES:
            raise _UnfitError(f"a tag in it is longer than {RUN_BYTES >> 20} MiB")

    def close(self) -> None:
        """Parse the end."""
        if self._skipping:
            raise _UnfitError(f"{self._first_fault}; then it is cut off")
        if self._offset or self._data:
            self.feed(b"", final=True)

    def _parsed(self, new: bytes, final: bool) -> bool:
        """Give bytes to expat; False if there is damage, which `_units` then has as a line."""
        try:
            self._expat.Parse(new, final)
        except expat.ExpatError as error:
            if error.code in _NOT_A_UNIT or not self._units.has_begun:
                raise
            at, line = self._expat.ErrorByteIndex, self._expat.ErrorLineNumber
            if error.code == _MISMATCHED_TAG:
                at -= len("</")  # expat names the place of the name in it
            problem = expat.ErrorString(error.code)
        except _DamageError as error:
            (at, line), problem = self._fault_at, str(error)
        else:
            if len(self._expat.intern) > _MOST_NAMES:
                raise _UnfitError(
                    f"it uses more than {_MOST_NAMES} different names of elements and "
                    "attributes, so it is not a TMX file that can be read"
                )
            return True
        line += self._first_line - 1
        fault = f"line {line}: {problem}"
        self._first_fault = self._first_fault or fault
        self._units.damaged(fault)
        end = max(0, at - self._offset)
        start = max(end, self._began_at + 1)
        self._first_line = line + self._data.count(b"\n", end, start)
        self._data = self._data[start:]
        return False

    def _skip(self) -> bytes:
        """Go on at the next unit in the bytes, with an expat of its own; returns what it is to
        parse. If no unit begins in them, the next bytes are searched, too."""
        found = _NEXT.search(self._data)
        self._skipping = found is None
        if found is None:
            kept = self._data[-_LONGEST_NAME:]  # a tag may lie in two pieces
            self._first_line += self._data.count(b"\n", 0, len(self._data) - len(kept))
            self._data = kept
            return b""
        self._first_line += self._data.count(b"\n", 0, found.start())
        self._expat = self._new_expat()
        head = b"".join(b"<%s>" % name.encode() for name in self._units.holders)
        if self._has_doctype:
            head = b'<!DOCTYPE tmx SYSTEM "tmx14.dtd">' + head
        self._expat.Parse(head, False)
        self._data = self._data[found.start() :]
        self._offset, self._began_at = len(head), 0
        return self._data

    def _new_expat(self) -> expat.XMLParserType:
        parser = expat.ParserCreate(self._encoding)
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._units.end
        parser.CharacterDataHandler = self._units.characters
        parser.SkippedEntityHandler = self._units.skipped
        parser.StartDoctypeDeclHandler = self._see_doctype
        parser.XmlDeclHandler = self._see_declaration
        self._units.begin_again()
        return parser

    def _see_utf_16(self, head: bytes) -> None:
        """Read UTF-16 as UTF-8, in which tags are found by their bytes."""
        if not head.startswith(_UTF_16_MARKS):
            return
        big_endian = head.startswith((b"\xfe\xff", b"\0<"))
        decoder = codecs.getincrementaldecoder("utf-16-be" if big_endian else "utf-16-le")
        self._utf_16, self._encoding = decoder("surrogatepass"), "utf-8"
        self._expat = self._new_expat()

    def _start(self, name: str, attributes: Mapping[str, str]) -> None:
        try:
            self._units.start(name, attributes)
        except _DamageError:  # expat goes on to the end of its bytes, without handlers
            self._fault_at = self._expat.CurrentByteIndex, self._expat.CurrentLineNumber
            raise

    def _see_declaration(self, _version: str, encoding: str | None, _standalone: int) -> None:
        self._encoding = self._encoding or encoding

    def _see_doctype(self, _name: str, _system: str | None, _public: str | None, own: bool) -> None:
        """Refuse declarations in the file; a reference to tmx14.dtd is harmless: it is never
        read."""
        if own:
            raise _UnfitError("declares elements or entities of its own, which is not safe to read")
        self._has_doctype = True


class _Units:
    """Turns the events of expat into lines.

    seen: languages of segments, the first few. bare: those of variants without one. missing: the
        wanted ones that no segment had so far.
    regions: how often a variant of another region stood in for a wanted one, such as
        "pt-PT for pt-BR". has_begun: whether a unit has begun. holders: the elements around units.
    """

    def __init__(self, languages: tuple[str, str]) -> None:
        self._codes = languages
        self._lines: list[str] = []
        self.seen: set[str] = set()
        self.bare: set[str] = set()
        self.missing = list(languages)
        self.regions: Counter[str] = Counter()
        self.has_begun = False
        self.holders = ["tmx", "body"]
        self.begin_again()

    def begin_again(self) -> None:
        """Forget the open elements."""
        self._depth = 0
        self._open_elements: list[str] = []
        self._open_parts = 0
        self._size = 0
        self._num_segments = 0
        self._variants: dict[str, str] = {}
        self._without_segment: list[str] = []
        self._language = ""
        self._text: list[str] = []
        self._code_depth = 0

    def damaged(self, fault: str) -> None:
        """Add a line for a damaged unit."""
        self._lines.append(f"{' '.join(fault.split())}\n")

    def take(self) -> bytes:
        """The lines since the last call, which are then forgotten, so that memory stays bounded."""
        lines, self._lines = self._lines, []
        return "".join(lines).encode(errors="replace")

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        if self._depth > _MOST_NESTED:
            raise _UnfitError(f"elements in it are nested more than {_MOST_NESTED} deep")
        local = _local(name)
        if local == "tu" and not self._open_parts and not self.has_begun:
            self.has_begun, self.holders = True, [*self._open_elements]
        self._open_elements.append(name)
        if local in _PARTS:
            self._start_part(local, attributes)
        elif self._in_segment:
            self._code_depth += bool(self._code_depth) or local in _CODES

    def end(self, name: str) -> None:
        self._depth -= 1
        self._open_elements.pop()
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
            raise _DamageError(
                f"a <{name}> in it lies in {holder}, but <tu> holds <tuv>, which holds <seg>"
            )
        self._open_parts += 1
        if name == "tu":
            self._variants, self._size, self._num_segments = {}, 0, 0
            self._without_segment = []
        elif name == "tuv":
            self._language = attributes.get("xml:lang", attributes.get("lang", ""))[:35]
            self._segments_before = self._num_segments
        else:
            self._text = []

    def _end_part(self, name: str) -> None:
        self._open_parts -= 1
        if name == "tu":
            self._end_unit()
        elif name == "tuv" and self._num_segments == self._segments_before:
            if len(self._without_segment) < _MOST_VARIANTS:
                self._without_segment.append(self._language)
            if len(self.bare) < _MOST_SHOWN:
                self.bare.add(self._language)
        elif name == "seg":
            self._num_segments += 1
            if self._num_segments > _MOST_VARIANTS:
                raise _UnfitError(f"a translation unit in it has over {_MOST_VARIANTS} segments")
            text = " ".join("".join(self._text).split())
            self._variants.setdefault(self._language, text)
            if len(self.seen) < _MOST_SHOWN:
                self.seen.add(self._language)
            if self.missing:
                self.missing = [one for one in self.missing if not _fits(self._language, one)]

    def _end_unit(self) -> None:
        sides = []
        for wanted in self._codes:
            found, region = _closest(wanted, tuple(self._variants))
            empty = next((one for one in self._without_segment if _fits(one, wanted)), None)
            if found is None and empty is not None:
                self.damaged(f"a <tuv> in {empty!r} has no <seg>")
                return
            other = None if found else self._other_script(wanted)
            if other is not None:
                reason = f"{OTHER_SCRIPT}{with_script(other)}"
                self._lines.append(f"{reason} {self._variants[other]}\n")
                return
            if region in self.regions or (region and len(self.regions) < _MOST_REGIONS):
                self.regions[region] += 1
            sides.append("" if found is None else self._variants[found])
        self._lines.append("\t".join(sides) + "\n")

    def _other_script(self, wanted: str) -> str | None:
        """The code of a variant in another script than the wanted one, and for neither side."""
        variants = (
            code for code in self._variants if not any(_fits(code, one) for one in self._codes)
        )
        return in_other_script(wanted, variants)


def _local(name: str) -> str:
    """The name of an element without the prefix of its namespace."""
    return name.rpartition(":")[2]


def _fits(code: str, language: str) -> bool:
    return same_language(code, language) or code.lower() == language.lower()


@lru_cache(100)
def _closest(wanted: str, codes: tuple[str, ...]) -> tuple[str | None, str]:
    """The code of the variant to take, and the region that stands in for another one, in words."""
    found = closest_language(wanted, codes)
    if found is None:  # perhaps a name that is not a code
        return next((code for code in codes if _fits(code, wanted)), None), ""
    return found, f"{found} for {wanted}" if is_other_region(found, wanted) else ""
