"""SentencePiece models: trained on a bounded sample, applied in parallel.

Text reaches SentencePiece normalised, so SentencePiece's own normalisation is off, and decoding
restores an encoded text, except for unknown characters.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Final, Self

import sentencepiece

from dragoman.base.errors import CorpusError
from dragoman.base.files import file_sha256, read_regular
from dragoman.corpus import stand_ins
from dragoman.corpus.config import SubwordConfig, is_tag
from dragoman.corpus.shards import BOS, EOS, PAD, UNK

VOCABULARIES: Final = ("source.model", "target.model")
_LARGEST_BYTES: Final = 1 << 28
"""The largest SentencePiece model that is read: room for ten million pieces."""
_LONGEST_WORD_BYTES = 1 << 20
# The result of training depends on how the work is split, so the number of threads is fixed.
_TRAINING_THREADS = 8
_ONE_BY_ONE = 16
"""Up to this many texts are encoded singly: for a list SentencePiece starts a thread, which costs
as much as a dozen sentences and waits for a free core."""


class Subword:
    """Text to ids and back; padding and sentence ends have the ids of `shards`."""

    def __init__(self, processor: sentencepiece.SentencePieceProcessor) -> None:
        self._processor = processor
        self.vocab_size: int = processor.get_piece_size()
        self.tokens: dict[str, int] = {}
        """Ids of the tokens that name a target language; empty if the model has none."""
        for number in range(EOS + 1, self.vocab_size):
            if not processor.is_control(number):
                break
            self.tokens[processor.id_to_piece(number)] = number
        # SentencePiece puts tags next, with the score 0. Pieces for bytes and the first piece that
        # BPE has learnt have this score, too; the two letters of the latter are shorter than any
        # tag, and longer than a stand-in.
        behind = takewhile(
            lambda number: not processor.is_byte(number),
            range(EOS + 1 + len(self.tokens), self.vocab_size),
        )
        named = ((processor.id_to_piece(number), processor.get_score(number)) for number in behind)
        self.tags: tuple[str, ...] = tuple(
            piece for piece, _ in takewhile(lambda one: not one[1] and is_whole(one[0]), named)
        )
        """Words that are one piece each, wherever they stand in a text."""
        self.stand_ins = stand_ins.ALL.intersection(self.tags)
        has_separator = stand_ins.SEPARATOR in self.stand_ins
        self.separator_id = processor.piece_to_id(stand_ins.SEPARATOR) if has_separator else None

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a SentencePiece model; raises CorpusError as `parse`."""
        return cls.parse(read_vocabulary(path), place=path)

    @classmethod
    def parse(cls, content: bytes, *, place: Path) -> Self:
        """The SentencePiece model in a file's content. place: the file, for errors.

        Raises: CorpusError if it is not one, or has other ids for padding, unknown, beginning
        and end of sentence.
        """
        try:
            processor = processor_of(content)
        except RuntimeError as error:
            raise _unreadable(place) from error
        ids = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
        if ids != (PAD, UNK, BOS, EOS):
            raise CorpusError(
                f"has {ids} as ids of padding, unknown, beginning and end, "
                f"not {(PAD, UNK, BOS, EOS)}",
                place=place,
                remedy="use a model that dragoman prepare has trained",
            )
        return cls(processor)

    @cached_property
    def num_letters(self) -> bytes:
        """The letters of each id's piece, at most 255; 0 if it stands for no text, or a byte."""
        first = EOS + 1 + len(self.tokens)
        text = (
            "" if self._processor.is_byte(number) else self._processor.id_to_piece(number)
            for number in range(first, self.vocab_size)
        )
        return bytes(first) + bytes(min(255, sum(map(str.isalpha, piece))) for piece in text)

    @cached_property
    def unknown_ids(self) -> frozenset[int]:
        """The ids of characters without a piece: the unknown one, and those of bytes."""
        return frozenset((UNK, *filter(self._processor.is_byte, range(self.vocab_size))))

    @property
    def has_prefix(self) -> bool:
        """Whether a text may begin with a language token."""
        return bool(self.tokens)

    def prefix(self, text: str) -> tuple[list[int], str]:
        """The id of the language token that the text begins with, if any, and the text after it."""
        first, _, rest = text.partition(" ")
        if first not in self.tokens:
            return [], text
        return [self.tokens[first]], rest

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Ids of each normalised text with its language token, without other special ids."""
        if not self.tokens:
            return self.encode_plain(texts)
        parts = [self.prefix(text) for text in texts]
        plain = self.encode_plain([text for _, text in parts])
        return [prefix + ids for (prefix, _), ids in zip(parts, plain, strict=True)]

    def encode_plain(self, texts: list[str]) -> list[list[int]]:
        """Ids of texts without a language token."""
        if len(texts) <= _ONE_BY_ONE:
            return [self._processor.encode(text) for text in texts]
        ids: list[list[int]] = self._processor.encode(texts, num_threads=1)
        return ids

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Text of each row of ids; special ids and the separator of sentences are skipped."""
        between = self.separator_id
        kept = [[piece for piece in row if piece > EOS and piece != between] for row in ids]
        if len(kept) <= _ONE_BY_ONE:
            return [self._processor.decode(row) for row in kept]
        texts: list[str] = self._processor.decode(kept, num_threads=1)
        return texts

    def pieces(self, ids: list[int]) -> list[str]:
        """The piece behind each id."""
        return [self._processor.id_to_piece(piece) for piece in ids]

    def all_pieces(self) -> list[str]:
        """Every piece, in the order of the ids."""
        return self.pieces(list(range(self.vocab_size)))


def is_whole(piece: str) -> bool:
    """Whether a piece is a tag or stands for other text, and is never cut."""
    return is_tag(piece) or piece in stand_ins.ALL


def processor_of(content: bytes) -> sentencepiece.SentencePieceProcessor:
    """The SentencePiece model in a file's content; raises RuntimeError if there is none, or a piece
    is not text."""
    if not content:
        raise RuntimeError("empty")  # SentencePiece would ignore an empty model
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    try:
        processor.id_to_piece([*range(processor.get_piece_size())])
    except UnicodeDecodeError as error:
        raise RuntimeError("a piece is not UTF-8") from error
    return processor


def read_vocabulary(path: Path) -> bytes:
    """The content of a vocabulary file; CorpusError if it cannot be read or is too large."""
    try:
        return read_regular(path, limit=_LARGEST_BYTES)
    except OSError as error:
        raise _unreadable(path) from error


def _unreadable(path: Path) -> CorpusError:
    return CorpusError(
        "is not a readable SentencePiece model", place=path, remedy="run dragoman prepare again"
    )


def vocabulary_digests(directory: Path) -> dict[str, str]:
    """SHA-256 of the two models in a directory, by file name; CorpusError if one cannot be read."""
    try:
        return {name: file_sha256(directory / name) for name in VOCABULARIES}
    except OSError as error:
        raise CorpusError(
            f"cannot be read: {error.strerror}",
            place=error.filename,
            remedy="run dragoman prepare again",
        ) from error


def count_words(texts: list[str]) -> Counter[str]:
    """How often each word occurs in normalised texts; words are what spaces separate."""
    counts = Counter(" ".join(texts).split(" "))
    del counts[""]
    return counts


def train_on_words(
    word_counts: Counter[str],
    config: SubwordConfig,
    *,
    tags: Sequence[str] = (),
    tokens: Sequence[str] = (),
) -> bytes:
    """A SentencePiece model trained on words and how often they occur, as the bytes of its file.

    tags: words that are one piece each, whether they occur or not.
    tokens: the tokens that name target languages; each gets an id, and no text is cut into it.

    For BPE it is the model that SentencePiece learns from the sentences, in a fraction of the
    memory. The same counts give the same bytes.
    Raises: CorpusError if there is no text, vocab_size does not suit it, or config.kind is
    "imported".
    """
    if config.kind == "imported":
        raise CorpusError(
            '"imported" is the kind of imported models, and cannot be learnt',
            place="corpus.subword.kind",
            remedy="name the model to start from, or learn bpe or unigram pieces",
        )
    if not word_counts:
        raise CorpusError("there is no text to learn from", place="corpus.train", remedy="add text")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in sorted(word_counts.items())),
            input_format="tsv",
            model_writer=model,
            model_type=config.kind,
            vocab_size=config.vocab_size,
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            normalization_rule_name="identity",
            max_sentence_length=_LONGEST_WORD_BYTES,
            num_threads=_TRAINING_THREADS,
            user_defined_symbols=[*tags],
            control_symbols=[*tokens],
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
    """SentencePiece's own error, with the limit it names as the remedy."""
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
