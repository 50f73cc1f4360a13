"""The vocabulary of a side: SentencePiece models that we train, and those of imported models."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from dragoman.corpus.imported_vocabulary import ImportedVocabulary, is_imported
from dragoman.corpus.subword import Subword, read_vocabulary


class Vocabulary(Protocol):
    """Text to ids and back. Padding, unknown and end of sentence have the ids of `shards`.

    An id is a row of the model's matrices. Ids before a text are its prefix, such as a token for
    the language; the batch adds the end of sentence after it.
    """

    @property
    def vocab_size(self) -> int:
        """The number of pieces."""

    def prefix(self, text: str) -> tuple[list[int], str]:
        """Ids before each part of this text, and the text without the words of these ids."""

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Ids of each normalised text with its prefix, without the end of sentence."""

    def encode_plain(self, texts: list[str]) -> list[list[int]]:
        """Ids of texts that have no prefix."""

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Text of each row of ids; special ids are skipped."""

    def pieces(self, ids: list[int]) -> list[str]:
        """The piece behind each id."""

    def all_pieces(self) -> list[str]:
        """Every piece, in the order of the ids; no two are equal."""


def load_vocabulary(path: Path) -> Vocabulary:
    """Read a vocabulary of either kind; raises CorpusError."""
    content = read_vocabulary(path)
    if is_imported(content):
        return ImportedVocabulary.parse(content, place=path)
    return Subword.load(path)
