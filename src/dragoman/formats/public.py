"""The parts of a run's records that leave with an export: only those listed here.

A recipe also contains the addresses of tracking servers, with passwords in them, and the places of
files. An export has the keys that are needed to understand the model, to translate with it and to
train it further. A key that is not listed stays out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath, PureWindowsPath
from typing import Any, Final

from dragoman.corpus.augment import AugmentConfig
from dragoman.corpus.config import TEXT_FORMATS, CorpusConfig, TextFiles
from dragoman.corpus.manifest import Manifest
from dragoman.recipe.recipe import Recipe
from dragoman.training.schedule import SCHEDULES

CORPUS: Final = {
    "source_language", "target_language", "temperature", "language_token",
    "train", "valid", "test", "valid_pairs", "test_pairs", "lowercase",
    "filters.max_words", "filters.max_length_ratio",
    "filters.max_control_characters", "filters.drop_identical", "filters.drop_duplicates",
    "filters.drop_near_duplicates", "filters.drop_overlap", "filters.max_number_differences",
    "filters.drop_other_ending", "filters.max_language_log_odds", "filters.min_lexical_gain",
    *(f"augment.{kind}" for kind in AugmentConfig.model_fields),
    "context.sentences",
    "subword.kind", "subword.vocab_size", "subword.joint",
    "subword.character_coverage", "subword.byte_fallback", "subword.sample_sentences",
    "max_pieces", "too_long", "seed",
}  # fmt: skip
"""Keys of the corpus section; files of text keep their names alone, without folders."""
RECIPE: Final = {
    "name",
    *(f"corpus.{key}" for key in CORPUS),
    "data.batch_tokens", "data.batch_sentences", "data.accumulate", "data.length_groups",
    "data.bucket", "data.pool_pairs", "data.length_multiple",
    "data.subword_sampling", "data.share",
    "model.d_model", "model.num_heads", "model.d_ffn", "model.encoder_layers",
    "model.decoder_layers", "model.norm", "model.activation", "model.tied_embeddings",
    "model.attention_bias", "model.positions", "model.first_position", "model.scaled_embeddings",
    "model.output_bias", "model.start_ids", "model.dropout", "model.attention_dropout",
    "model.activation_dropout", "model.label_smoothing",
    "schedule.kind", "schedule.peak_learning_rate", "schedule.warmup_steps",
    "schedule.total_steps", "schedule.decay_steps", "schedule.final_ratio", "schedule.noam_scale",
    "optimizer.kind", "optimizer.beta1", "optimizer.beta2", "optimizer.epsilon",
    "optimizer.weight_decay", "optimizer.clip_norm",
    "train.max_steps", "train.precision", "train.seed", "train.ema_decay", "train.freeze",
    "train.patience", "train.stop_metric",
    "search.beam_size", "search.candidates", "search.length_penalty", "search.length_penalty_alpha",
    "search.max_length_ratio", "search.max_length_extra", "search.batch_tokens",
    "search.never_padding", "search.renormalize", "search.early_stopping",
    "search.end_at_limit", "search.no_repeat_ngram_size",
}  # fmt: skip
"""Keys of a recipe."""


def public_recipe(recipe: Recipe) -> Recipe:
    """The recipe with the listed keys as they are and all others at their defaults."""
    corpus = public_corpus(recipe.corpus)
    allowed = _only(recipe.model_dump(exclude={"corpus"}), RECIPE)
    if recipe.schedule.kind not in SCHEDULES.ours:  # whoever opens the export may not have it
        del allowed["schedule"]
    return Recipe.model_validate({**allowed, "corpus": corpus})


def public_corpus(corpus: CorpusConfig) -> CorpusConfig:
    """The corpus section with the listed keys alone."""
    values = _only(corpus.model_dump(), CORPUS)
    for split in ("train", "valid", "test"):
        values[split] = tuple(_named(entry) for entry in getattr(corpus, split))
    return CorpusConfig.model_validate(values)


def public_manifest(manifest: Manifest) -> Manifest:
    """The manifest of a corpus, without folders and without times of this machine's files."""
    config = public_corpus(manifest.config)
    entries = (*config.train, *config.valid, *config.test)
    data_sets = {entry.mtdata or entry.set or (entry.hf and entry.hub_name) for entry in entries}
    data_sets -= {""}
    sources = []
    for source in manifest.sources:
        name, data_set = _file_name(source.name), source.name.rpartition("/")[0]
        if data_set in data_sets:
            name = f"{data_set}/{name}"
        sources.append(source.model_copy(update={"name": name, "mtime_ns": 0}))
    return manifest.model_copy(update={"config": config, "sources": tuple(sources)})


def _only(values: Mapping[str, Any], allowed: set[str], prefix: str = "") -> dict[str, Any]:
    """The allowed keys, by their dotted names, at any depth of sections."""
    kept: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if name in allowed:
            kept[key] = value
        elif isinstance(value, Mapping) and (inner := _only(value, allowed, f"{name}.")):
            kept[key] = inner
    return kept


def _named(entry: TextFiles) -> TextFiles:
    """An entry of text without the folders of its files; the id of a public data set stays."""
    files = ("source", "target", "tsv", *TEXT_FORMATS, "mtdata")
    ids = ("set", "hf", "config", "split")
    others = ("tag", "reverse", "source_language", "target_language")
    return TextFiles.model_validate(
        {key: _file_name(getattr(entry, key)) for key in files}
        | {key: getattr(entry, key) for key in (*ids, *others)}
    )


def _file_name(name: str) -> str:
    return PurePath(PureWindowsPath(name).as_posix()).name
