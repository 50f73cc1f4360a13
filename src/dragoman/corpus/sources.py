"""The files behind a recipe's entries, and whether they are still those of a manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.base.errors import ConfigError, CorpusError
from dragoman.base.files import file_sha256
from dragoman.corpus.config import CorpusConfig, TextFiles
from dragoman.corpus.fetch import fetch
from dragoman.corpus.lines import FileFacts
from dragoman.corpus.manifest import FORMAT_VERSION, Manifest, SourceFile, TextSize
from dragoman.corpus.pairs import NamedPath, TextEntry


@dataclass(frozen=True, slots=True)
class SourceState:
    """A file of a split, under the name that the recipe gives it, as it is on disk now."""

    split: str
    name: str
    path: Path
    size_bytes: int
    mtime_ns: int

    def described(self, facts: FileFacts) -> SourceFile:
        """What a manifest says of the file."""
        return SourceFile(
            split=self.split,
            name=self.name,
            sha256=facts.sha256,
            size_bytes=self.size_bytes,
            mtime_ns=self.mtime_ns,
            lines=facts.lines,
            text=TextSize.of(facts.text_bytes),
            mended=facts.mended,
        )


class Sources:
    """All entries of a corpus section, with their files found.

    downloads: where named corpora are kept.
    Raises: ConfigError where there is no training text; CorpusError where a file is missing.
    """

    def __init__(self, config: CorpusConfig, *, downloads: Path) -> None:
        self._config = config
        self._downloads = downloads
        self.files: list[SourceState] = []
        self.entries = {
            split: [self._find(split, entry) for entry in entries]
            for split, entries in (
                ("train", config.train),
                ("valid", config.valid),
                ("test", config.test),
            )
        }
        if not config.train:
            raise ConfigError(
                "no training text is given",
                place="corpus.train",
                remedy='add an entry such as {source = "a.en", target = "a.de"}',
            )

    def plan(self) -> str:
        """A digest of the section and of the state of all files; work of another plan is void."""
        files = [(file.split, file.name, file.size_bytes, file.mtime_ns) for file in self.files]
        section = _without_folder(self._config).model_dump(mode="json")
        plan = [FORMAT_VERSION, section, files]
        return hashlib.sha256(json.dumps(plan).encode()).hexdigest()

    def describe(self, split: str, facts: Sequence[FileFacts]) -> list[dict[str, Any]]:
        """What a manifest says of the files of a split, for JSON; facts are in their order."""
        files = [file for file in self.files if file.split == split]
        return [
            file.described(known).model_dump() for file, known in zip(files, facts, strict=True)
        ]

    def match(self, manifest: Manifest) -> bool:
        """Whether the manifest was made of this section and these files.

        Files of the same size and time are taken as unchanged; those of another time are read.
        """
        if _without_folder(manifest.config) != _without_folder(self._config):
            return False
        if len(manifest.sources) != len(self.files):
            return False
        return all(
            file.name == known.name
            and file.size_bytes == known.size_bytes
            and (file.mtime_ns == known.mtime_ns or file_sha256(file.path) == known.sha256)
            for file, known in zip(self.files, manifest.sources, strict=True)
        )

    def _find(self, split: str, files: TextFiles) -> TextEntry:
        folder = Path(self._config.folder)
        if files.mtdata:
            fetched = self._fetch(files.mtdata)
            paths = [Path(fetched.source), Path(fetched.target)]
            found = [NamedPath(f"{files.mtdata}/{path.name}", path) for path in paths]
        else:
            names = filter(None, (files.source, files.tsv, files.target))
            found = [NamedPath(name, folder / name) for name in names]
        self.files += [_state(split, file) for file in found]
        return TextEntry(*found)

    def _fetch(self, entry_id: str) -> TextFiles:
        return fetch(
            entry_id,
            self._downloads,
            source_language=self._config.source_language,
            target_language=self._config.target_language,
        )


def _state(split: str, file: NamedPath) -> SourceState:
    path = file.path
    if not path.is_file():
        raise CorpusError(
            "is a directory" if path.is_dir() else "does not exist",
            place=path,
            remedy=f"check the name in corpus.{split}; relative names start at the recipe's folder",
        )
    state = path.stat()
    return SourceState(split, file.name, path, state.st_size, state.st_mtime_ns)


def _without_folder(config: CorpusConfig) -> CorpusConfig:
    """Files that were moved as they are make the same corpus."""
    return config.model_copy(update={"folder": ""})
