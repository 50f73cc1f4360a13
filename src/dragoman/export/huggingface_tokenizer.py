"""A SentencePiece model as a tokenizer of Hugging Face's `tokenizers` library."""

from __future__ import annotations

from typing import Any, Final, Literal

from dragoman.corpus.normalize import UNICODE_SPACES
from dragoman.corpus.shards import EOS, UNK

SPECIAL_PIECES: Final = {
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
}
_SPACE: Final = "▁"
_NO_PIECE: Final = "\uffff"
"""No character, so that it is in no text that pieces were learnt from."""


def make_tokenizer(
    pieces: list[tuple[str, float]], *, kind: Literal["bpe", "unigram"], lowercase: bool
) -> Any:
    """The tokenizer that gives our ids for our normal form of a text, and its end of sentence.

    pieces: with their scores, in the order of their ids.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    if kind == "unigram":
        model: Any = models.Unigram(_unlikely_names(pieces), unk_id=UNK, byte_fallback=False)
    else:
        vocabulary = {piece: number for number, (piece, _) in enumerate(pieces)}
        model = models.BPE(vocabulary, _merges(pieces), unk_token=pieces[UNK][0], fuse_unk=True)
    tokenizer = Tokenizer(model)
    unknown = _unknown_in_names(pieces) if kind == "unigram" else ""
    tokenizer.normalizer = _normalizer(lowercase=lowercase, unknown=unknown)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {pieces[EOS][0]}", special_tokens=[(pieces[EOS][0], EOS)]
    )
    return tokenizer


def _unlikely_names(pieces: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """The special pieces with scores for which their names in a text are never taken for them.

    There they are characters: the most unlikely ones together are likelier. What is unknown becomes
    less likely with it, of which every way to cut a text has as much.
    """
    special, others = pieces[: EOS + 1], pieces[EOS + 1 :]
    longest = max(len(name) for name, _ in special)
    unlikely = longest * min((score for _, score in others), default=0.0) - 1.0
    return [*((name, unlikely) for name, _ in special), *others]


def _unknown_in_names(pieces: list[tuple[str, float]]) -> str:
    """Characters of the special pieces' names that are no pieces: likelier than these is a name."""
    known = {piece for piece, _ in pieces}
    letters = {letter for name, _ in pieces[: EOS + 1] for letter in name}
    return "".join(sorted(letters - known))


def _merges(pieces: list[tuple[str, float]]) -> list[tuple[str, str]]:
    """Pairs of pieces in the order in which SentencePiece joins them: the best-scored first."""
    known = {piece: number for number, (piece, _) in enumerate(pieces)}
    merges: list[tuple[str, str]] = []
    for piece, _ in sorted(pieces[EOS + 1 :], key=lambda entry: -entry[1]):
        splits = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        found = [(left, right) for left, right in splits if left in known and right in known]
        merges += sorted(found, key=lambda pair: (known[pair[0]], known[pair[1]]))
    return merges


def _normalizer(*, lowercase: bool, unknown: str) -> Any:
    """What corpus.normalize does to a line; of its unknown characters these become another one."""
    from tokenizers import Regex, normalizers

    steps = [normalizers.Lowercase()] if lowercase else []
    return normalizers.Sequence(
        [
            *steps,
            normalizers.NFC(),
            normalizers.Replace("\ufeff", ""),
            normalizers.Replace(Regex(f"[\t\r{UNICODE_SPACES}]"), " "),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Replace(Regex(r"\A | \z"), ""),  # Strip would take control characters too
            *(normalizers.Replace(letter, _NO_PIECE) for letter in unknown),
        ]
    )
