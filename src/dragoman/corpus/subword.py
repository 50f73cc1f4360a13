"""SentencePiece models: trained on a bounded sample, applied in parallel.

Text reaches SentencePiece normalised, so its own normalisation is off and decoding an encoding
gives the text back, unknown characters apart.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from dragoman.corpus.config import SubwordConfig
from dragoman.corpus.shards import TokenRows, id_dtype
from dragoman.corpus.special_ids import BOS, EOS, PAD, UNK
from dragoman.errors import CorpusError

_CACHED_WORDS = 300_000
_LONGEST_WORD_BYTES = 1 << 20
# The result of training depends on how the work is split, so the number is not the machine's.
_TRAINING_THREADS = 8


class Subword:
    """Text to ids and back, with the ids of special_ids."""

    def __init__(self, processor: sentencepiece.SentencePieceProcessor) -> None:
        self._processor = processor
        self.vocab_size: int = processor.get_piece_size()

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a SentencePiece model.

        Raises: CorpusError where it is not one, or has other ids for padding, unknown, beginning
        and end of sentence.
        """
        try:
            processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (OSError, RuntimeError) as error:
            raise CorpusError(
                "is not a readable SentencePiece model",
                place=path,
                remedy="run dragoman prepare again",
            ) from error
        ids = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
        if ids != (PAD, UNK, BOS, EOS):
            raise CorpusError(
                f"has {ids} as ids of padding, unknown, beginning and end, "
                f"not {(PAD, UNK, BOS, EOS)}",
                place=path,
                remedy="use a model that dragoman prepare has trained",
            )
        return cls(processor)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Ids of each normalised text, without special ids."""
        ids: list[list[int]] = self._processor.encode(texts, num_threads=1)
        return ids

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Text of each row of ids; special ids are passed over."""
        kept = [[piece for piece in row if piece > EOS] for row in ids]
        texts: list[str] = self._processor.decode(kept, num_threads=1) if kept else []
        return texts

    def pieces(self, ids: list[int]) -> list[str]:
        """The piece behind each id."""
        return [self._processor.id_to_piece(piece) for piece in ids]


class RowEncoder:
    """Encodes much text, fast.

    Where no piece reaches over a space, as in BPE, the pieces of a text are those of its words,
    and most words of a language were seen before: they are looked up. Unigram chooses among whole
    segmentations by sums of floats that depend on the words before, so there every text is encoded
    whole, to give exactly what SentencePiece gives.
    """

    def __init__(self, subword: Subword, config: SubwordConfig) -> None:
        self._subword = subword
        self.vocab_size = subword.vocab_size
        self._dtype = id_dtype(subword.vocab_size)
        self._by_word = config.kind == "bpe"
        self._word_ids = _WordIds(subword, self._dtype)

    def encode(self, texts: list[str]) -> TokenRows:
        """Ids of each normalised text, without special ids."""
        if self._by_word:
            ids_of = self._word_ids.__getitem__
            rows = [b"".join(map(ids_of, text.split(" "))) for text in texts]
        else:
            encoded = self._subword.encode(texts)
            rows = [np.array(row, dtype=self._dtype).tobytes() for row in encoded]
        sizes = np.fromiter(map(len, rows), dtype=np.int32, count=len(rows))
        ids: NDArray[np.integer] = np.frombuffer(b"".join(rows), dtype=self._dtype)
        return TokenRows(ids, sizes // np.int32(self._dtype.itemsize))


class _WordIds(dict[str, bytes]):
    """Ids of each word as bytes; words of which there is no room are encoded each time."""

    def __init__(self, subword: Subword, dtype: np.dtype[np.uint16] | np.dtype[np.uint32]) -> None:
        super().__init__()
        self._subword = subword
        self._dtype = dtype

    def __missing__(self, word: str) -> bytes:
        ids = np.array(self._subword.encode([word])[0], dtype=self._dtype).tobytes()
        if len(self) < _CACHED_WORDS:
            self[word] = ids
        return ids


def train_subword(texts: Iterable[list[str]], config: SubwordConfig) -> bytes:
    """A SentencePiece model trained on lists of normalised texts, as the bytes of its file.

    The words are counted here and SentencePiece is given each once with its count: the same BPE
    model, in a fraction of the memory. Same texts, same bytes.
    Raises: CorpusError where vocab_size does not suit the text.
    """
    counts: Counter[str] = Counter()
    for batch in texts:
        counts.update(" ".join(batch).split(" "))
    del counts[""]
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in sorted(counts.items())),
            input_format="tsv",
            model_writer=model,
            model_type=config.kind,
            vocab_size=config.vocab_size,
            character_coverage=config.character_coverage,
            normalization_rule_name="identity",
            max_sentence_length=_LONGEST_WORD_BYTES,
            num_threads=_TRAINING_THREADS,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _training_error(str(error), config) from error
    return model.getvalue()


def _training_error(message: str, config: SubwordConfig) -> CorpusError:
    """What SentencePiece said, with the limit it names as the remedy."""
    place = "corpus.subword.vocab_size"
    if largest := re.search(r"Please set it to a value <= (\d+)", message):
        return CorpusError(
            f"{config.vocab_size} is more than this text has pieces for",
            place=place,
            remedy=f"set it to {largest[1]} or less, or add text",
        )
    if smallest := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return CorpusError(
            f"{config.vocab_size} is too small for the characters of this text",
            place=place,
            remedy=f"set it to more than {smallest[1]}, or lower character_coverage",
        )
    return CorpusError(
        f"SentencePiece could not be trained: {message}",
        place="corpus.subword",
        remedy="check the text and these settings",
    )
