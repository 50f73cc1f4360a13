"""mtdata's catalogue of named corpora: where they lie, what is in them, how they are read.

Of mtdata we take the index, the archive members and the parsers of formats. Its own downloads are
not used: they restart from nothing, keep a page of HTML for an archive, and go on without a valid
certificate. Its logging is kept off the screen.
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

from dragoman.corpus.download import download
from dragoman.errors import ConfigError, MachineError
from dragoman.files import remove_tree


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

    def remove_unpacked(self) -> None:
        """mtdata unpacks whole archives beside them; only the archives are kept."""
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
                self._parser = importlib.import_module("mtdata.parser").Parser
                self._tags = importlib.import_module("mtdata.iso.bcp47")
        except ImportError as error:
            raise MachineError(
                f"named corpora need a package that is not installed: {error.name}",
                place="mtdata",
                remedy='pip install "dragoman[fetch]"',
            ) from error

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
            paths = cache.get_entry(corpus.entry)
            if corpus.entry.is_archive and isinstance(paths, Path):
                raise ValueError("it is neither a zip nor a tar archive")
            parser = self._parser(paths, ext=corpus.entry.in_ext or None, ent=corpus.entry)
            for segments in parser.read_segs(show_pbar=False):
                first, second, *_ = (str(segment or "") for segment in segments)
                yield (second, first) if corpus.swapped else (first, second)
        finally:
            downloads.remove_unpacked()

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
