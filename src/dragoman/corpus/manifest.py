"""The record of a prepared corpus: its files, and the counts of each stage.

A manifest is written last: a directory with a manifest is whole. MB are 10^6 bytes, MiB 2^20.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, ValidationError

from dragoman.base.errors import CorpusError
from dragoman.base.files import read_regular
from dragoman.base.settings import Section
from dragoman.corpus.config import CorpusConfig

FORMAT_VERSION: Final = 1
FILE_NAME = "manifest.json"
_LONGEST: Final = 1 << 24
"""Bytes: room for the digests of a hundred thousand files."""


class TextSize(Section):
    """Bytes of text, in MB and MiB, which are often confused."""

    num_bytes: int
    mb: float
    mib: float

    @classmethod
    def of(cls, num_bytes: int) -> Self:
        """The size in all units."""
        return cls(
            num_bytes=num_bytes, mb=round(num_bytes / 1e6, 3), mib=round(num_bytes / 2**20, 3)
        )


class SourceFile(Section):
    """A file that was read. name is as in the recipe; text is its size after unpacking.

    mended: how many byte order marks and CRLF line ends were removed, by name.
    regions: how often text of another region was taken, such as "pt-PT for pt-BR".
    """

    split: str
    name: str
    sha256: str
    size_bytes: int
    mtime_ns: int
    lines: int
    text: TextSize
    mended: dict[str, int] = Field(default_factory=dict)
    regions: dict[str, int] = Field(default_factory=dict)


class StageFacts(Section):
    """Pairs into and out of a stage, and the text that it left."""

    stage: str
    pairs_in: int
    pairs_out: int
    dropped: dict[str, int]
    dropped_share: float
    source_text: TextSize
    target_text: TextSize


class SplitFacts(Section):
    """One split: its stages in order, and the counts of its shards, without special ids.

    copies: the pairs that are changed copies of others, by the key of `corpus.augment`; `context`:
        those that are several others, joined.
    """

    stages: tuple[StageFacts, ...]
    pairs: int
    source_pieces: int
    target_pieces: int
    source_unknown_pieces: int
    target_unknown_pieces: int
    truncated: int
    truncated_share: float
    copies: dict[str, int] = Field(default_factory=dict)

    @property
    def mean_target_tokens(self) -> float:
        """Pieces of a target sentence and its end, on average."""
        return self.target_pieces / max(1, self.pairs) + 1

    @property
    def pairs_in(self) -> int:
        """Pairs read."""
        return self.stages[0].pairs_in

    @property
    def kept(self) -> int:
        """Pairs that were read and stay, without changed copies and paragraphs."""
        return self.pairs - sum(self.copies.values())

    @property
    def dropped(self) -> dict[str, int]:
        """Pairs dropped by each filter, over all stages."""
        counts: dict[str, int] = {}
        for stage in self.stages:
            for reason, pairs in stage.dropped.items():
                counts[reason] = counts.get(reason, 0) + pairs
        return counts


class OutputFile(Section):
    """A file of the prepared corpus."""

    sha256: str
    size_bytes: int


class Manifest(Section):
    """The facts of a prepared corpus.

    digest is over the files' digests: two corpora with equal digests have the same text, models and
    ids, wherever they were made and by however many workers.
    """

    format_version: Literal[1]
    digest: str
    config: CorpusConfig
    source_vocab_size: int = Field(ge=1, le=10_000_000)
    target_vocab_size: int = Field(ge=1, le=10_000_000)
    sources: tuple[SourceFile, ...]
    splits: dict[str, SplitFacts]
    files: dict[str, OutputFile]

    @classmethod
    def load(cls, directory: Path) -> Self:
        """The manifest of a prepared corpus.

        Raises: CorpusError if there is none, or it is of another version or broken.
        """
        path = directory / FILE_NAME
        try:
            return cls.model_validate_json(read_regular(path, limit=_LONGEST))
        except FileNotFoundError as error:
            raise CorpusError(
                "is not a prepared corpus", place=directory, remedy="run dragoman prepare first"
            ) from error
        except (OSError, ValidationError) as error:
            raise CorpusError(
                "is not a manifest that this version can read",
                place=path,
                remedy="run dragoman prepare again",
            ) from error

    @property
    def train(self) -> SplitFacts:
        """The training split."""
        return self.splits["train"]


def digest_files(files: dict[str, OutputFile]) -> str:
    """The digest of a corpus with these files."""
    digests = {name: file.sha256 for name, file in files.items()}
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()
