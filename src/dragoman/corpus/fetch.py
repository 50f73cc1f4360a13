"""Named corpora as two text files, fetched once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from dragoman.base.errors import CorpusError, DragomanError
from dragoman.base.files import disk_errors_named, file_sha256, whole_file, write_whole
from dragoman.corpus.catalogue import Catalogue, Downloads, quiet_logging
from dragoman.corpus.config import TextFiles

_RECEIPT: Final = "fetched.json"
_ARCHIVES: Final = "archives"


def fetch(
    entry_id: str, directory: Path, *, source_language: str, target_language: str
) -> TextFiles:
    """The two text files of the corpus that mtdata calls `entry_id`, fetched where they are not.

    directory: holds `<entry_id>/` with `text.<language>` twice and `fetched.json` (addresses,
    sha256 of the downloads and of the texts), and `archives/`, what was downloaded. Texts that are
    as the receipt says are not made again, archives that are there are not downloaded again.
    Raises ConfigError for an unknown id or one of other languages, CorpusError where the server or
    the archive is at fault, MachineError where mtdata, the disk or the network is missing.
    """
    folder = directory / entry_id
    source, target = _texts(folder, (source_language, target_language))
    receipt = _Receipt.read(folder)
    if receipt is None or not receipt.holds((source, target)):
        with disk_errors_named(directory), quiet_logging():
            _make(entry_id, directory, (source_language, target_language))
    return TextFiles(source=str(source.resolve()), target=str(target.resolve()))


def _texts(folder: Path, languages: tuple[str, str]) -> tuple[Path, Path]:
    return folder / f"text.{languages[0]}", folder / f"text.{languages[1]}"


def _make(entry_id: str, directory: Path, languages: tuple[str, str]) -> None:
    """Download, unpack and write the two texts; the receipt comes last and makes them count."""
    catalogue = Catalogue()
    corpus = catalogue.find(entry_id, source_language=languages[0], target_language=languages[1])
    downloads = Downloads(directory / _ARCHIVES)
    source, target = _texts(directory / entry_id, languages)
    try:
        _write(catalogue.pairs(corpus, downloads), source, target)
    except DragomanError:
        raise
    except Exception as error:  # whatever a parser says of bytes that it cannot read
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the system speaks: a disk, not the bytes
        raise _damaged(entry_id, downloads, error) from error
    _Receipt.of(downloads, (source, target)).write(source.parent)


@dataclass(frozen=True, slots=True)
class _TextState:
    """A text as it was made."""

    sha256: str
    size_bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> _TextState:
        state = path.stat()
        return cls(file_sha256(path), state.st_size, state.st_mtime_ns)

    def holds(self, path: Path) -> bool:
        """Whether the text is still so; it is read only where its time has changed."""
        if not path.is_file() or path.stat().st_size != self.size_bytes:
            return False
        return path.stat().st_mtime_ns == self.mtime_ns or file_sha256(path) == self.sha256


@dataclass(frozen=True, slots=True)
class _Receipt:
    """What was fetched: sha256 of each download by its address, and the texts by their name."""

    downloads: dict[str, str]
    texts: dict[str, _TextState]

    @classmethod
    def of(cls, downloads: Downloads, texts: Iterable[Path]) -> _Receipt:
        return cls(
            {url: file_sha256(path) for url, path in downloads.files.items()},
            {path.name: _TextState.of(path) for path in texts},
        )

    @classmethod
    def read(cls, folder: Path) -> _Receipt | None:
        """The receipt in a folder; None where there is none that can be read."""
        try:
            values = json.loads((folder / _RECEIPT).read_text(encoding="utf-8"))
            texts = {name: _TextState(**state) for name, state in values["texts"].items()}
            return cls(values["downloads"], texts)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, folder: Path) -> None:
        write_whole(folder / _RECEIPT, json.dumps(asdict(self), indent=1))

    def holds(self, texts: tuple[Path, Path]) -> bool:
        """Whether these are its texts, and unchanged."""
        return {path.name for path in texts} == set(self.texts) and all(
            self.texts[path.name].holds(path) for path in texts
        )


def _write(pairs: Iterable[tuple[str, str]], source: Path, target: Path) -> None:
    """One line a segment; a line end inside one becomes a space."""
    source.parent.mkdir(parents=True, exist_ok=True)
    (source.parent / _RECEIPT).unlink(missing_ok=True)
    with whole_file(source) as source_file, whole_file(target) as target_file:
        for pair in pairs:
            for file, segment in zip((source_file, target_file), pair, strict=True):
                file.write(" ".join(segment.splitlines()).encode() + b"\n")
        if not source_file.tell():
            raise ValueError("it holds no pairs")


def _damaged(entry_id: str, downloads: Downloads, error: Exception) -> CorpusError:
    downloads.remove()
    said = (str(error) or type(error).__name__).splitlines()[0]
    return CorpusError(
        f"what was downloaded for {entry_id} cannot be read: {said}",
        place=", ".join(downloads.files) or entry_id,
        remedy="it has been removed; run again to fetch it anew, or give the text as files",
    )
