"""A folder in Hugging Face form as a recipe, a model and its vocabularies."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dragoman.base.errors import CheckpointError, ConfigError
from dragoman.base.languages import parse_language
from dragoman.corpus.config import LANGUAGE, CorpusConfig, SubwordConfig
from dragoman.importing.config import read_config
from dragoman.importing.tokenizer import Languages, read_tokenizer
from dragoman.importing.weights import PICKLES, Form, checked_files, read_model
from dragoman.model.config import CONFIG_FILE
from dragoman.model.transformer import Transformer
from dragoman.model.weights_form import WEIGHTS_FILE
from dragoman.recipe.recipe import NAME, Recipe

UNKNOWN_LANGUAGE: Final = "und"
"""The code of ISO 639 for an unknown language."""
_LONGEST_CODE: Final = 35
"""The most characters of a language's code in a recipe."""


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """The model of a folder in our form.

    recipe: names no files of text, since others trained the model.
    vocabularies: the contents of source.model and target.model.
    """

    recipe: Recipe
    model: Transformer
    vocabularies: tuple[bytes, bytes]


def is_foreign(path: Path) -> bool:
    """Whether this looks like a model of another tool, valid or not."""
    return any((path / name).exists() for name in (CONFIG_FILE, WEIGHTS_FILE, *PICKLES))


def fetching(path: Path) -> str:
    """How to get the model of this name from the Hugging Face Hub; "" if it is not OWNER/NAME."""
    if len(path.parts) != 2 or path.parent.exists():  # a path, not a name
        return ""
    return f"fetch it first: hf download {path} --local-dir {path.name}"


def read_folder(folder: Path, languages: Languages) -> ImportedModel:
    """Read a folder with a MarianMT, M2M100 or NLLB model.

    No code of the folder is executed, and no pickle is read. Raises ConfigError, CheckpointError
    or, for a SentencePiece model, CorpusError that names the file and its fault if the model cannot
    be imported.
    """
    if not folder.is_dir():
        remedy = fetching(folder) or "name a folder with config.json in it"
        raise CheckpointError("is not a folder", place=folder, remedy=remedy)
    original = next(folder.glob("*.npz"), None)
    if original is not None and not (folder / CONFIG_FILE).exists():
        raise CheckpointError(
            "is a file of Marian itself, which is not read",
            place=original,
            remedy="take the model in Hugging Face form, in which OPUS-MT is published as well",
        )
    for side, code in (("source", languages.source), ("target", languages.target)):
        if code:
            parse_language(code, place=f"{side} language")
    config = read_config(folder)
    sizes = (config.source_vocab_size, config.target_vocab_size)
    form = Form(config.family, config.model, sizes)
    files = checked_files(folder, form)
    tokenizer = read_tokenizer(folder, config, languages)
    if tokenizer.target.prefix:  # a translation begins with the token of its language
        started = (*config.model.start_ids, *tokenizer.target.prefix)
        described = config.model.model_copy(update={"start_ids": started})
        form = replace(form, model=described)
    model = read_model(folder, files, form, tokenizer.orders)
    joint = tokenizer.source.pieces == tokenizer.target.pieces
    for side, code in (
        ("source language", tokenizer.languages.source),
        ("target language", tokenizer.languages.target),
    ):
        if code and not (re.fullmatch(LANGUAGE, code) and len(code) <= _LONGEST_CODE):
            raise ConfigError(
                f"{code!r:.60} is not a language code",
                place=side,
                remedy=f"name the {side} of the model, such as en",
            )
    recipe = Recipe(
        name=_name(folder),
        corpus=CorpusConfig(
            source_language=tokenizer.languages.source or UNKNOWN_LANGUAGE,
            target_language=tokenizer.languages.target or UNKNOWN_LANGUAGE,
            subword=SubwordConfig(
                kind="imported",
                vocab_size=max(16, len(tokenizer.target.pieces)),
                joint=joint,
            ),
            max_pieces=config.max_positions - 1,
        ),
        model=model.config,
        search=config.search,
    )
    source, target = (
        file.model_dump_json().encode() for file in (tokenizer.source, tokenizer.target)
    )
    return ImportedModel(recipe, model, (source, target))


def _name(folder: Path) -> str:
    """The folder's name as that of a recipe."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name)[:100].lstrip("._-")
    return name if re.match(NAME, name) else "imported"
