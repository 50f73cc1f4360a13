"""The files of a recipe's entries, and whether a manifest was made from them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dragoman.base.errors import ConfigError, CorpusError
from dragoman.base.files import file_sha256
from dragoman.base.languages import same_language
from dragoman.corpus.config import FILE_KEYS, TEXT_FORMATS, CorpusConfig, ScoreLimit, TextFiles
from dragoman.corpus.directions import Direction, language_token
from dragoman.corpus.fetched import fetch
from dragoman.corpus.hub_sets import fetch_from_hub
from dragoman.corpus.manifest import FORMAT_VERSION, Manifest, SourceFile, TextSize
from dragoman.corpus.moses import MosesText
from dragoman.corpus.named_sets import fetch_set
from dragoman.corpus.pairs import (
    PARALLEL,
    BlockReader,
    ColumnLimit,
    FileFacts,
    LineReader,
    NamedPath,
    TextEntry,
)
from dragoman.corpus.tmx import TmxFile

READERS: Final[dict[str, Callable[[str, Path, Direction], list[NamedPath]]]] = {
    "tmx": lambda name, path, languages: [TmxFile(name, path, languages)],
    "moses": lambda name, path, languages: [
        MosesText(f"{name}:{language}", path, language) for language in languages
    ],
}
"""Key of an entry, of `TEXT_FORMATS` -> its texts, from the file's name, path and languages."""
_READ_BYTES: Final = 256 << 20
"""Files of an entry that are read for their faults alone: plain text of so many bytes takes a
second or two."""
_WORK_VERSION: Final = 3
"""Version of the files of an unfinished preparation; other versions start again."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """A file of a split, under the name that the recipe gives it, as it is on disk now."""

    split: str
    name: str
    path: Path
    size_bytes: int
    mtime_ns: int


class Sources:
    """All entries of a corpus section, with their files found.

    downloads: where named corpora are kept; None: entries that name one are left out.
    Raises: ConfigError if there is no training text, or two entries disagree on a file's language;
    CorpusError if a file or a column of scores is missing; the errors of `fetch`.
    """

    def __init__(self, config: CorpusConfig, *, downloads: Path | None) -> None:
        self._config = config
        self._downloads = downloads
        self._languages: dict[Path, tuple[str, str]] = {}
        self.files: list[SourceState] = []
        self.entries = {
            split: [
                self._find(split, number, entry)
                for number, entry in enumerate(entries)
                if downloads is not None or not entry.is_named
            ]
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

    def work_digest(self, vocabulary: Sequence[bytes] | None) -> str:
        """The digest of all that decides the prepared text.

        These are the section, the name, size and time of each file, and the vocabulary if one is
        given (None: it is learnt). Unfinished work with another digest is not continued.
        """
        files = [(file.split, file.name, file.size_bytes, file.mtime_ns) for file in self.files]
        section = _in_place(self._config).model_dump(mode="json")
        kept = [hashlib.sha256(model).hexdigest() for model in vocabulary or ()]
        decides = [FORMAT_VERSION, _WORK_VERSION, section, files, *kept]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()

    def describe(self, split: str, facts: Sequence[FileFacts]) -> list[dict[str, Any]]:
        """The manifest's entries for the files of a split; facts are in the same order."""
        files = [file for file in self.files if file.split == split]
        return [
            SourceFile(
                split=split,
                name=file.name,
                sha256=known.sha256,
                size_bytes=file.size_bytes,
                mtime_ns=file.mtime_ns,
                lines=known.lines,
                text=TextSize.of(known.text_bytes),
                mended=known.mended,
                regions=known.regions,
            ).model_dump()
            for file, known in zip(files, facts, strict=True)
        ]

    def match(self, manifest: Manifest) -> bool:
        """Whether the manifest was made from this section and these files.

        A file of the same size and time counts as unchanged. If only the time differs, its SHA-256
        decides.
        """
        if _in_place(manifest.config) != _in_place(self._config):
            return False
        if len(manifest.sources) != len(self.files):
            return False
        return all(
            file.name == known.name
            and file.size_bytes == known.size_bytes
            and (file.mtime_ns == known.mtime_ns or file_sha256(file.path) == known.sha256)
            for file, known in zip(self.files, manifest.sources, strict=True)
        )

    def _find(self, split: str, number: int, files: TextFiles) -> TextEntry:
        folder = Path(self._config.folder)
        languages = self._config.direction_of(files)
        found: list[NamedPath]
        if files.mtdata and self._downloads is not None:
            fetched = fetch(
                files.mtdata,
                self._downloads,
                source_language=languages.source,
                target_language=languages.target,
            )
            paths = [Path(fetched.source), Path(fetched.target)]
            found = [NamedPath(f"{files.mtdata}/{path.name}", path) for path in paths]
        elif files.hf and self._downloads is not None:
            texts = fetch_from_hub(
                files,
                self._downloads,
                source_language=languages.source,
                target_language=languages.target,
            )
            found = [NamedPath(f"{files.hub_name}/{path.name}", path) for path in texts]
        elif files.set:
            texts = fetch_set(
                files.set, source_language=languages.source, target_language=languages.target
            )
            found = [NamedPath(f"{files.set}/{path.name}", path) for path in texts]
        elif key := next((key for key in TEXT_FORMATS if getattr(files, key)), None):
            name = getattr(files, key)
            found = READERS[key](name, folder / name, languages)
        else:
            names = filter(None, (files.source, files.tsv, files.target))
            found = [NamedPath(name, folder / name) for name in names]
            if any(entry.source_language or entry.target_language for entry in self._config.train):
                written = Direction(*reversed(languages)) if files.reverse else languages
                self._check_languages(split, number, found, written)
        for file in found:
            path = file.path
            _check_file(path, split)
            state = path.stat()
            self.files.append(SourceState(split, file.name, path, state.st_size, state.st_mtime_ns))
        limits, has_header, num_columns = _column_limits(found[0].path, files.scores)
        token = language_token(languages.target) if self._config.language_tokens else ""
        return TextEntry(
            *found,
            direction=languages,
            tag=" ".join(filter(None, (token, files.tag))),
            number=number,
            limits=limits,
            reverse=files.reverse,
            shuffled=files.shuffled,
            has_header=has_header,
            num_columns=num_columns,
        )

    def _check_languages(
        self, split: str, number: int, found: Sequence[NamedPath], languages: Direction
    ) -> None:
        """Raise ConfigError if another entry says that one of these files is in another language.

        For a TSV file, both entries must name its two languages in the same order.
        """
        said = languages if len(found) > 1 else (" to ".join(languages),)
        for file, language in zip(found, said, strict=True):
            place = f"corpus.{split}[{number}]"
            known, other = self._languages.setdefault(file.path.resolve(), (language, place))
            if known != language and not same_language(known, language):
                raise ConfigError(
                    f"takes {file.name} for {language}, and {other} takes it for {known}",
                    place=place,
                    remedy="correct source_language or target_language of one of them",
                )


def check_files(config: CorpusConfig) -> None:
    """Raises CorpusError if a file that a recipe names is missing."""
    for split in ("train", "valid", "test"):
        for entry in getattr(config, split):
            for path in _paths(config, entry):
                _check_file(path, split)


def check_text(config: CorpusConfig) -> tuple[str, ...]:
    """Read the files that a recipe names, as its preparation will, up to a size that takes seconds.

    Raises the errors of the preparation: those of `Sources`, and CorpusError if a file is empty or
    damaged, or if the two files of an entry do not have the same number of lines. Named corpora,
    and entries that are larger, are left to the preparation. Returns its warnings about lines that
    do not seem to belong together.
    """
    shifted: list[str] = []
    for entries in Sources(config, downloads=None).entries.values():
        for entry in entries:
            if sum(file.path.stat().st_size for file in entry.files) <= _READ_BYTES:
                reader = BlockReader([entry])
                for _ in reader:
                    pass
                shifted += (f"{words}; {PARALLEL}" for words in reader.shifted)
    return tuple(shifted)


def _paths(config: CorpusConfig, entry: TextFiles) -> list[Path]:
    return [Path(config.folder) / name for key in FILE_KEYS if (name := getattr(entry, key))]


def _check_file(path: Path, split: str) -> None:
    if not path.is_file():
        raise CorpusError(
            "is a directory" if path.is_dir() else "does not exist",
            place=path,
            remedy=f"check the name in corpus.{split}; "
            "names are relative to the recipe's folder, in an override to the working directory",
        )


def _column_limits(
    path: Path, scores: Sequence[ScoreLimit]
) -> tuple[tuple[ColumnLimit, ...], bool, int]:
    """The limits with their columns found, whether the first line names columns, and how many it
    has."""
    if not scores:
        return (), False, 0
    first_line = LineReader(path).take(1)[0].decode(errors="replace").removeprefix("\ufeff")
    names = first_line.rstrip("\r\n").split("\t")
    limits = []
    for score in scores:
        by_name = isinstance(score.column, str)
        if score.column not in names[2:] if by_name else int(score.column) > len(names):
            raise CorpusError(
                f"its first line names no column {score.column!r} after source and target"
                if by_name
                else f"its first line has no column {score.column}, only {len(names)}",
                place=path,
                remedy="correct scores of this entry in corpus.train",
            )
        index = names.index(str(score.column), 2) if by_name else int(score.column) - 1
        limits.append(ColumnLimit(index, str(score.column), score.at_least, score.at_most))
    has_header = any(isinstance(score.column, str) for score in scores)
    return tuple(limits), has_header, len(names)


def _in_place(config: CorpusConfig) -> CorpusConfig:
    """The keys that decide the shards, without the folder: moved files make the same corpus."""
    return config.of_text.model_copy(update={"folder": ""})
