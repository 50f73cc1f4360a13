"""Archives of OPUS in Moses format: a zip with two aligned texts, read without unpacking it."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dragoman.base.errors import CorpusError
from dragoman.base.files import file_sha256
from dragoman.corpus.download import open_member
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

    def facts(self) -> FileFacts:
        """The facts of the text, and the digest of the archive."""
        known = super().facts()
        return FileFacts(
            known.path, file_sha256(self.path), known.lines, known.text_bytes, known.mended
        )

    def _raw(self) -> Iterator[bytes]:
        try:
            yield from open_member(self.path, f"*.{self._language}")
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
