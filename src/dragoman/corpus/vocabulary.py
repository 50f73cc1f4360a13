"""The vocabulary of a side, of a model that we train or of an imported one, and the fast encoding
of much text with either."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.corpus.config import SubwordConfig
from dragoman.corpus.imported_vocabulary import ImportedVocabulary, is_imported
from dragoman.corpus.shards import TokenRows, id_dtype
from dragoman.corpus.subword import Subword, read_vocabulary

_KNOWN_WORDS: Final = 300_000


class Vocabulary(Protocol):
    """Text to ids and back. Padding, unknown and end of sentence have the ids of `shards`.

    An id is a row of the model's matrices. Ids before a text are its prefix, such as a token for
    the language; the batch adds the end of sentence after it.
    """

    @property
    def vocab_size(self) -> int:
        """The number of pieces."""

    @property
    def has_prefix(self) -> bool:
        """Whether a text may have a prefix."""

    @property
    def num_letters(self) -> bytes:
        """The letters of each id's piece, at most 255; 0 if it stands for no text, or a byte."""

    @property
    def unknown_ids(self) -> frozenset[int]:
        """The ids of characters without a piece: the unknown one, and those of bytes."""

    @property
    def stand_ins(self) -> frozenset[str]:
        """The pieces that stand for other text; see `corpus.stand_ins`."""

    @property
    def separator_id(self) -> int | None:
        """The id of the piece between the sentences of a paragraph; None if there is none."""

    def prefix(self, text: str) -> tuple[list[int], str]:
        """Ids before each part of this text, and the text without the words of these ids."""

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Ids of each normalised text with its prefix, without the end of sentence."""

    def encode_plain(self, texts: list[str]) -> list[list[int]]:
        """Ids of texts that have no prefix."""

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Text of each row of ids; special ids and the separator of sentences are skipped."""

    def pieces(self, ids: list[int]) -> list[str]:
        """The piece behind each id."""

    def all_pieces(self) -> list[str]:
        """Every piece, in the order of the ids; no two are equal."""


def load_vocabulary(path: Path) -> Vocabulary:
    """Read a vocabulary of either kind; raises CorpusError."""
    return parse_vocabulary(read_vocabulary(path), place=path)


def parse_vocabulary(content: bytes, *, place: Path) -> Vocabulary:
    """The vocabulary in a file of either kind; raises CorpusError that names the place."""
    if is_imported(content):
        return ImportedVocabulary.parse(content, place=place)
    return Subword.parse(content, place=place)


class RowEncoder:
    """Encodes much text, fast.

    If no piece reaches over a space, as in BPE, the pieces of a text are those of its words,
    and most words of a text were seen before: they are looked up. Unigram chooses among whole
    segmentations by sums of floats that depend on the words before, so there every text is encoded
    whole, to give exactly what SentencePiece gives.
    """

    def __init__(self, subword: Vocabulary, config: SubwordConfig) -> None:
        self.vocab_size = subword.vocab_size
        self.vocabulary = subword
        self._by_word = config.kind == "bpe"
        self._dtype = id_dtype(subword.vocab_size)
        self._known: dict[str, bytes] = {}

    def encode(self, texts: list[str]) -> TokenRows:
        """Ids of each normalised text with its prefix, without the end of sentence."""
        if not self._by_word:
            whole = self._packed(self.vocabulary.encode(texts))
            return self._rows(whole, np.ones(len(texts), dtype=np.int64))
        words = " ".join(texts).split(" ")
        new_words = list(set(words) - self._known.keys())
        new_ids = self._packed(self.vocabulary.encode_plain(new_words))
        self._known.update(zip(new_words, new_ids, strict=True))
        encoded = [self._known[word] for word in words]
        while len(self._known) > _KNOWN_WORDS:  # words that come late are rare
            self._known.popitem()
        spaces = np.fromiter((text.count(" ") for text in texts), np.int64, count=len(texts))
        counts = spaces + 1
        if self.vocabulary.has_prefix:
            firsts = (np.cumsum(counts) - counts).tolist()
            starts = [words[first] for first in firsts]
            prefixes = {word: self.vocabulary.prefix(word)[0] for word in set(starts)}
            tokens = {word: self._packed([ids])[0] for word, ids in prefixes.items() if ids}
            for first, word in zip(firsts, starts, strict=True):
                if word in tokens:  # only here: anywhere else it is text
                    encoded[first] = tokens[word]
        return self._rows(encoded, counts)

    def _packed(self, rows: list[list[int]]) -> list[bytes]:
        typecode = self._dtype.char
        return [array(typecode, ids).tobytes() for ids in rows]

    def _rows(self, encoded: list[bytes], counts: NDArray[np.int64]) -> TokenRows:
        """Token rows. counts: the number of encoded words in each row."""
        ids: NDArray[np.integer] = np.frombuffer(b"".join(encoded), dtype=self._dtype)
        sizes = np.fromiter(map(len, encoded), dtype=np.int32, count=len(encoded))
        # reduceat would widen to int64, and lengths go to disk as they are.
        lengths = np.add.reduceat(sizes, np.cumsum(counts) - counts, dtype=np.int32)
        return TokenRows(ids, lengths // np.int32(self._dtype.itemsize))
