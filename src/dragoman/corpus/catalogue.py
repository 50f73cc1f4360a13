"""mtdata's catalogue of named corpora: where they lie, what is in them, how they are read.

From mtdata we take the index and the parsers of formats. Its own downloads are not used: they
restart from nothing, keep a page of HTML for an archive, and go on without a valid certificate. Its
unpacking is not used: links in an archive take it out of its folder, and it has no limits. Its
logging is kept off the screen.
"""

from __future__ import annotations

import difflib
import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.base.errors import ConfigError, MachineError
from dragoman.base.files import remove_tree
from dragoman.corpus.archives import unpack_file, unpack_members
from dragoman.corpus.download import download


@dataclass(frozen=True, slots=True)
class NamedCorpus:
    """One entry of the catalogue. swapped: its first side is our target language."""

    entry: Any
    swapped: bool


@dataclass(slots=True)
class Downloads:
    """Where downloads are kept, and which file came from which address."""

    root: Path
    files: dict[str, Path] = field(default_factory=dict)

    def get(self, url: str, path: Path, *_: object, **__: object) -> Path:
        """In place of mtdata's own: the file of that address."""
        download(url, path)
        self.files[url] = path
        return path

    def unpack_folder(self, path: Path) -> Path:
        """An empty folder beside a download, for the texts in it."""
        folder = path.with_name(f"{path.name}.unpacked")
        remove_tree(folder)
        folder.mkdir()
        return folder

    def remove_unpacked(self) -> None:
        """Only the downloads are kept."""
        for path in self.files.values():
            for other in path.parent.iterdir():
                if other.is_dir():
                    remove_tree(other)
                elif other != path:
                    other.unlink()

    def remove(self) -> None:
        """What turned out to be damaged must come again."""
        for path in self.files.values():
            path.unlink(missing_ok=True)


class Catalogue:
    """mtdata, where it is installed; its index is built at the first use (some 15 s)."""

    def __init__(self) -> None:
        try:
            with quiet_logging():
                self._index = importlib.import_module("mtdata.index").INDEX
                self._dataset_id = importlib.import_module("mtdata.entry").DatasetId
                self._cache = importlib.import_module("mtdata.cache").Cache
                parser: Any = importlib.import_module("mtdata.parser")
                self._tags = importlib.import_module("mtdata.iso.bcp47")
        except ImportError as error:
            raise MachineError(
                f"named corpora need a package that is not installed: {error.name}",
                place="mtdata",
                remedy='pip install "dragoman[fetch]"',
            ) from error
        self._parser = parser.Parser
        # It warns of a file that is closed before its end, which may be long after an error.
        parser.log = logging.Logger("mtdata.parser", logging.CRITICAL)

    def find(self, entry_id: str, *, source_language: str, target_language: str) -> NamedCorpus:
        """The entry of that id; ConfigError where there is none or its languages are not ours."""
        pair = tuple(self._tag(code) for code in (source_language, target_language))
        try:
            entry = self._index[self._dataset_id.parse(entry_id)]
        except Exception as error:  # mtdata raises Exception itself, AssertionError and KeyError
            raise self._unknown(entry_id, pair) from error
        fits, swapped = self._tags.BCP47Tag.check_compat_swap(pair, entry.did.langs)
        if not fits:
            raise ConfigError(
                f"{entry_id} is not of the languages {source_language} and {target_language}",
                place="corpus",
                remedy=self._like(entry_id, pair),
            )
        return NamedCorpus(entry, bool(swapped))

    def pairs(self, corpus: NamedCorpus, downloads: Downloads) -> Iterator[tuple[str, str]]:
        """Source and target of each pair, in the order of the corpus, fetched where they are not.

        Raises what `download` does, and ValueError or what mtdata's parsers raise for bytes that
        they cannot read.
        """
        cache = self._cache(downloads.root)
        cache.download = downloads.get
        try:
            paths = self._texts(corpus.entry, cache, downloads)
            parser = self._parser(paths, ext=corpus.entry.in_ext or None, ent=corpus.entry)
            for segments in parser.read_segs(show_pbar=False):
                first, second, *_ = (str(segment or "") for segment in segments)
                yield (second, first) if corpus.swapped else (first, second)
        finally:
            downloads.remove_unpacked()

    def _texts(self, entry: Any, cache: Any, downloads: Downloads) -> Any:
        """Plain files for mtdata's parsers, one for each text; else what mtdata itself has."""
        urls = [entry.url] if isinstance(entry.url, str) else list(entry.url)
        kind = entry.in_ext or ("txt" if len(urls) > 1 else entry.ext)
        texts: list[Path] = []
        for url in urls:
            local = cache.get_local_path(url, filename=_file_name(entry), entry=entry)
            if not isinstance(local, Path):  # from Hugging Face, by its own library
                return local
            folder = downloads.unpack_folder(local)
            if entry.is_archive:
                texts += unpack_members(local, entry.in_paths, folder, kind=kind)
            else:
                texts.append(unpack_file(local, folder, kind=kind))
        return texts

    def _tag(self, code: str) -> Any:
        try:
            return self._tags.bcp47(code)
        except Exception as error:  # mtdata raises Exception itself
            raise ConfigError(
                f"{code!r} is not a language code",
                place="corpus.source_language or corpus.target_language",
                remedy="write a BCP 47 code such as en, de or pt-BR",
            ) from error

    def _unknown(self, entry_id: str, pair: tuple[Any, ...]) -> ConfigError:
        return ConfigError(
            f"mtdata knows no corpus {entry_id!r}",
            place="corpus",
            remedy=self._like(entry_id, pair),
        )

    def _like(self, entry_id: str, pair: tuple[Any, ...]) -> str:
        """What the id may have been meant to be, of the corpora of these languages."""
        languages = {str(tag) for tag in pair}
        ids = [str(did) for did in self._index.entries if {str(t) for t in did.langs} == languages]
        near = difflib.get_close_matches(entry_id, ids, n=1, cutoff=0.5)
        known = "-".join(str(tag) for tag in pair)
        return (
            f"did you mean {near[0]}?" if near else f"list the known ones: mtdata list -l {known}"
        )


def _file_name(entry: Any) -> str | None:
    """What its one download is called; the addresses of several tell their names."""
    return entry.filename if isinstance(entry.url, str) else None


@contextmanager
def quiet_logging() -> Iterator[None]:
    """mtdata gives the root logger a handler when it is imported, and writes much to it."""
    root = logging.getLogger()
    handlers, level, disabled = root.handlers[:], root.level, root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        root.handlers[:] = handlers
        root.setLevel(level)
