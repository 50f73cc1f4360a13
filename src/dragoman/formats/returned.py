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
from dragoman.formats.huggingface import (
    RECIPE_KEY,
    check_expressible,
    family_of,
    listed_ids,
    row_order,
)
from dragoman.formats.normalizing_pieces import without_normalization
from dragoman.importing.config import CONFIG_FILE, read_json
from dragoman.importing.folder import ImportedModel, read_folder
from dragoman.importing.tokenizer import LIST_FILE, MARIAN_MODELS, Languages, read_pieces
from dragoman.importing.weights import Form, checked_files, read_model
from dragoman.recipe.recipe import Recipe

_DROPOUTS: Final = ("dropout", "attention_dropout", "activation_dropout")
_COPY: Final = "copy vocab.json and both .spm files from the export that was trained"


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
    if recipe.corpus.subword.kind == "imported":
        raise CheckpointError(
            f'"{RECIPE_KEY}" is that of a model of another tool',
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
    vocabulary, subword = _own_vocabulary(folder)
    if [*subword.tokens] != [*recipe.corpus.language_tokens]:
        raise CheckpointError(
            f"has the language tokens {', '.join(subword.tokens) or 'of no language'}, and "
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
    check_expressible(recipe)
    order = row_order(model, subword.vocab_size)
    form = Form(family_of(model), model, (len(order), len(order)))
    transformer = read_model(folder, checked_files(folder, form), form, (order, order))
    recipe = recipe.model_copy(update={"model": transformer.config})
    return ImportedModel(recipe, transformer, (vocabulary, vocabulary))


def _own_vocabulary(folder: Path) -> tuple[bytes, Subword]:
    """The SentencePiece model of an export, as it was in the run.

    Raises CheckpointError if a file is missing or none of ours, or the three do not belong
    together.
    """
    place = folder / MARIAN_MODELS[0]
    source, target = (read_pieces(folder / name) for name in MARIAN_MODELS)
    try:
        vocabulary = without_normalization(source)
        subword = Subword.parse(vocabulary, place=place)
    except (ValueError, CorpusError) as error:
        raise CheckpointError(
            f"is not that of an export of dragoman: {getattr(error, 'problem', error)}",
            place=place,
            remedy=_COPY,
        ) from error
    if source != target or read_json(folder / LIST_FILE, limit=1 << 26) != listed_ids(subword):
        raise CheckpointError(
            f"has other pieces than {' and '.join(MARIAN_MODELS)}, or these differ",
            place=folder / LIST_FILE,
            remedy=_COPY,
        )
    return vocabulary, subword
