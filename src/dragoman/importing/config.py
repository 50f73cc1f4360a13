"""config.json of transformers -> the sections of a recipe; keys without a counterpart are refused.

A missing key has the default of transformers' class, since older versions wrote only the keys that
differ from it. Keys that do not change the output of a model are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from dragoman.base.errors import CheckpointError, ConfigError
from dragoman.base.files import read_regular
from dragoman.corpus.shards import EOS, PAD
from dragoman.model.config import CONFIG_FILE, ModelConfig, SearchConfig

GENERATION_FILE: Final = "generation_config.json"
_LONGEST_BYTES: Final = 1 << 22
_REFUSED: Final = "such a model cannot be imported; take one without it"
_CORRECT: Final = "take the config.json that belongs to the weights"
_ARCHITECTURES: Final = ("MarianMTModel", "M2M100ForConditionalGeneration")
_ACTIVATIONS: Final[dict[str, Literal["relu", "gelu", "silu"]]] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "silu": "silu",
    "swish": "silu",
}
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "marian": {
        "vocab_size": 58101, "max_position_embeddings": 1024, "encoder_layers": 12,
        "encoder_ffn_dim": 4096, "encoder_attention_heads": 16, "decoder_layers": 12,
        "decoder_ffn_dim": 4096, "decoder_attention_heads": 16, "activation_function": "gelu",
        "d_model": 1024, "dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0,
        "decoder_start_token_id": 58100, "scale_embedding": False, "pad_token_id": 58100,
        "eos_token_id": 0, "forced_eos_token_id": 0, "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
    },
    "m2m_100": {
        "vocab_size": 128112, "max_position_embeddings": 1024, "encoder_layers": 12,
        "encoder_ffn_dim": 4096, "encoder_attention_heads": 16, "decoder_layers": 12,
        "decoder_ffn_dim": 4096, "decoder_attention_heads": 16, "activation_function": "relu",
        "d_model": 1024, "dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.0,
        "decoder_start_token_id": 2, "scale_embedding": True, "pad_token_id": 1,
        "bos_token_id": 0, "eos_token_id": 2, "tie_word_embeddings": True,
    },
}  # fmt: skip
"""Defaults of MarianConfig and M2M100Config, the same in all versions of transformers."""
_FIXED: Final[dict[str, dict[str, Any]]] = {
    "marian": {
        "is_encoder_decoder": True, "is_decoder": False, "normalize_before": False,
        "normalize_embedding": False, "static_position_embeddings": True,
        "add_final_layer_norm": False, "extra_pos_embeddings": None, "add_bias_logits": None,
    },
    "m2m_100": {
        "is_encoder_decoder": True, "is_decoder": False, "normalize_before": True,
        "normalize_embedding": False, "add_final_layer_norm": True,
        "share_encoder_decoder_embeddings": True,
    },
}  # fmt: skip
"""Keys that may have only this value, if they are there; None: any value, since it is not used."""
_UNCHANGED_SEARCH: Final[dict[str, tuple[Any, ...]]] = {
    "do_sample": (False,), "num_beam_groups": (1,), "diversity_penalty": (0.0,),
    "repetition_penalty": (1.0,), "encoder_repetition_penalty": (1.0,),
    "no_repeat_ngram_size": (0,), "encoder_no_repeat_ngram_size": (0,), "min_length": (0, 1),
    "min_new_tokens": (0,), "suppress_tokens": ([],), "begin_suppress_tokens": ([],),
    "force_words_ids": (), "constraints": (), "sequence_bias": (), "penalty_alpha": (),
    "exponential_decay_length_penalty": (), "remove_invalid_values": (False,),
    "guidance_scale": (1.0,), "watermarking_config": (), "stop_strings": (), "max_time": (),
}  # fmt: skip
"""Keys of generation that our search lacks, with the values that switch them off, as null does.
Ours forbids repeated n-grams before the probabilities are normalised, transformers afterwards. A
key that is not here, of a newer transformers, is ignored."""


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """The original model's ids of padding, end of sentence and start of decoding."""

    padding: int
    end: int
    start: int


@dataclass(frozen=True, slots=True)
class ImportedConfig:
    """The configuration of a folder in Hugging Face form.

    model: its start_ids are our ids, without the token of a target language.
    max_positions: tokens of the longest sentence, its end included.
    forced_begin: the original id of the first piece of every translation; None if it is free.
    """

    family: Literal["marian", "m2m_100"]
    model: ModelConfig
    search: SearchConfig
    special: SpecialIds
    source_vocab_size: int
    target_vocab_size: int
    max_positions: int
    forced_begin: int | None


def read_json(path: Path, *, limit: int = _LONGEST_BYTES) -> dict[str, Any]:
    """The object in a file of JSON; raises CheckpointError if the file is missing or holds none."""
    try:
        values = json.loads(read_regular(path, limit=limit))
    except FileNotFoundError as error:
        raise CheckpointError(
            "is missing", place=path, remedy="copy all files of the model into this folder"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"cannot be read as JSON: {getattr(error, 'strerror', None) or error}",
            place=path,
            remedy="copy the file again",
        ) from error
    if not isinstance(values, dict):
        raise CheckpointError("is not a JSON object", place=path, remedy="copy the file again")
    return values


def read_config(folder: Path) -> ImportedConfig:
    """The model that a folder's configuration describes.

    Raises ConfigError that names a key and its value if our model has no counterpart of them,
    CheckpointError if config.json is missing or a file is not JSON.
    """
    path = folder / CONFIG_FILE
    values = read_json(path)
    family = values.get("model_type")
    if family not in [*_DEFAULTS]:  # a list has no hash
        raise ConfigError(
            f'"model_type" is {_shown(family)}, not "marian" or "m2m_100"',
            place=path,
            remedy="MarianMT (OPUS-MT), M2M100 and NLLB models can be imported, no others",
        )
    keys = _Keys(path, _DEFAULTS[family] | values)
    names = keys.values.get("architectures") or []
    if not isinstance(names, list) or any(name not in _ARCHITECTURES for name in names):
        raise keys.refused(
            "architectures",
            remedy="import a MarianMTModel or an M2M100ForConditionalGeneration",
        )
    for name, only in _FIXED[family].items():
        if name in values and only is not None and values[name] not in (only, None):
            raise keys.refused(name)
    if values.get("quantization_config") is not None:
        raise keys.refused("quantization_config", remedy="take the weights in floats")
    special = SpecialIds(
        padding=keys.number("pad_token_id", most=999_999),
        end=keys.number("eos_token_id"),
        start=keys.number("decoder_start_token_id"),
    )
    generation = _generation(folder, keys.values)
    model = _model(family, keys, special)
    _check_ids(generation, special)
    shared = family == "m2m_100" or keys.flag("share_encoder_decoder_embeddings")
    vocab_size = keys.number("vocab_size", least=EOS + 1, most=10_000_000)
    target_vocab_size = vocab_size
    if not shared and keys.values.get("decoder_vocab_size") is not None:
        target_vocab_size = keys.number("decoder_vocab_size", least=EOS + 1, most=10_000_000)
    elif keys.values.get("decoder_vocab_size") not in (None, vocab_size):
        raise keys.refused(
            "decoder_vocab_size",
            why=f'but "vocab_size" is {vocab_size}, and encoder and decoder share their embeddings',
            remedy=_CORRECT,
        )
    max_positions = keys.number("max_position_embeddings", least=2, most=1_000_000)
    return ImportedConfig(
        family=family,
        model=model,
        search=_search(generation, special, max_positions),
        special=special,
        source_vocab_size=vocab_size,
        target_vocab_size=target_vocab_size,
        max_positions=max_positions,
        forced_begin=_forced_begin(family, generation),
    )


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys of a file, with defaults for missing keys.

    Its methods raise ConfigError that names a key whose value is of the wrong kind.
    """

    path: Path
    values: Mapping[str, Any]

    def refused(self, name: str, *, remedy: str = _REFUSED, why: str = "") -> ConfigError:
        """The error for this key."""
        problem = f'"{name}" is {_shown(self.values.get(name))}'
        return ConfigError(f"{problem}, {why}" if why else problem, place=self.path, remedy=remedy)

    def number(self, name: str, *, least: int = 0, most: int = 10_000_000) -> int:
        """A whole number within bounds."""
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            why = f"not a whole number from {least} to {most:,}"
            raise self.refused(name, why=why, remedy=_CORRECT)
        return value

    def flag(self, name: str) -> bool:
        """The boolean value of a key."""
        value = self.values.get(name)
        if not isinstance(value, bool):
            raise self.refused(name, why="neither true nor false", remedy=_CORRECT)
        return value

    def share(self, name: str) -> float:
        """A probability below 1."""
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise self.refused(name, why="not a number from 0 to below 1", remedy=_CORRECT)
        return float(value)

    def same(self, name: str, other: str, *, least: int, most: int) -> int:
        """A number that must be the same for encoder and decoder."""
        value = self.number(name, least=least, most=most)
        if self.number(other, least=least, most=most) != value:
            raise self.refused(
                other, why=f'but "{name}" is {value}, and dragoman has one number for both'
            )
        return value


def _model(family: str, keys: _Keys, special: SpecialIds) -> ModelConfig:
    activation = keys.values["activation_function"]
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise keys.refused(
            "activation_function", why=f"not one of {', '.join(sorted(_ACTIVATIONS))}"
        )
    marian = family == "marian"
    if marian and special.start not in (special.padding, special.end):
        raise keys.refused(
            "decoder_start_token_id", why="neither the padding nor the end of sentence"
        )
    if not marian and special.start != special.end:
        raise keys.refused("decoder_start_token_id", why="not the end of sentence")
    shared = not marian or keys.flag("share_encoder_decoder_embeddings")
    tied: Literal["all", "decoder", "none"] = "all" if shared else "decoder"
    most = 1 << 20
    d_model = keys.number("d_model", least=2, most=most)
    heads = keys.same("encoder_attention_heads", "decoder_attention_heads", least=1, most=most)
    if d_model % heads or d_model % 2:
        raise keys.refused("d_model", why=f"odd, or no multiple of {heads} heads", remedy=_CORRECT)
    return ModelConfig(
        d_model=d_model,
        num_heads=heads,
        d_ffn=keys.same("encoder_ffn_dim", "decoder_ffn_dim", least=1, most=most),
        encoder_layers=keys.number("encoder_layers", least=1, most=10_000),
        decoder_layers=keys.number("decoder_layers", least=1, most=10_000),
        norm="post" if marian else "pre",
        activation=_ACTIVATIONS[activation],
        tied_embeddings=tied if keys.flag("tie_word_embeddings") else "none",
        positions="marian" if marian else "tensor2tensor",
        first_position=0 if marian else special.padding + 1,
        scaled_embeddings=keys.flag("scale_embedding"),
        start_ids=(PAD if special.start == special.padding else EOS,),
        dropout=keys.share("dropout"),
        attention_dropout=keys.share("attention_dropout"),
        activation_dropout=keys.share("activation_dropout"),
    )


def _generation(folder: Path, config: Mapping[str, Any]) -> _Keys:
    """The keys of generation_config.json; in older folders, which lack it, those of config.json."""
    path = folder / GENERATION_FILE
    if path.exists():
        return _Keys(path, read_json(path))
    return _Keys(folder / CONFIG_FILE, config)


def _check_ids(generation: _Keys, special: SpecialIds) -> None:
    """Raises ConfigError if a search would begin or end with ids that are not the model's."""
    for name, number in (
        ("decoder_start_token_id", special.start),
        ("eos_token_id", special.end),
        ("pad_token_id", special.padding),
    ):
        if generation.values.get(name) not in (None, number, [number]):
            raise generation.refused(
                name, why=f"and config.json has {number}", remedy="write the same into both files"
            )


def _forced_begin(family: str, found: _Keys) -> int | None:
    if found.values.get("forced_bos_token_id") is None:
        return None
    if family == "marian":
        raise found.refused("forced_bos_token_id", why="which no MarianMT model needs")
    return found.number("forced_bos_token_id")


def _search(generation: _Keys, special: SpecialIds, max_positions: int) -> SearchConfig:
    """Our search with the same results; beam size 4 if the folder names none."""
    values = generation.values
    for name, harmless in _UNCHANGED_SEARCH.items():
        value = values.get(name)
        if value is not None and value not in harmless:
            raise generation.refused(
                name,
                why="which our search does not do, or not in that way",
                remedy="take the key out of the file",
            )
    for name in ("early_stopping", "renormalize_logits"):
        if not isinstance(values.get(name), bool | None):
            raise generation.refused(name, why="neither true nor false")
    banned = values.get("bad_words_ids")
    if banned is not None and banned != [[special.padding]]:
        raise generation.refused(
            "bad_words_ids", why="not padding alone", remedy="take the key out of the file"
        )
    forced = values.get("forced_eos_token_id")
    if forced not in (None, special.end):
        raise generation.refused("forced_eos_token_id", why="not the end of sentence")
    penalty = values.get("length_penalty")
    penalty = 1.0 if penalty is None else penalty
    if not isinstance(penalty, int | float) or not 0 <= penalty <= 5:
        raise generation.refused("length_penalty", why="not a number from 0 to 5")
    longest = max_positions
    if values.get("max_new_tokens") is not None:  # it overrides max_length, and excludes the start
        longest = generation.number("max_new_tokens", least=1, most=1_000_000) + 1
    # transformers writes 20 if no limit was set: no model is meant for so few tokens.
    elif values.get("max_length") not in (None, 20):
        longest = generation.number("max_length", least=2, most=1_000_000)
    beam_size = values.get("num_beams")
    if beam_size is None:
        beam_size = 4
    if type(beam_size) is not int or not 1 <= beam_size <= 1000:
        raise generation.refused("num_beams", why="not a whole number from 1 to 1000")
    return SearchConfig(
        beam_size=beam_size,
        length_penalty="power",
        length_penalty_alpha=float(penalty),
        max_length_ratio=0.0,
        max_length_extra=longest - 1,
        never_padding=banned is not None or special.start == special.padding,
        renormalize=values.get("renormalize_logits") is True,
        early_stopping=values.get("early_stopping") is True,
        end_at_limit=forced is not None,
    )


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
