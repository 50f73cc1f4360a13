"""Archives of OPUS in Moses format: a zip with two aligned texts, read without unpacking it."""

from __future__ import annotations

import glob
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dragoman.base.errors import CorpusError
from dragoman.base.files import file_sha256
from dragoman.base.languages import (
    LONGEST_CODE,
    closest_language,
    in_other_script,
    is_other_region,
    with_script,
)
from dragoman.corpus.archives import member_names, open_member
from dragoman.corpus.pairs import FileFacts, LineReader, NamedPath, unreadable

_MOST_SHOWN: Final = 8
_REMEDY: Final = (
    "give a zip archive in Moses format, with names that end in the languages of the recipe, or "
    "the unpacked files"
)


@dataclass(frozen=True, slots=True)
class MosesText(NamedPath):
    """The text of one language in such an archive."""

    language: str

    def open(self) -> LineReader:
        """A reader of its lines."""
        return _MemberReader(self.path, self.language)


class _MemberReader(LineReader):
    def __init__(self, path: Path, language: str) -> None:
        super().__init__(path)
        self._language = language
        self._found: str | None = None

    def facts(self) -> FileFacts:
        """The facts of the text, and the digest of the archive."""
        known, found = super().facts(), self._ending()
        is_other = is_other_region(found, self._language)
        regions = {f"{found} for {self._language}": known.lines} if is_other else {}
        return replace(known, sha256=file_sha256(self.path), regions=regions)

    def _ending(self) -> str:
        """The end of the name of the text: the code in the archive that is closest."""
        if self._found is None:
            names = member_names(self.path)
            endings = dict.fromkeys(name.rpartition(".")[2] for name in names if "." in name)
            self._found = closest_language(self._language, endings)
            if self._found is None:
                raise self._without_text([*endings])
        return self._found

    def _without_text(self, endings: list[str]) -> CorpusError:
        shown = ", ".join(f"*.{ending[:LONGEST_CODE]}" for ending in endings[:_MOST_SHOWN])
        other = in_other_script(self._language, endings)
        return CorpusError(
            f"is not an archive with one text in {self._language!r}: "
            f"its files are called {shown or 'without a language'}",
            place=self.path,
            remedy=f"{other} is another script: write {with_script(other)} in the recipe, if the "
            "model is to translate it"
            if other
            else _REMEDY,
        )

    def _raw(self) -> Iterator[bytes]:
        try:
            yield from open_member(self.path, f"*.{glob.escape(self._ending())}")
        except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            said = (str(error) or type(error).__name__).splitlines()[0]
            raise CorpusError(
                f"is not an archive with one text in {self._language!r}: {said}",
                place=self.path,
                remedy=_REMEDY,
            ) from error
        except OSError as error:
            raise unreadable(self.path, error) from error
