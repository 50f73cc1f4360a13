"""A folder in Hugging Face form as our model: one of another tool, or our own export, come back.

transformers saves what it has trained without the files of ours beside it. But it keeps the recipe
in config.json, and the SentencePiece models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from dragoman.base.errors import CheckpointError, ConfigError, CorpusError
from dragoman.base.languages import closest_language
from dragoman.corpus.directions import listed
from dragoman.corpus.subword import Subword
from dragoman.formats.huggingface import RECIPE_KEY, listed_ids, read_written
from dragoman.formats.normalizing_pieces import without_normalization
from dragoman.importing.config import read_json
from dragoman.importing.folder import ImportedModel, read_folder
from dragoman.importing.tokenizer import (
    LIST_FILE,
    MARIAN_MODELS,
    TARGET_LIST_FILE,
    Languages,
    read_pieces,
)
from dragoman.model.config import CONFIG_FILE
from dragoman.recipe.recipe import Recipe

_DROPOUTS: Final = ("dropout", "attention_dropout", "activation_dropout")
_COPY: Final = "copy the lists of pieces and both .spm files from the export that was trained"


def read_model_folder(folder: Path, languages: Languages) -> ImportedModel:
    """The model of a folder in Hugging Face form.

    languages: those that a caller named; they choose among the languages of another tool's model.
    Raises ConfigError, CheckpointError or CorpusError that names the file and its fault if it
    cannot be imported, MachineError if a library is missing.
    """
    if (folder / CONFIG_FILE).is_file():
        given = read_json(folder / CONFIG_FILE).get(RECIPE_KEY)
        if given is not None:
            return _read_own(folder, given, languages)
    return read_folder(folder, languages)


def _read_own(folder: Path, given: Any, languages: Languages) -> ImportedModel:
    """Our own export; given: the recipe in its config.json."""
    place = folder / CONFIG_FILE
    config = read_json(place)
    try:
        recipe = Recipe.model_validate(given)
    except ValidationError as error:
        raise CheckpointError(
            f'"{RECIPE_KEY}" is not a recipe of this version: {error.errors()[0]["msg"]}',
            place=place,
            remedy="export the model again from its run, and train that",
        ) from error
    if recipe.corpus.subword.kind == "imported" or recipe.search.length_penalty != "power":
        raise CheckpointError(
            f'"{RECIPE_KEY}" is not one that an export writes',
            place=place,
            remedy="take the key out of the file",
        )
    directions = recipe.corpus.directions
    for side in ("source", "target"):
        code = getattr(languages, side)
        codes = [getattr(direction, side) for direction in directions]
        if code and closest_language(code, codes) is None:
            raise ConfigError(
                f"translates {listed(directions)}, and has no {side} language {code!r}",
                place=folder,
                remedy=f"leave out the {side} language",
            )
    vocabularies, (source, target) = _own_vocabularies(folder, joint=recipe.corpus.subword.joint)
    if [*source.tokens] != [*recipe.corpus.language_tokens]:
        raise CheckpointError(
            f"has the language tokens {', '.join(source.tokens) or 'of no language'}, and "
            f'"{RECIPE_KEY}" in {CONFIG_FILE} has others',
            place=folder / MARIAN_MODELS[0],
            remedy=_COPY,
        )
    dropouts = {name: config[name] for name in _DROPOUTS if name in config}
    try:
        model = type(recipe.model).model_validate(recipe.model.model_dump() | dropouts)
    except ValidationError as error:
        raise CheckpointError(
            f'"{error.errors()[0]["loc"][0]}": {error.errors()[0]["msg"]}',
            place=place,
            remedy="take the config.json that belongs to the weights",
        ) from error
    recipe = recipe.model_copy(update={"model": model})
    transformer = read_written(folder, recipe, (source, target))
    recipe = recipe.model_copy(update={"model": transformer.config})
    return ImportedModel(recipe, transformer, vocabularies)


def _own_vocabularies(
    folder: Path, *, joint: bool
) -> tuple[tuple[bytes, bytes], tuple[Subword, Subword]]:
    """The SentencePiece models of source and target, as they were in the run.

    joint: whether both have the same pieces.
    """
    source_model, target_model = (folder / name for name in MARIAN_MODELS)
    source, source_subword = _own_vocabulary(source_model, folder / LIST_FILE)
    listed = folder / (LIST_FILE if joint else TARGET_LIST_FILE)
    target, target_subword = _own_vocabulary(target_model, listed)
    return (source, target), (source_subword, target_subword)


def _own_vocabulary(file: Path, list_file: Path) -> tuple[bytes, Subword]:
    """A SentencePiece model of an export, as it was in the run.

    Raises CheckpointError if it is none of ours or the list has other pieces.
    """
    content = read_pieces(file)
    try:
        vocabulary = without_normalization(content)
        subword = Subword.parse(vocabulary, place=file)
    except (ValueError, CorpusError) as error:
        raise CheckpointError(
            f"is not that of an export of dragoman: {getattr(error, 'problem', error)}",
            place=file,
            remedy=_COPY,
        ) from error
    if read_json(list_file, limit=1 << 26) != listed_ids(subword):
        raise CheckpointError(f"has other pieces than {file.name}", place=list_file, remedy=_COPY)
    return vocabulary, subword
