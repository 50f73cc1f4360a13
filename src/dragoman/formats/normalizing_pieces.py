"""A SentencePiece model that brings text into our normal form itself, for other programs.

Our SentencePiece model is trained on text that `corpus.normalize` has normalised, and does not
itself normalise. Programs that pass it the text of a user need a model with the rules of
`corpus.normalize` in it.

SentencePiece replaces the longest sequence of characters that it has a rule for, from left to
right. So the rules cover all of NFC with one exception: a letter with several combining marks that
are not in canonical order and have no composed character. SentencePiece itself removes repeated
spaces and those at both ends. Lower-cased text has another exception: a capital sigma at
the end of a word becomes the sigma of the middle of a word, as no rule sees the end of a word.
"""

from __future__ import annotations

import io
import unicodedata
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import sentencepiece
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from sentencepiece import sentencepiece_model_pb2

from dragoman.corpus.normalize import normalize
from dragoman.corpus.stand_ins import SEPARATOR

_NUM_CODES: Final = 0x30000
"""Three planes: after them nothing is normalised and no letter has a case."""
_SURROGATES: Final = range(0xD800, 0xE000)
_LINE_END: Final = "\n"
_NAME: Final = "dragoman"
"""The name of the rules in a model."""
ModelProto: Any = sentencepiece_model_pb2.ModelProto  # type: ignore[attr-defined]


def with_normalization(model: bytes, *, lowercase: bool) -> bytes:
    """The file of a SentencePiece model, with the rules of `normalize` added to it."""
    proto = ModelProto.FromString(model)
    proto.normalizer_spec.name = _NAME
    proto.normalizer_spec.precompiled_charsmap = _compiled(lowercase=lowercase)
    return _with_separator(proto, ModelProto.SentencePiece.CONTROL)  # it stands for no text


def without_normalization(model: bytes) -> bytes:
    """The model that `with_normalization` was given; ValueError if this is none of its models."""
    try:
        proto = ModelProto.FromString(model)
    except DecodeError as error:
        raise ValueError("it is no SentencePiece model") from error
    if proto.normalizer_spec.name != _NAME:
        raise ValueError(f"it normalises by the rules {proto.normalizer_spec.name!r:.40}")
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.precompiled_charsmap = b""
    return _with_separator(proto, ModelProto.SentencePiece.USER_DEFINED)


def _with_separator(proto: Any, kind: int) -> bytes:
    """The file of a model in which the separator of sentences is of this kind."""
    for piece in proto.pieces:
        if piece.piece == SEPARATOR:
            piece.type = kind
    written: bytes = proto.SerializeToString(deterministic=True)
    return written


@cache
def _compiled(*, lowercase: bool) -> bytes:
    """The rules in SentencePiece's own form, as its trainer compiles them."""
    lines = [
        f"{_codes(given)}\t{_codes(written)}\n"
        for given, written in sorted(_rules(lowercase=lowercase).items())
    ]
    trained = io.BytesIO()
    with TemporaryDirectory() as folder:
        file = Path(folder, "rules.tsv")
        file.write_text("".join(lines), encoding="ascii")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["any text"]),
            model_writer=trained,
            model_type="char",
            vocab_size=16,
            hard_vocab_limit=False,
            normalization_rule_tsv=str(file),
            minloglevel=2,
        )
    compiled: bytes = ModelProto.FromString(trained.getvalue()).normalizer_spec.precompiled_charsmap
    return compiled


def _rules(*, lowercase: bool) -> dict[str, str]:
    """The replacement of each character that changes, and of its decomposed forms."""
    codes = (code for code in range(_NUM_CODES) if code not in _SURROGATES)
    characters = [character for character in map(chr, codes) if character != _LINE_END]
    # Signs around each character keep a space from being removed at an end of its line.
    text = normalize(_LINE_END.join(f"|{one}|" for one in characters), lowercase=lowercase)
    rules: dict[str, str] = {}
    for character, line in zip(characters, text.split(_LINE_END), strict=True):
        written = line[1:-1]
        forms = {character, unicodedata.normalize("NFD", character)}
        halves = unicodedata.decomposition(character)
        if halves and not halves.startswith("<"):  # its first part may be composed already
            forms.add("".join(chr(int(one, 16)) for one in halves.split()))
        rules |= {form: written for form in forms if form != written}
    return rules


def _codes(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)
