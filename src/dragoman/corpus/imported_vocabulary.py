"""The vocabulary of one side of an imported model, in one JSON file.

The ids are renumbered: padding, unknown and end of sentence have the ids of `shards`, all other
pieces keep their order. The file keeps the original order, and the SentencePiece models byte for
byte, so that an export can restore them.

In MarianMT and M2M100 SentencePiece cuts the text, and a list gives the pieces their ids; a piece
that is not listed is unknown. SentencePiece also joins pieces when decoding: MarianMT does this
with the source's model, whatever the language of the pieces.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, Self

import sentencepiece
from pydantic import Field

from dragoman.base.errors import CorpusError
from dragoman.base.settings import Section
from dragoman.corpus.shards import EOS, PAD, UNK
from dragoman.corpus.subword import processor_of

_SPACE: Final = "▁"
_CLEANED: Final = {
    " .": ".", " ?": "?", " !": "!", " ,": ",", " ' ": "'", " n't": "n't", " 'm": "'m",
    " 's": "'s", " 've": "'ve", " 're": "'re",
}  # fmt: skip
"""The replacements of `clean_up_tokenization_spaces` in transformers, in their order."""
_CODE: Final = re.compile(r">>.*<<|__.*__")
"""A piece that names a language."""
_REMEDY: Final = "import the model again"

Id = Annotated[int, Field(ge=0, lt=10_000_000)]


class VocabularyFile(Section):
    """The content of the file.

    pieces: the piece of each of our ids; their_ids: the original id of each.
    prefix: our ids before every text.
    codes: whether a text may begin with a language's code such as `>>fra<<`, which is one piece.
    special: ids that never stand for text.
    encoding, decoding: SentencePiece models in base64, to cut text and to join pieces; the same
        one if decoding is empty.
    cleaned: whether spaces before marks are removed after decoding.
    """

    format: Literal["dragoman vocabulary 1"] = "dragoman vocabulary 1"
    kind: Literal["marian", "m2m_100"]
    side: Literal["source", "target"]
    pieces: tuple[str, ...]
    their_ids: tuple[Id, ...]
    prefix: tuple[Id, ...] = Field(default=(), max_length=8)
    codes: bool = False
    special: tuple[Id, ...] = Field(default=(PAD, UNK, EOS), min_length=1)
    encoding: str
    decoding: str = ""
    cleaned: bool = False


def is_imported(content: bytes) -> bool:
    """Whether this is such a file; a SentencePiece model never begins like one."""
    return content.startswith(b'{"format"')


def sentencepiece_model(content: bytes, *, place: Path) -> sentencepiece.SentencePieceProcessor:
    """The SentencePiece processor of a model with these bytes; raises CorpusError."""
    try:
        return processor_of(content)
    except RuntimeError as error:
        raise CorpusError(
            "is not a readable SentencePiece model", place=place, remedy="copy it here again"
        ) from error


@dataclass(frozen=True)
class ImportedVocabulary:
    """Text to ids and back, as with the original tokenizer of the imported model."""

    file: VocabularyFile
    vocab_size: int
    stand_ins: ClassVar[frozenset[str]] = frozenset()
    separator_id: ClassVar[int | None] = None
    unknown_ids: ClassVar[frozenset[int]] = frozenset((UNK,))
    _ids: dict[str, int]
    _encoding: sentencepiece.SentencePieceProcessor
    _decoding: sentencepiece.SentencePieceProcessor

    @classmethod
    def parse(cls, content: bytes, *, place: Path) -> Self:
        """The vocabulary of a file's content; raises CorpusError."""
        try:
            file = VocabularyFile.model_validate_json(content)
            models = [base64.b64decode(text) for text in (file.encoding, file.decoding)]
        except ValueError as error:  # of pydantic and of base64
            raise CorpusError(
                "is not a vocabulary that this version can read", place=place, remedy=_REMEDY
            ) from error
        ids = {piece: number for number, piece in enumerate(file.pieces)}
        size = len(file.pieces)
        if not (
            len(ids) == len(set(file.their_ids)) == len(file.their_ids) == size > EOS
            and max((*file.their_ids, *file.prefix, *file.special)) < size
        ):
            raise CorpusError(
                "has pieces or ids that do not belong together", place=place, remedy=_REMEDY
            )
        encoding = sentencepiece_model(models[0], place=place)
        decoding = sentencepiece_model(models[1], place=place) if models[1] else encoding
        return cls(file, size, ids, encoding, decoding)

    @cached_property
    def num_letters(self) -> bytes:
        """The letters of each id's piece, at most 255; 0 if it stands for no text."""
        no_text = {*self.file.special, *self.file.prefix}
        return bytes(
            0
            if number in no_text or _CODE.fullmatch(piece)
            else min(255, sum(map(str.isalpha, piece)))
            for number, piece in enumerate(self.file.pieces)
        )

    @property
    def has_prefix(self) -> bool:
        """Whether a text may have ids before it."""
        return bool(self.file.codes or self.file.prefix)

    def prefix(self, text: str) -> tuple[list[int], str]:
        """Ids before each part of this text, and the text without the words of these ids."""
        if self.file.codes and text.startswith(">>") and (end := text.find("<<")) != -1:
            code, text = text[: end + 2], text[end + 2 :]
            return [self._ids.get(code, UNK)], text
        return [*self.file.prefix], text

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Ids of each normalised text with its prefix, without the end of sentence."""
        parts = [self.prefix(text) for text in texts]
        plain = self.encode_plain([text for _, text in parts])
        return [prefix + ids for (prefix, _), ids in zip(parts, plain, strict=True)]

    def encode_plain(self, texts: list[str]) -> list[list[int]]:
        """Ids of texts that have no prefix."""
        # Pieces, not ids: one that this SentencePiece model does not know may still be listed.
        rows = (self._encoding.encode(text, out_type=str) for text in texts)
        return [[self._ids.get(piece, UNK) for piece in row] for row in rows]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Text of each row of ids; special ids are skipped."""
        special, pieces = set(self.file.special), self.file.pieces
        return [self._join([pieces[one] for one in row if one not in special]) for row in ids]

    def pieces(self, ids: list[int]) -> list[str]:
        """The piece behind each id."""
        return [self.file.pieces[one] for one in ids]

    def all_pieces(self) -> list[str]:
        """Every piece, in the order of the ids; no two are equal."""
        return [*self.file.pieces]

    def _join(self, pieces: list[str]) -> str:
        text: str = self._decoding.decode_pieces(pieces)
        if self.file.kind == "marian":
            text = text.replace(_SPACE, " ")
        text = text.strip()
        if self.file.cleaned:
            for spaced, written in _CLEANED.items():
                text = text.replace(spaced, written)
        return text
