"""A SentencePiece model as a tokenizer of Hugging Face's `tokenizers` library."""

from __future__ import annotations

from typing import Any, Final, Literal

from dragoman.corpus.normalize import UNICODE_SPACES
from dragoman.corpus.special_ids import EOS, UNK

SPECIAL_PIECES: Final = {
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
}
_SPACE: Final = "▁"


def make_tokenizer(
    pieces: list[tuple[str, float]], *, kind: Literal["bpe", "unigram"], lowercase: bool
) -> Any:
    """The tokenizer that gives our ids for our normal form of a text, and its end of sentence.

    pieces: with their scores, in the order of their ids. Where kind is "unigram", the names of the
    special pieces in a text are taken for these pieces, which they are not with us.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    if kind == "unigram":
        model: Any = models.Unigram(pieces, unk_id=UNK, byte_fallback=False)
    else:
        vocabulary = {piece: number for number, (piece, _) in enumerate(pieces)}
        model = models.BPE(vocabulary, _merges(pieces), unk_token=pieces[UNK][0], fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = _normalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {pieces[EOS][0]}", special_tokens=[(pieces[EOS][0], EOS)]
    )
    return tokenizer


def _merges(pieces: list[tuple[str, float]]) -> list[tuple[str, str]]:
    """Pairs of pieces in the order in which SentencePiece joins them: the best-scored first."""
    known = {piece: number for number, (piece, _) in enumerate(pieces)}
    merges: list[tuple[str, str]] = []
    for piece, _ in sorted(pieces[EOS + 1 :], key=lambda entry: -entry[1]):
        splits = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        found = [(left, right) for left, right in splits if left in known and right in known]
        merges += sorted(found, key=lambda pair: (known[pair[0]], known[pair[1]]))
    return merges


def _normalizer(*, lowercase: bool) -> Any:
    """What corpus.normalize does to a line."""
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
        ]
    )
