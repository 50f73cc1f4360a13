"""An imported model, trained further or not, in the Hugging Face form in which it came.

Written without transformers, with the original pieces, SentencePiece models and ids. MarianMT is
post-norm. M2M100 and NLLB are one pre-norm architecture with two tokenizers: M2M100 lists its
pieces, and its tokenizer knows the languages; the pieces of NLLB follow from its SentencePiece
model, and its files name the languages.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from dragoman.base.files import json_bytes
from dragoman.corpus.imported_vocabulary import ImportedVocabulary, VocabularyFile
from dragoman.corpus.shards import EOS, PAD, UNK
from dragoman.importing.config import GENERATION_FILE
from dragoman.importing.tokenizer import (
    LANGUAGE_OF_NLLB,
    LIST_FILE,
    M2M100_LANGUAGES,
    M2M100_MODEL,
    NOT_LISTED,
    TARGET_LIST_FILE,
    TOKENIZER_FILE,
)
from dragoman.model.config import CONFIG_FILE, ModelConfig, SearchConfig, length_limit
from dragoman.recipe.recipe import Recipe

_BEGIN: Final = "<s>"
_MASK: Final = "<mask>"
_AS_IT_IS: Final = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}


def imported_files(
    recipe: Recipe,
    search: SearchConfig,
    vocabularies: tuple[ImportedVocabulary, ImportedVocabulary],
    further: Mapping[str, Any],
) -> dict[str, bytes]:
    """Configuration and tokenizer: the files beside the weights, by name.

    search: with the power penalty, the only one that transformers knows; see power_search.
    further: keys of config.json that transformers does not know.
    """
    source, target = (one.file for one in vocabularies)
    marian = recipe.model.norm == "post"
    special: dict[str, int | None] = {
        "pad_token_id": target.their_ids[PAD],
        "eos_token_id": target.their_ids[EOS],
        "decoder_start_token_id": target.their_ids[recipe.model.start_ids[0]],
        "forced_eos_token_id": target.their_ids[EOS] if search.end_at_limit else None,
    }
    if not marian:
        special["bos_token_id"] = listed_pieces(target).get(_BEGIN, 0)
    limit = length_limit(recipe.corpus.max_pieces + 1, search)
    generation = special | {"max_length": limit + 1}
    generation |= generation_keys(search, padding=target.their_ids[PAD])
    if not marian:  # a translation begins with the token of its language
        generation["forced_bos_token_id"] = target.their_ids[target.prefix[0]]
    config = _config(recipe, search, (len(source.pieces), len(target.pieces)))
    tokenizer = _marian_tokenizer if marian else _m2m100_tokenizer
    return {
        CONFIG_FILE: json_bytes(config | special | dict(further)),
        GENERATION_FILE: json_bytes(generation),
        **tokenizer(recipe, source, target),
    }


def _config(recipe: Recipe, search: SearchConfig, sizes: tuple[int, int]) -> dict[str, Any]:
    config = recipe.model
    marian = config.norm == "post"
    longest = recipe.corpus.max_pieces + 1
    published = 512 if marian else 1024
    keys: dict[str, Any] = {
        "model_type": "marian" if marian else "m2m_100",
        "architectures": ["MarianMTModel" if marian else "M2M100ForConditionalGeneration"],
        "vocab_size": sizes[0],
        **shape_keys(config),
        **training_keys(config),
        "tie_word_embeddings": config.tied_embeddings != "none",
        "max_position_embeddings": max(published, longest, length_limit(longest, search) + 1),
    }
    if marian:
        keys |= {
            "decoder_vocab_size": sizes[1],
            "share_encoder_decoder_embeddings": config.tied_embeddings == "all",
            "static_position_embeddings": True,
            "normalize_before": False,
            "normalize_embedding": False,
        }
    return keys


def shape_keys(config: ModelConfig) -> dict[str, Any]:
    """The keys of config.json that describe a model's shape, in all architectures here."""
    return {
        "d_model": config.d_model,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_attention_heads": config.num_heads,
        "decoder_attention_heads": config.num_heads,
        "encoder_ffn_dim": config.d_ffn,
        "decoder_ffn_dim": config.d_ffn,
        "activation_function": config.activation,
        "scale_embedding": config.scaled_embeddings,
    }


def training_keys(config: ModelConfig) -> dict[str, Any]:
    """The further keys that all architectures here share, most of which a training reads."""
    return {
        "is_encoder_decoder": True,
        "use_cache": True,
        "dtype": "float32",
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "encoder_layerdrop": 0.0,  # M2M100 drops whole layers in training if nothing is said
        "decoder_layerdrop": 0.0,
    }


def generation_keys(search: SearchConfig, *, padding: int) -> dict[str, Any]:
    """The keys of generation_config.json that all architectures here share.

    padding: the id of our padding there.
    """
    keys: dict[str, Any] = {
        "num_beams": search.beam_size,
        "length_penalty": search.length_penalty_alpha,
        "early_stopping": search.early_stopping and search.beam_size > 1,
        "do_sample": False,
        # A training switches it off in config.json, and FSMT searches wrongly without it.
        "use_cache": True,
    }
    if search.never_padding:
        keys["bad_words_ids"] = [[padding]]
    if search.renormalize:
        keys["renormalize_logits"] = True
    return keys


def _marian_tokenizer(
    recipe: Recipe, source: VocabularyFile, target: VocabularyFile
) -> dict[str, bytes]:
    direction = recipe.corpus.directions[0]
    separate = source.pieces != target.pieces
    files = {f"{file.side}.spm": base64.b64decode(file.encoding) for file in (source, target)}
    files[LIST_FILE] = json_bytes(listed_pieces(source))
    if separate:
        files[TARGET_LIST_FILE] = json_bytes(listed_pieces(target))
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": direction.source,
        "target_lang": direction.target,
        "separate_vocabs": separate,
        **_common_settings(recipe, source),
        "clean_up_tokenization_spaces": target.cleaned,
    }
    return files | {TOKENIZER_FILE: json_bytes(settings)}


def _m2m100_tokenizer(
    recipe: Recipe, source: VocabularyFile, target: VocabularyFile
) -> dict[str, bytes]:
    files = {M2M100_MODEL: base64.b64decode(source.encoding)}
    pieces = listed_pieces(target)
    source_code, target_code = (file.pieces[file.prefix[0]] for file in (source, target))
    settings = {
        **_common_settings(recipe, target),
        "bos_token": _BEGIN,
        "clean_up_tokenization_spaces": target.cleaned,
    }
    if LANGUAGE_OF_NLLB.match(target_code):
        languages = [piece for piece in pieces if LANGUAGE_OF_NLLB.match(piece)]
        settings |= {
            "tokenizer_class": "NllbTokenizer",
            "src_lang": source_code,
            "tgt_lang": target_code,
            "additional_special_tokens": languages,
            "added_tokens_decoder": {
                str(pieces[piece]): {"content": piece, "special": True, **_AS_IT_IS}
                for piece in (*languages, _MASK)
                if piece in pieces
            },
        }
    else:
        # The longer list has the languages of the shorter one.
        kind = next(
            kind
            for kind, languages in M2M100_LANGUAGES.items()
            if all(f"__{one}__" in pieces for one in languages)
        )
        codes = [f"__{one}__" for one in M2M100_LANGUAGES[kind]]
        settings |= {
            "tokenizer_class": "M2M100Tokenizer",
            "src_lang": source_code.strip("_"),
            "tgt_lang": target_code.strip("_"),
            "language_codes": kind,
            "additional_special_tokens": codes,
        }
        listed = {piece: number for piece, number in pieces.items() if piece not in codes}
        files[LIST_FILE] = json_bytes(listed)
    return files | {TOKENIZER_FILE: json_bytes(settings)}


def _common_settings(recipe: Recipe, file: VocabularyFile) -> dict[str, Any]:
    return {
        "model_max_length": recipe.corpus.max_pieces + 1,
        "pad_token": file.pieces[PAD],
        "unk_token": file.pieces[UNK],
        "eos_token": file.pieces[EOS],
    }


def listed_pieces(file: VocabularyFile) -> dict[str, int]:
    """The original id of each piece that the original vocabulary names, in the order of the ids."""
    listed = {
        piece: number
        for piece, number in zip(file.pieces, file.their_ids, strict=True)
        if not piece.startswith(NOT_LISTED)
    }
    return dict(sorted(listed.items(), key=lambda entry: entry[1]))
