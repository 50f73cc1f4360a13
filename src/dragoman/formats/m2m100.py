"""An imported M2M100 or NLLB model, trained on or not, back in the Hugging Face form it came in.

Both are one architecture with two tokenizers: M2M100 lists its pieces, and its tokenizer knows the
languages; the pieces of NLLB follow from its SentencePiece model, and its files name the languages.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Final

from safetensors.torch import save_file
from torch import Tensor

from dragoman.corpus.imported_vocabulary import ImportedVocabulary, VocabularyFile
from dragoman.corpus.shards import EOS, PAD, UNK
from dragoman.formats.marian import (
    generation_keys,
    listed_pieces,
    own_tensors,
    refuse,
    reordered,
    shape_keys,
    write_json,
)
from dragoman.importing.tokenizer import LANGUAGE_OF_NLLB, M2M100_LANGUAGES, M2M100_MODEL
from dragoman.importing.weights import layer_weights
from dragoman.model.config import SearchConfig, length_limit
from dragoman.model.transformer import Transformer
from dragoman.recipe.recipe import Recipe

_LEAST_POSITIONS: Final = 1024
_BEGIN: Final = "<s>"
_MASK: Final = "<mask>"
_AS_IT_IS: Final = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}


def check_is_m2m100(recipe: Recipe) -> None:
    """Raises ConfigError that names the setting which M2M100 has not."""
    model = recipe.model
    refuse(
        "M2M100",
        {
            "model.norm": model.norm != "pre",
            "model.activation": model.activation == "swiglu",
            "model.attention_bias": not model.attention_bias,
            "model.positions": model.positions != "tensor2tensor",
            "model.output_bias": model.output_bias,
            "model.start_ids": len(model.start_ids) != 2 or model.start_ids[0] != EOS,
            "model.tied_embeddings": model.tied_embeddings == "decoder",
        },
    )


def write_m2m100(
    model: Transformer,
    recipe: Recipe,
    search: SearchConfig,
    vocabularies: tuple[ImportedVocabulary, ImportedVocabulary],
    directory: Path,
) -> None:
    """Write configuration, weights and tokenizer into an existing directory.

    search: with the power penalty, the only one that transformers knows; see power_search.
    Raises ConfigError if M2M100 cannot express the recipe.
    """
    check_is_m2m100(recipe)
    source, target = (one.file for one in vocabularies)
    pieces = listed_pieces(target)
    special = {
        "pad_token_id": target.their_ids[PAD],
        "bos_token_id": pieces.get(_BEGIN, 0),
        "eos_token_id": target.their_ids[EOS],
        "decoder_start_token_id": target.their_ids[EOS],
        "forced_eos_token_id": target.their_ids[EOS] if search.end_at_limit else None,
    }
    longest = recipe.corpus.max_pieces + 1
    config: dict[str, Any] = {
        "model_type": "m2m_100",
        "architectures": ["M2M100ForConditionalGeneration"],
        "is_encoder_decoder": True,
        "vocab_size": len(model.embeddings.target_matrix),
        **shape_keys(model.config),
        "scale_embedding": model.config.scaled_embeddings,
        "tie_word_embeddings": model.config.tied_embeddings == "all",
        "max_position_embeddings": max(
            _LEAST_POSITIONS, longest, length_limit(longest, search) + 1
        ),
        "dtype": "float32",
    }
    write_json(directory / "config.json", config | special)
    # A translation begins with the token of its language.
    generation = generation_keys(recipe, search, special)
    generation["forced_bos_token_id"] = target.their_ids[target.prefix[0]]
    write_json(directory / "generation_config.json", generation)
    (directory / M2M100_MODEL).write_bytes(base64.b64decode(source.encoding))
    _write_tokenizer(recipe, source, target, directory)
    weights = _weights(model, [*target.their_ids])
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def _write_tokenizer(
    recipe: Recipe, source: VocabularyFile, target: VocabularyFile, directory: Path
) -> None:
    pieces = listed_pieces(target)
    source_code, target_code = (file.pieces[file.prefix[0]] for file in (source, target))
    settings: dict[str, Any] = {
        "model_max_length": recipe.corpus.max_pieces + 1,
        "pad_token": target.pieces[PAD],
        "unk_token": target.pieces[UNK],
        "eos_token": target.pieces[EOS],
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
        write_json(directory / "vocab.json", listed)
    write_json(directory / "tokenizer_config.json", settings)


def _weights(model: Transformer, order: list[int]) -> dict[str, Tensor]:
    """All weights under their names; rows in the order of their ids."""
    embeddings = model.embeddings
    weights = dict(layer_weights(model))
    weights["model.shared.weight"] = reordered(embeddings.source_matrix, order)
    if model.config.tied_embeddings == "none":
        weights |= {
            "model.encoder.embed_tokens.weight": reordered(embeddings.source_matrix, order),
            "model.decoder.embed_tokens.weight": reordered(embeddings.target_matrix, order),
            "lm_head.weight": reordered(embeddings.output_matrix, order),
        }
    return own_tensors(weights)
