"""An imported model, trained further or not, in the Hugging Face form in which it came.

Written without transformers, with the original pieces, SentencePiece models and ids. MarianMT is
post-norm. M2M100 and NLLB are one pre-norm architecture with two tokenizers: M2M100 lists its
pieces, and its tokenizer knows the languages; the pieces of NLLB follow from its SentencePiece
model, and its files name the languages.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Final

from safetensors.torch import save_file

from dragoman.base.files import write_json
from dragoman.corpus.imported_vocabulary import ImportedVocabulary, VocabularyFile
from dragoman.corpus.shards import EOS, PAD, UNK
from dragoman.importing.config import CONFIG_FILE, GENERATION_FILE
from dragoman.importing.tokenizer import (
    LANGUAGE_OF_NLLB,
    LIST_FILE,
    M2M100_LANGUAGES,
    M2M100_MODEL,
    NOT_LISTED,
    TARGET_LIST_FILE,
    TOKENIZER_FILE,
)
from dragoman.importing.weights import WEIGHTS_FILE, file_weights
from dragoman.model.config import ModelConfig, SearchConfig, length_limit
from dragoman.model.transformer import Transformer
from dragoman.recipe.recipe import Recipe

_BEGIN: Final = "<s>"
_MASK: Final = "<mask>"
_AS_IT_IS: Final = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}


def write_imported(
    model: Transformer,
    recipe: Recipe,
    search: SearchConfig,
    vocabularies: tuple[ImportedVocabulary, ImportedVocabulary],
    directory: Path,
) -> None:
    """Write configuration, weights and tokenizer into an existing directory.

    search: with the power penalty, the only one that transformers knows; see power_search.
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
    generation = generation_keys(search) | {"max_length": limit + 1} | special
    if search.never_padding:
        generation["bad_words_ids"] = [[special["pad_token_id"]]]
    if search.renormalize:
        generation["renormalize_logits"] = True
    if not marian:  # a translation begins with the token of its language
        generation["forced_bos_token_id"] = target.their_ids[target.prefix[0]]
    write_json(directory / CONFIG_FILE, _config(model, recipe, search) | special)
    write_json(directory / GENERATION_FILE, generation)
    if marian:
        _write_marian_tokenizer(recipe, source, target, directory)
    else:
        _write_m2m100_tokenizer(recipe, source, target, directory)
    orders = ([*source.their_ids], [*target.their_ids])
    weights = file_weights(model, "marian" if marian else "m2m_100", orders)
    save_file(weights, directory / WEIGHTS_FILE, metadata={"format": "pt"})


def _config(model: Transformer, recipe: Recipe, search: SearchConfig) -> dict[str, Any]:
    config, embeddings = model.config, model.embeddings
    marian = config.norm == "post"
    longest = recipe.corpus.max_pieces + 1
    published = 512 if marian else 1024
    keys: dict[str, Any] = {
        "model_type": "marian" if marian else "m2m_100",
        "architectures": ["MarianMTModel" if marian else "M2M100ForConditionalGeneration"],
        "vocab_size": len(embeddings.source_matrix),
        **shape_keys(config),
        **training_keys(config),
        "tie_word_embeddings": config.tied_embeddings != "none",
        "max_position_embeddings": max(published, longest, length_limit(longest, search) + 1),
    }
    if marian:
        keys |= {
            "decoder_vocab_size": len(embeddings.target_matrix),
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


def generation_keys(search: SearchConfig) -> dict[str, Any]:
    """The keys of generation_config.json that all architectures here share."""
    return {
        "num_beams": search.beam_size,
        "length_penalty": search.length_penalty_alpha,
        "early_stopping": search.early_stopping and search.beam_size > 1,
        "do_sample": False,
        # A training switches it off in config.json, and FSMT searches wrongly without it.
        "use_cache": True,
    }


def _write_marian_tokenizer(
    recipe: Recipe, source: VocabularyFile, target: VocabularyFile, directory: Path
) -> None:
    direction = recipe.corpus.directions[0]
    separate = source.pieces != target.pieces
    for file, name in ((source, LIST_FILE), (target, TARGET_LIST_FILE))[: 2 if separate else 1]:
        write_json(directory / name, listed_pieces(file))
    for file in (source, target):
        (directory / f"{file.side}.spm").write_bytes(base64.b64decode(file.encoding))
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": direction.source,
        "target_lang": direction.target,
        "separate_vocabs": separate,
        **_common_settings(recipe, source),
        "clean_up_tokenization_spaces": target.cleaned,
    }
    write_json(directory / TOKENIZER_FILE, settings)


def _write_m2m100_tokenizer(
    recipe: Recipe, source: VocabularyFile, target: VocabularyFile, directory: Path
) -> None:
    (directory / M2M100_MODEL).write_bytes(base64.b64decode(source.encoding))
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
        write_json(directory / LIST_FILE, listed)
    write_json(directory / TOKENIZER_FILE, settings)


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
