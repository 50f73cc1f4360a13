"""Our SentencePiece vocabulary as a tokenizer of transformers, and back.

`make_tokenizer` writes all that SentencePiece and our normalisation do into `tokenizer.json`.
`read_tokenizer_json` reads such a file again, whoever saved it last: it makes the tokenizer of the
pieces that it finds and compares, so that a tokenizer that does anything else is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from dragoman.base.errors import CheckpointError, MachineError
from dragoman.corpus import stand_ins
from dragoman.corpus.config import is_tag
from dragoman.corpus.normalize import INVISIBLE, UNICODE_SPACES
from dragoman.corpus.shards import BOS, EOS, PAD, UNK
from dragoman.formats.normalizing_pieces import ModelProto
from dragoman.importing.config import read_json

TOKENIZER_JSON: Final = "tokenizer.json"
SPECIAL_PIECES: Final = {
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
}
_SPACE: Final = "▁"
_NO_PIECE: Final = "\uffff"
"""Not a character of Unicode, so that it is in no text that pieces were learnt from."""
_LONGEST_BYTES: Final = 1 << 28
_COMPARED: Final = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model")
"""The parts of tokenizer.json that decide how a text is cut; others are of its last call."""


def write_tokenizer(
    transformers: Any,
    pieces: list[tuple[str, float]],
    directory: Path,
    *,
    longest: int,
    kind: Literal["bpe", "unigram"],
    lowercase: bool,
    tokens: Sequence[str],
    tags: Sequence[str],
) -> None:
    """Write the files of a tokenizer for transformers; see `make_tokenizer`.

    longest: the longest source in tokens, with its end.
    """
    tokenizer = make_tokenizer(pieces, kind=kind, lowercase=lowercase, tokens=tokens, tags=tags)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **SPECIAL_PIECES,
        model_max_length=longest,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
    ).save_pretrained(directory)
    # Versions of transformers before 5 know the class by its older name only, and give the models
    # token types, which these do not take, if nothing says what they take.
    file = directory / "tokenizer_config.json"
    file.write_text(
        json.dumps(
            json.loads(file.read_bytes())
            | {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_input_names": ["input_ids", "attention_mask"],
            },
            indent=1,
        ),
        encoding="utf-8",
    )


def read_tokenizer_json(path: Path, *, kind: Literal["bpe", "unigram"], lowercase: bool) -> bytes:
    """The SentencePiece model behind a tokenizer.json that `make_tokenizer` once made.

    kind, lowercase: of the recipe that belongs to it.
    Raises CheckpointError if the file is missing, or cuts text in another way than a tokenizer of
    ours, MachineError if the library that compares them is not installed.
    """
    written = read_json(path, limit=_LONGEST_BYTES)
    try:
        pieces, tokens, tags = _pieces(written, kind)
        own = json.loads(
            make_tokenizer(
                pieces, kind=kind, lowercase=lowercase, tokens=tokens, tags=tags
            ).to_str()
        )
        problem = next((part for part in _COMPARED if written.get(part) != own[part]), "")
    except ImportError as error:
        raise MachineError(
            "tokenizers is not installed",
            remedy="install it: pip install 'dragoman[huggingface]'",
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        problem = f"list of pieces ({error})"
    if problem:
        raise CheckpointError(
            f"its {problem} is not that of an export of dragoman",
            place=path,
            remedy="copy tokenizer.json and tokenizer_config.json from the export that was trained",
        )
    return _sentencepiece(pieces, kind=kind, tokens=tokens, tags=tags)


def _pieces(
    written: Mapping[str, Any], kind: Literal["bpe", "unigram"]
) -> tuple[list[tuple[str, float]], list[str], list[str]]:
    """Pieces with SentencePiece's scores in the order of their ids, language tokens, and tags.

    Raises ValueError, or what Python raises for values of other types, if the file has others.
    """
    listed = written["model"]["vocab"]
    if kind == "bpe":
        names = sorted(listed, key=listed.__getitem__)
        if [listed[name] for name in names] != [*range(len(names))]:
            raise ValueError("ids are missing")
    else:
        names = [name for name, _ in listed]
    special = [*SPECIAL_PIECES.values()]
    if [names[number] for number in (PAD, UNK, BOS, EOS)] != special:
        raise ValueError("the special pieces have other ids")
    added = sorted(
        (entry for entry in written["added_tokens"] if entry["content"] not in special),
        key=lambda entry: int(entry["id"]),
    )
    first = EOS + 1
    if [entry["content"] for entry in added] != names[first : first + len(added)]:
        raise ValueError("tokens were added")
    tokens = [entry["content"] for entry in added if not entry["normalized"]]
    tags = [entry["content"] for entry in added if entry["normalized"]]
    added_names = [*tokens, *tags]
    if not all(is_tag(name) or name in stand_ins.ALL for name in added_names) or (
        added_names != [entry["content"] for entry in added]
    ):
        raise ValueError("tokens were added")
    first += len(added)
    if kind == "bpe":  # SentencePiece numbers its pieces in the order in which it joins them
        learnt = [(name, -float(rank)) for rank, name in enumerate(names[first:])]
    else:
        learnt = [(name, float(score)) for name, score in listed[first:]]
    return [*((name, 0.0) for name in names[:first]), *learnt], tokens, tags


def _sentencepiece(
    pieces: Sequence[tuple[str, float]],
    *,
    kind: Literal["bpe", "unigram"],
    tokens: Sequence[str],
    tags: Sequence[str],
) -> bytes:
    """The file of a SentencePiece model of these pieces, as `train_on_words` makes them."""
    proto = ModelProto()
    types, spec = proto.SentencePiece, proto.trainer_spec
    spec.model_type = spec.BPE if kind == "bpe" else spec.UNIGRAM
    spec.vocab_size = len(pieces)
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = PAD, UNK, BOS, EOS
    spec.control_symbols.extend(tokens)
    spec.user_defined_symbols.extend(tags)
    proto.normalizer_spec.name = "identity"
    for number, (piece, score) in enumerate(pieces):
        entry = proto.pieces.add()
        entry.piece, entry.score = piece, score
        if number == UNK:
            entry.type = types.UNKNOWN
        elif number <= EOS or piece in tokens:
            entry.type = types.CONTROL
        elif piece in tags and number <= EOS + len(tokens) + len(tags):
            entry.type = types.USER_DEFINED
    written: bytes = proto.SerializeToString(deterministic=True)
    return written


def make_tokenizer(
    pieces: list[tuple[str, float]],
    *,
    kind: Literal["bpe", "unigram"],
    lowercase: bool,
    tokens: Sequence[str] = (),
    tags: Sequence[str] = (),
) -> Any:
    """The tokenizer that normalises a text as we do, and gives our ids and the end of sentence.

    pieces: with their scores, in the order of their ids. tokens: the language tokens among them.
    tags: words among them at which text is cut. As with us, a text that is a tag alone has no piece
    for a space before it.
    Lower-casing goes by characters: a capital sigma at the end of a word becomes the sigma of the
    middle of a word.
    """
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
    )

    known = {piece: number for number, (piece, _) in enumerate(pieces)}
    num_special = EOS + 1 + len(tokens)
    special, others = pieces[:num_special], pieces[num_special + len(tags) :]
    unknown: set[str] = set()
    if kind == "unigram":
        # The names of special pieces in a text are not such pieces but characters: even the most
        # unlikely ones together must be likelier than the name. An unknown piece becomes less
        # likely as well, but every way to cut a text has as many of them. Characters of the names
        # that are not pieces would be less likely than the name: they become another character.
        longest = max(len(name) for name, _ in special)
        unlikely = longest * min((score for _, score in others), default=0.0) - 1.0
        given = ((name, unlikely) for name, _ in pieces[: num_special + len(tags)])
        scored = [*given, *others]
        model: Any = models.Unigram(scored, unk_id=UNK, byte_fallback=False)
        unknown = {letter for name, _ in special for letter in name} - set(known)
    else:
        # Pairs of pieces in the order in which SentencePiece joins them: the best-scored first.
        merges: list[tuple[str, str]] = []
        for piece, _ in sorted(others, key=lambda entry: -entry[1]):
            splits = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
            found = [(left, right) for left, right in splits if left in known and right in known]
            merges += sorted(found, key=lambda pair: (known[pair[0]], known[pair[1]]))
        model = models.BPE(known, merges, unk_token=pieces[UNK][0], fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(  # as corpus.normalize
        [
            *([normalizers.Lowercase()] if lowercase else []),
            normalizers.Replace(Regex(f"[{INVISIBLE}]"), ""),  # first: one may part a letter
            normalizers.NFC(),
            normalizers.Replace(Regex(f"[\t\r{UNICODE_SPACES}]"), " "),
            normalizers.Prepend(" "),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Replace(Regex(r" \z"), ""),  # Strip would take control characters too
            # The tokenizer also normalises the tags that it looks for in a text.
            *(normalizers.Replace(Regex(rf"\A (?={re.escape(tag)}\z)"), "") for tag in tags),
            *(
                normalizers.Replace(Regex(_outside(tags, letter)), _NO_PIECE)
                for letter in sorted(unknown)
            ),
        ]
    )
    # The space before a text is there already; the text after a tag begins with none of its own.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {pieces[EOS][0]}", special_tokens=[(pieces[EOS][0], EOS)]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in tokens])
    tokenizer.add_tokens(
        [AddedToken(tag, normalized=True, special=tag == stand_ins.SEPARATOR) for tag in tags]
    )
    return tokenizer


def _outside(tags: Sequence[str], letter: str) -> str:
    """A regular expression for a letter wherever it is no part of a tag."""
    inside = [
        (f"(?<={re.escape(tag[:place])})" if place else "") + re.escape(tag[place:])
        for tag in tags
        for place, one in enumerate(tag)
        if one == letter
    ]
    return (f"(?!{'|'.join(inside)})" if inside else "") + re.escape(letter)
