"""An imported MarianMT model, trained further or not, in its original Hugging Face form.

Written without transformers, with the original pieces, SentencePiece models and ids.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor

from dragoman.base.errors import ConfigError
from dragoman.corpus.imported_vocabulary import ImportedVocabulary, VocabularyFile
from dragoman.corpus.shards import EOS, PAD, UNK
from dragoman.importing.tokenizer import NOT_LISTED
from dragoman.importing.weights import layer_weights
from dragoman.model.config import ModelConfig, SearchConfig, length_limit
from dragoman.model.transformer import Transformer
from dragoman.recipe.recipe import Recipe

_LEAST_POSITIONS: Final = 512


def check_is_marian(recipe: Recipe) -> None:
    """Raises ConfigError that names the setting which MarianMT does not have."""
    model = recipe.model
    refuse(
        "MarianMT",
        {
            "model.activation": model.activation == "swiglu",
            "model.attention_bias": not model.attention_bias,
            "model.positions": model.positions != "marian",
            "model.first_position": model.first_position != 0,
            "model.start_ids": model.start_ids not in ((PAD,), (EOS,)),
        },
    )


def refuse(architecture: str, reasons: dict[str, bool]) -> None:
    """Raises ConfigError that names the first setting which an architecture does not have."""
    for place, inexpressible in reasons.items():
        if inexpressible:
            raise ConfigError(
                f"{architecture} has nothing for this setting of the recipe",
                place=place,
                remedy="export to ctranslate2 or bundle, which take every recipe",
            )


def write_marian(
    model: Transformer,
    recipe: Recipe,
    search: SearchConfig,
    vocabularies: tuple[ImportedVocabulary, ImportedVocabulary],
    directory: Path,
) -> None:
    """Write configuration, weights and tokenizer into an existing directory.

    search: with the power penalty, the only one that transformers knows; see power_search.
    Raises ConfigError if MarianMT cannot express the recipe.
    """
    check_is_marian(recipe)
    source, target = (one.file for one in vocabularies)
    longest = recipe.corpus.max_pieces + 1
    special = {
        "pad_token_id": target.their_ids[PAD],
        "eos_token_id": target.their_ids[EOS],
        "decoder_start_token_id": target.their_ids[recipe.model.start_ids[0]],
        "forced_eos_token_id": target.their_ids[EOS] if search.end_at_limit else None,
    }
    write_json(directory / "config.json", _config(model, recipe, search) | special)
    write_json(directory / "generation_config.json", generation_keys(recipe, search, special))
    separate = source.pieces != target.pieces
    for file, name in ((source, "vocab"), (target, "target_vocab"))[: 2 if separate else 1]:
        write_json(directory / f"{name}.json", listed_pieces(file))
    for file in (source, target):
        (directory / f"{file.side}.spm").write_bytes(base64.b64decode(file.encoding))
    tokenizer = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": recipe.corpus.source_language,
        "target_lang": recipe.corpus.target_language,
        "separate_vocabs": separate,
        "model_max_length": longest,
        "pad_token": source.pieces[PAD],
        "unk_token": source.pieces[UNK],
        "eos_token": source.pieces[EOS],
        "clean_up_tokenization_spaces": target.cleaned,
    }
    write_json(directory / "tokenizer_config.json", tokenizer)
    orders = (list(source.their_ids), list(target.their_ids))
    save_file(_weights(model, orders), directory / "model.safetensors", metadata={"format": "pt"})


def listed_pieces(file: VocabularyFile) -> dict[str, int]:
    """The original id of each piece that has a name there, in the order of the ids."""
    listed = {
        piece: number
        for piece, number in zip(file.pieces, file.their_ids, strict=True)
        if not piece.startswith(NOT_LISTED)
    }
    return dict(sorted(listed.items(), key=lambda entry: entry[1]))


def generation_keys(
    recipe: Recipe, search: SearchConfig, special: dict[str, int | None]
) -> dict[str, Any]:
    """The content of generation_config.json; special: ids of tokens by their keys."""
    keys: dict[str, Any] = {
        "num_beams": search.beam_size,
        "length_penalty": search.length_penalty_alpha,
        "early_stopping": search.early_stopping and search.beam_size > 1,
        "max_length": length_limit(recipe.corpus.max_pieces + 1, search) + 1,
    }
    if search.never_padding:
        keys["bad_words_ids"] = [[special["pad_token_id"]]]
    if search.renormalize:
        keys["renormalize_logits"] = True
    return keys | special


def shape_keys(config: ModelConfig) -> dict[str, Any]:
    """The keys of config.json that every architecture here has, and calls by these names."""
    return {
        "d_model": config.d_model,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_attention_heads": config.num_heads,
        "decoder_attention_heads": config.num_heads,
        "encoder_ffn_dim": config.d_ffn,
        "decoder_ffn_dim": config.d_ffn,
        "activation_function": config.activation,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
    }


def _config(model: Transformer, recipe: Recipe, search: SearchConfig) -> dict[str, Any]:
    config = model.config
    longest = recipe.corpus.max_pieces + 1
    return {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "is_encoder_decoder": True,
        "vocab_size": len(model.embeddings.source_matrix),
        "decoder_vocab_size": len(model.embeddings.target_matrix),
        **shape_keys(config),
        "scale_embedding": config.scaled_embeddings,
        "share_encoder_decoder_embeddings": config.tied_embeddings == "all",
        "tie_word_embeddings": config.tied_embeddings != "none",
        "max_position_embeddings": max(
            _LEAST_POSITIONS, longest, length_limit(longest, search) + 1
        ),
        "static_position_embeddings": True,
        "normalize_before": False,
        "normalize_embedding": False,
        "dtype": "float32",
    }


def _weights(model: Transformer, orders: tuple[list[int], list[int]]) -> dict[str, Tensor]:
    """All weights under their names; rows in the order of their ids."""

    embeddings = model.embeddings
    source, target = orders
    bias = torch.zeros(len(embeddings.target_matrix))
    if embeddings.output_bias is not None:
        bias = embeddings.output_bias.detach().cpu()
    weights = dict(layer_weights(model))
    weights["final_logits_bias"] = reordered(bias, target)[None]
    tied = model.config.tied_embeddings
    if tied == "all":
        weights["model.shared.weight"] = reordered(embeddings.source_matrix, source)
    else:
        matrices = {
            "model.encoder.embed_tokens.weight": (embeddings.source_matrix, source),
            "model.decoder.embed_tokens.weight": (embeddings.target_matrix, target),
        }
        if tied == "none":
            matrices["lm_head.weight"] = (embeddings.output_matrix, target)
        for name, (matrix, order) in matrices.items():
            weights[name] = reordered(matrix, order)
    return own_tensors(weights)


def reordered(rows: Tensor, order: list[int]) -> Tensor:
    """Rows in the order of their ids; order: their id of each of our ids."""
    rows = rows.detach().cpu()
    there = torch.empty_like(rows)
    there[torch.tensor(order)] = rows
    return there


def own_tensors(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies in fp32: slices of one matrix of ours are tensors of their own there."""
    return {name: weight.detach().float().cpu().clone() for name, weight in weights.items()}


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write an object into a file as JSON."""
    path.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
