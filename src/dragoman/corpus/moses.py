"""Archives of OPUS in Moses format: a zip with two aligned texts, read without unpacking it."""

from __future__ import annotations

import glob
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dragoman.base.errors import CorpusError
from dragoman.base.files import file_sha256
from dragoman.base.languages import closest_language, is_other_region
from dragoman.corpus.download import member_names, open_member
from dragoman.corpus.pairs import FileFacts, LineReader, NamedPath, unreadable


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
            self._found = closest_language(self._language, endings) or self._language
        return self._found

    def _raw(self) -> Iterator[bytes]:
        try:
            yield from open_member(self.path, f"*.{glob.escape(self._ending())}")
        except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            said = (str(error) or type(error).__name__).splitlines()[0]
            raise CorpusError(
                f"is not an archive with one text in {self._language!r}: {said}",
                place=self.path,
                remedy="give a zip archive in Moses format, with names that end in the languages "
                "of the recipe, or the unpacked files",
            ) from error
        except OSError as error:
            raise unreadable(self.path, error) from error
