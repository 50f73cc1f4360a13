"""SentencePiece models and lists of pieces -> a file of our vocabulary for each side."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from dragoman.base.errors import CheckpointError, ConfigError, CorpusError
from dragoman.base.languages import closest_language
from dragoman.corpus.imported_vocabulary import VocabularyFile, sentencepiece_model
from dragoman.corpus.shards import EOS, PAD, UNK
from dragoman.corpus.subword import read_vocabulary
from dragoman.importing.config import ImportedConfig, read_json

NOT_LISTED: Final = "<not listed "
"""The beginning of the made-up pieces for ids without a listed piece."""
TOKENIZER_FILE: Final = "tokenizer_config.json"
_LONGEST_LIST: Final = 1 << 26
"""Bytes of a list of pieces: room for a million."""
_BEGIN: Final = 2
"""The one id up to EOS whose special piece, the beginning of a sentence, not every model has."""
LANGUAGE_OF_NLLB: Final = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}\Z")
_MOST_DIGITS: Final = 20
"""The digits of an id that are read: enough for any vocabulary; Python refuses thousands."""
_HALF_CHARACTER: Final = re.compile("[\ud800-\udfff]")
LIST_FILE: Final = "vocab.json"
TARGET_LIST_FILE: Final = "target_vocab.json"
MARIAN_MODELS: Final = ("source.spm", "target.spm")
M2M100_LANGUAGES: Final = {
    "m2m100": [
        "af", "am", "ar", "ast", "az", "ba", "be", "bg", "bn", "br", "bs", "ca", "ceb", "cs",
        "cy", "da", "de", "el", "en", "es", "et", "fa", "ff", "fi", "fr", "fy", "ga", "gd", "gl",
        "gu", "ha", "he", "hi", "hr", "ht", "hu", "hy", "id", "ig", "ilo", "is", "it", "ja", "jv",
        "ka", "kk", "km", "kn", "ko", "lb", "lg", "ln", "lo", "lt", "lv", "mg", "mk", "ml", "mn",
        "mr", "ms", "my", "ne", "nl", "no", "ns", "oc", "or", "pa", "pl", "ps", "pt", "ro", "ru",
        "sd", "si", "sk", "sl", "so", "sq", "sr", "ss", "su", "sv", "sw", "ta", "th", "tl", "tn",
        "tr", "uk", "ur", "uz", "vi", "wo", "xh", "yi", "yo", "zh", "zu",
    ],
    "wmt21": [
        "en", "ha", "is", "ja", "cs", "ru", "zh", "de",
    ],
}  # fmt: skip
"""Languages of M2M100 in the order of their ids, which follow those of the listed pieces."""
_CLASSES: Final = {
    "marian": ("MarianTokenizer",),
    "m2m_100": ("M2M100Tokenizer", "NllbTokenizer"),
}
M2M100_MODEL: Final = "sentencepiece.bpe.model"
_LEAST_LISTED: Final = 0.5
"""The least share of the pieces of a SentencePiece model that the list of pieces must have."""
_COPY: Final = "copy all files of the model into this folder"


@dataclass(frozen=True, slots=True)
class Languages:
    """Languages that a caller named; "" if left out."""

    source: str = ""
    target: str = ""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The vocabularies of both sides, and the languages if they are known."""

    source: VocabularyFile
    target: VocabularyFile
    languages: Languages

    @property
    def orders(self) -> tuple[list[int], list[int]]:
        """The original id of each of our ids: for the source, and for the target."""
        return [*self.source.their_ids], [*self.target.their_ids]


def read_tokenizer(folder: Path, config: ImportedConfig, languages: Languages) -> Tokenizer:
    """The tokenizer of a folder.

    Raises CheckpointError if a file is missing or does not belong to the configuration,
    CorpusError if a SentencePiece model cannot be read, ConfigError if the tokenizer does what ours
    cannot, or does not know a language.
    """
    path = folder / TOKENIZER_FILE
    settings = read_json(path, limit=_LONGEST_LIST) if path.exists() else {}
    if settings.get("sp_model_kwargs"):
        raise ConfigError(
            '"sp_model_kwargs" is not empty: SentencePiece would cut a text in random ways',
            place=path,
            remedy="take the key out of the file",
        )
    kind = settings.get("tokenizer_class")
    if isinstance(kind, str) and kind.removesuffix("Fast") not in _CLASSES[config.family]:
        raise ConfigError(
            f'"tokenizer_class" is {kind!r:.60}, not {" or ".join(_CLASSES[config.family])}',
            place=path,
            remedy="such a tokenizer cannot be imported",
        )
    if config.family == "m2m_100":
        return _read_m2m100(folder, config, languages, settings)
    return _read_marian(folder, config, languages, settings)


def _read_m2m100(
    folder: Path, config: ImportedConfig, languages: Languages, settings: Mapping[str, Any]
) -> Tokenizer:
    """The tokenizer of M2M100, or of NLLB, whose list of pieces follows from SentencePiece's."""
    model = folder / M2M100_MODEL
    if not model.exists():
        raise CheckpointError(
            "is missing",
            place=model,
            remedy=f"{_COPY}, or take it from the model that this one was trained from",
        )
    content = read_pieces(model)
    processor = sentencepiece_model(content, place=model)
    if settings.get("legacy_behaviour") is True:
        raise ConfigError(
            '"legacy_behaviour" is true: the language token would come after the text, which '
            "dragoman does not support",
            place=folder / TOKENIZER_FILE,
            remedy="take the key out of the file if the model was trained without it",
        )
    if (folder / LIST_FILE).exists():
        listed = _read_list(folder / LIST_FILE, config.source_vocab_size)
        _check_pieces(processor, listed, place=model)
        kind = settings.get("language_codes") or "m2m100"
        if not isinstance(kind, str) or kind not in M2M100_LANGUAGES:
            raise ConfigError(
                f'"language_codes" is {kind!r:.60}, not "m2m100" or "wmt21"',
                place=folder / TOKENIZER_FILE,
                remedy="such a tokenizer cannot be imported",
            )
        codes = {language: f"__{language}__" for language in M2M100_LANGUAGES[kind]}
        known = listed | {code: len(listed) + number for number, code in enumerate(codes.values())}
    else:
        known, codes = _nllb_list(folder, settings, processor)
    for piece, number in known.items():
        if number >= config.source_vocab_size:
            raise CheckpointError(
                f"{piece!r} would have the id {number}, and the model has ids up to "
                f"{config.source_vocab_size - 1}",
                place=folder / TOKENIZER_FILE,
                remedy=f'check "language_codes" there, and {_COPY}',
            )
    chosen = Languages(
        languages.source or _language(settings, "src_lang"),
        languages.target or _language(settings, "tgt_lang"),
    )
    chosen = Languages(
        closest_language(chosen.source, codes) or chosen.source,
        closest_language(chosen.target, codes) or chosen.target,
    )
    for name, language in (("source", chosen.source), ("target", chosen.target)):
        if language not in codes:
            said = f"has no language {language!r}" if language else "has several languages"
            raise ConfigError(
                f"{said}: {_some(sorted(codes))}",
                place=folder,
                remedy=f"name one as the {name} language, with dragoman import",
            )
    forced = config.forced_begin
    if forced not in (None, known[codes[chosen.target]]):
        raise ConfigError(
            f'"forced_bos_token_id" is {forced}, and {chosen.target} has the id '
            f"{known[codes[chosen.target]]}",
            place=folder,
            remedy="name that one as the target language, or take the key out of the file",
        )
    names = _special_names(settings)
    _check_added(folder, settings, {*names.values(), *codes.values(), "<s>", "<mask>"})
    order, pieces = _order(known, config.source_vocab_size, config, names, place=folder)
    ids = {piece: one for one, piece in enumerate(pieces)}
    begin = _content(settings.get("bos_token")) or "<s>"
    special = {*_special_ids(ids, settings), *(ids[code] for code in codes.values())}
    special |= {ids[begin]} if begin in ids else set()

    def vocabulary(side: Literal["source", "target"], language: str) -> VocabularyFile:
        return VocabularyFile(
            kind="m2m_100",
            side=side,
            pieces=tuple(pieces),
            their_ids=tuple(order),
            prefix=(ids[codes[language]],),
            special=tuple(sorted(special)),
            encoding=_packed(content),
            cleaned=settings.get("clean_up_tokenization_spaces") is True,
        )

    return Tokenizer(
        vocabulary("source", chosen.source), vocabulary("target", chosen.target), chosen
    )


def _nllb_list(
    folder: Path, settings: Mapping[str, Any], processor: Any
) -> tuple[dict[str, int], dict[str, str]]:
    """Pieces with their ids, as fairseq numbers them, and the piece of each language.

    Raises CheckpointError if a file is missing or contradicts the SentencePiece model.
    """
    fast = _read_if_there(folder / "tokenizer.json")
    fairseq = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [processor.id_to_piece(number) for number in range(processor.get_piece_size())]
    names = [*fairseq, *(piece for piece in pieces if piece not in fairseq)]
    known = {name: number for number, name in enumerate(names)}
    numbers = _added_tokens(settings, fast)
    listed = [
        _content(one)
        for values in (settings, _read_if_there(folder / "special_tokens_map.json"))
        for key in ("additional_special_tokens", "extra_special_tokens")
        if isinstance(found := values.get(key), list)
        for one in found
    ]
    languages = [one for one in dict.fromkeys([*listed, *numbers]) if LANGUAGE_OF_NLLB.match(one)]
    if not languages and "M2M100" in str(settings.get("tokenizer_class")):
        raise CheckpointError("is missing", place=folder / LIST_FILE, remedy=_COPY)
    if not languages:
        raise CheckpointError(
            "names no languages in additional_special_tokens",
            place=folder / TOKENIZER_FILE,
            remedy=_COPY,
        )
    if any(name not in numbers for name in languages):
        raise CheckpointError(
            "is missing, and no other file says which ids the languages have",
            place=folder / "tokenizer.json",
            remedy=_COPY,
        )
    _check_list_of(fast, known | numbers, place=folder / "tokenizer.json")
    known = numbers | known
    if len(set(known.values())) < len(known) or any(
        known[name] != number for name, number in numbers.items()
    ):
        raise CheckpointError(
            "gives pieces ids that differ from those in the SentencePiece model",
            place=folder / TOKENIZER_FILE,
            remedy="copy the list and the SentencePiece model from the same model",
        )
    return known, {name: name for name in languages}


def _check_list_of(fast: Mapping[str, Any], known: Mapping[str, int], *, place: Path) -> None:
    """Raises CheckpointError if tokenizer.json gives a piece another id than SentencePiece does.

    transformers reads tokenizer.json alone, so the SentencePiece model may be of another model.
    """
    model = fast.get("model")
    listed = model.get("vocab") if isinstance(model, dict) else None
    for piece, number in listed.items() if isinstance(listed, dict) else ():
        if known.get(piece, number) != number:
            raise CheckpointError(
                f"gives {piece!r:.60} the id {number!r:.20}, and {M2M100_MODEL} the id "
                f"{known[piece]}",
                place=place,
                remedy="copy the list and the SentencePiece model from the same model",
            )


def _added_tokens(settings: Mapping[str, Any], fast: Mapping[str, Any]) -> dict[str, int]:
    """Added pieces with their ids, from tokenizer_config.json and tokenizer.json."""
    entries = settings.get("added_tokens_decoder")
    numbered = [*entries.items()] if isinstance(entries, dict) else []
    added = fast.get("added_tokens")
    for one in added if isinstance(added, list) else []:
        if isinstance(one, dict):
            numbered.append((one.get("id"), one))
    return {
        _content(one): int(str(number)[:_MOST_DIGITS])
        for number, one in numbered
        if str(number).isdecimal()
    }


def _check_added(folder: Path, settings: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises ConfigError if pieces were added that SentencePiece itself never gives."""
    added = _added_tokens(settings, _read_if_there(folder / "tokenizer.json"))
    added |= _read_if_there(folder / "added_tokens.json")
    for name in added:
        if name not in known and not _is_code(name):
            raise ConfigError(
                f"has the added token {name!r}, which SentencePiece would cut into pieces",
                place=folder,
                remedy="such a tokenizer cannot be imported",
            )


def read_pieces(path: Path) -> bytes:
    """The bytes of a SentencePiece model; raises CorpusError if they cannot be read."""
    try:
        return read_vocabulary(path)
    except CorpusError as error:
        raise CorpusError(error.problem, place=path, remedy="copy the file again") from error


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_json(path, limit=_LONGEST_LIST) if path.exists() else {}


def _read_marian(
    folder: Path, config: ImportedConfig, languages: Languages, settings: Mapping[str, Any]
) -> Tokenizer:
    separate = bool(settings.get("separate_vocabs")) or (folder / TARGET_LIST_FILE).exists()
    lists = [_read_list(folder / LIST_FILE, config.source_vocab_size)]
    if separate:
        lists.append(_read_list(folder / TARGET_LIST_FILE, config.target_vocab_size))
    elif config.source_vocab_size != config.target_vocab_size:
        raise CheckpointError(
            f"is missing, and the target's vocabulary has {config.target_vocab_size:,} ids, the "
            f"source's {config.source_vocab_size:,}",
            place=folder / TARGET_LIST_FILE,
            remedy=_COPY,
        )
    if separate and config.model.tied_embeddings == "all":
        raise CheckpointError(
            "there are two vocabularies, but both sides share the embeddings",
            place=folder / TARGET_LIST_FILE,
            remedy="copy the list and the SentencePiece model from the same model",
        )
    for name in MARIAN_MODELS:
        if not (folder / name).exists():
            raise CheckpointError("is missing", place=folder / name, remedy=_COPY)
    models = [read_pieces(folder / name) for name in MARIAN_MODELS]
    for name, model, listed in zip(MARIAN_MODELS, models, [lists[0], lists[-1]], strict=True):
        processor = sentencepiece_model(model, place=folder / name)
        _check_pieces(processor, listed, place=folder / name)
    prefix: list[str] = []
    codes = not separate and any(_is_code(piece) for piece in lists[0])
    if codes and languages.target:
        prefix = [_target_code(lists[0], languages.target, place=folder / LIST_FILE)]
    names = _special_names(settings)
    _check_added(folder, settings, {*names.values(), "<s>", "<mask>"})
    sides = []
    for number, side in enumerate(("source", "target")):
        listed = lists[min(number, len(lists) - 1)]
        size = (config.source_vocab_size, config.target_vocab_size)[number]
        order, pieces = _order(listed, size, config, names, place=folder)
        ids = {piece: one for one, piece in enumerate(pieces)}
        sides.append(
            VocabularyFile(
                kind="marian",
                side="source" if side == "source" else "target",
                pieces=tuple(pieces),
                their_ids=tuple(order),
                prefix=tuple(ids[piece] for piece in prefix) if side == "source" else (),
                codes=codes and side == "source",
                special=_special_ids(ids, settings),
                encoding=_packed(models[number]),
                # transformers joins pieces of either side with the source's model.
                decoding="" if separate or side == "source" else _packed(models[0]),
                cleaned=settings.get("clean_up_tokenization_spaces") is True,
            )
        )
    known = Languages(
        languages.source or _as_code(_language(settings, "source_lang")),
        languages.target or _as_code(_language(settings, "target_lang")),
    )
    return Tokenizer(sides[0], sides[1], known)


def _check_pieces(processor: Any, listed: Mapping[str, int], *, place: Path) -> None:
    """Raises CheckpointError if a SentencePiece model and the list are of different vocabularies.

    Published lists leave a few pieces out. Lists of other models share only the shortest pieces.
    """
    numbers = range(processor.get_piece_size())
    known = [processor.id_to_piece(number) in listed for number in numbers]
    if sum(known) < _LEAST_LISTED * len(known):
        raise CheckpointError(
            f"the list of pieces has only {sum(known):,} of its {len(known):,} pieces",
            place=place,
            remedy="copy the list and the SentencePiece model from the same model",
        )


def _read_list(path: Path, vocab_size: int) -> dict[str, int]:
    """Pieces with their ids; raises CheckpointError if one is invalid or an id is given twice."""
    listed = read_json(path, limit=_LONGEST_LIST)
    taken: dict[int, str] = {}
    for piece, number in listed.items():
        if _HALF_CHARACTER.search(piece):
            raise CheckpointError(
                f"has the piece {piece!r}, which holds a lone surrogate",
                place=path,
                remedy="take the vocabulary file that belongs to the model",
            )
        if type(number) is not int or not 0 <= number < vocab_size:
            raise CheckpointError(
                f"gives {piece!r} the id {number!r}, and the model has ids from 0 to "
                f"{vocab_size - 1}",
                place=path,
                remedy="take the vocabulary file that belongs to the model",
            )
        if number in taken:
            raise CheckpointError(
                f"gives {piece!r} and {taken[number]!r} the same id {number}",
                place=path,
                remedy="take the vocabulary file that belongs to the model",
            )
        taken[number] = piece
    return listed


def _order(
    listed: Mapping[str, int],
    size: int,
    config: ImportedConfig,
    names: Mapping[str, str],
    *,
    place: Path,
) -> tuple[list[int], list[str]]:
    """The original id of each of our ids, and the piece of each, made up if it is not listed.

    Raises CheckpointError if the list contradicts config.json or lacks a special piece.
    """
    pieces = {number: piece for piece, number in listed.items()}
    for piece in listed:
        if piece.startswith(NOT_LISTED):
            raise CheckpointError(
                f"has the piece {piece!r}, a name that dragoman gives to rows without a piece",
                place=place,
                remedy="take the vocabulary file that belongs to the model",
            )
    wanted = {"pad": config.special.padding, "eos": config.special.end}
    for kind, number in wanted.items():
        found = listed.get(names[kind])
        if found != number:
            raise CheckpointError(
                f"the {kind} token {names[kind]!r} has the id {found} in the list of pieces and "
                f"{number} in config.json",
                place=place,
                remedy="copy the list and the SentencePiece model from the same model",
            )
    unknown = listed.get(names["unk"])
    if unknown is None:
        raise CheckpointError(
            f"the list of pieces has no {names['unk']!r}",
            place=place,
            remedy="take the vocabulary file that belongs to the model",
        )
    first = {PAD: config.special.padding, UNK: unknown, EOS: config.special.end}
    if len(set(first.values())) < len(first):
        raise CheckpointError(
            "padding, unknown and end of sentence need three different ids, and have "
            f"{config.special.padding}, {unknown} and {config.special.end}",
            place=place,
            remedy="compare pad_token_id and eos_token_id in config.json with the list of pieces; "
            "a model that gives one id to two of them cannot be imported",
        )
    others = iter(number for number in range(size) if number not in first.values())
    first[_BEGIN] = next(others)
    order = [first[number] for number in sorted(first)] + [*others]
    return order, [pieces.get(number, f"{NOT_LISTED}{number}>") for number in order]


def _special_names(settings: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the special pieces, by their kind: pad, eos, unk."""
    defaults = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
    return {
        kind: _content(settings.get(f"{kind}_token")) or name for kind, name in defaults.items()
    }


def _special_ids(ids: Mapping[str, int], settings: Mapping[str, Any]) -> tuple[int, ...]:
    """Our ids that transformers leaves out of a text: special pieces, some of which were added."""
    added: list[Any] = []
    for key in ("additional_special_tokens", "extra_special_tokens"):
        value = settings.get(key)
        added += value if isinstance(value, list) else []
    entries = settings.get("added_tokens_decoder")
    for entry in entries.values() if isinstance(entries, dict) else ():
        if isinstance(entry, dict) and entry.get("special") is True:
            added.append(entry)
    names = {_content(entry) for entry in added}
    return tuple(sorted({PAD, UNK, EOS} | {ids[name] for name in names if name in ids}))


def _content(value: Any) -> str:
    """A piece that is written as text or as an object with the text in it; "" if it is neither."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _is_code(piece: str) -> bool:
    return piece.startswith(">>") and piece.endswith("<<")


def _target_code(listed: Iterable[str], language: str, *, place: Path) -> str:
    """The piece of a language's code, such as >>fra<<; raises ConfigError if it is not listed."""
    known = sorted(piece for piece in listed if _is_code(piece))
    names = [piece.removeprefix(">>").removesuffix("<<") for piece in known]
    name = closest_language(language, names)
    code = f">>{name or language}<<"
    if name is None:
        raise ConfigError(
            f"has no {code}; it has {_some(known)}",
            place=place,
            remedy=f"name one of them as the target language, such as {names[0]}",
        )
    return code


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"


def _language(settings: Mapping[str, Any], key: str) -> str:
    value = settings.get(key)
    if value is not None and not isinstance(value, str):
        raise ConfigError(
            f'"{key}" is {value!r:.60}, not the code of a language',
            place=TOKENIZER_FILE,
            remedy="take the key out of the file",
        )
    return value or ""


def _as_code(name: str) -> str:
    """The name of several languages in one code: cat+oci+spa becomes cat_oci_spa."""
    return name.replace("+", "_")


def _packed(model: bytes) -> str:
    return base64.b64encode(model).decode("ascii")
