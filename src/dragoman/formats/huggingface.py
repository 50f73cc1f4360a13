"""A folder in Hugging Face form with our model in it, written and read without transformers.

transformers loads it without any code of ours. Pre-norm with one shared matrix is Pegasus up to
names, post-norm is FSMT. Models that neither can express are refused. Every key is written whose
default would change a translation or a training, since defaults differ between architectures and
between versions of transformers.

Pegasus reads its positions from the file, so that every program that reads the file has ours; the
positions of M2M100, the same architecture otherwise, begin elsewhere in CTranslate2's converter.
That converter begins translations of Pegasus with the padding, as its training did. So padding
there is our beginning of a sentence. FSMT begins its positions at 1 if PAD is 0, as we do.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import torch
from safetensors.torch import save_file

from dragoman.base.errors import CheckpointError, ConfigError, MachineError
from dragoman.base.files import write_json
from dragoman.corpus.directions import Direction
from dragoman.corpus.imported_vocabulary import ImportedVocabulary
from dragoman.corpus.shards import BOS, EOS, PAD
from dragoman.corpus.stand_ins import SEPARATOR
from dragoman.corpus.subword import Subword
from dragoman.corpus.vocabulary import Vocabulary, parse_vocabulary
from dragoman.formats.imported_form import (
    generation_keys,
    shape_keys,
    training_keys,
    write_imported,
)
from dragoman.formats.normalizing_pieces import with_normalization
from dragoman.importing.config import CONFIG_FILE, GENERATION_FILE, read_json
from dragoman.importing.tokenizer import (
    LIST_FILE,
    MARIAN_MODELS,
    TARGET_LIST_FILE,
    TOKENIZER_FILE,
)
from dragoman.importing.weights import (
    WEIGHTS_FILE,
    Form,
    Orders,
    checked_files,
    file_weights,
    read_model,
)
from dragoman.model.config import ModelConfig, SearchConfig, length_limit
from dragoman.model.transformer import Transformer
from dragoman.recipe.recipe import Recipe

RECIPE_KEY: Final = "dragoman_recipe"
"""The key of config.json with our recipe, which transformers keeps through every training."""
_LEAST_POSITIONS: Final = 1024


def write_folder(
    model: Transformer,
    recipe: Recipe,
    search: SearchConfig,
    vocabularies: tuple[bytes, bytes],
    directory: Path,
) -> None:
    """Write configuration, weights and tokenizer into an existing directory; an imported model gets
    the architecture in which it came.

    search: with the power penalty, the only one that transformers knows; see power_search.
    vocabularies: the files of source and target.
    Raises ConfigError if transformers has no such architecture.
    """
    check_expressible(recipe)
    assert search.length_penalty == "power"
    source, target = (parse_vocabulary(one, place=directory) for one in vocabularies)
    if isinstance(source, ImportedVocabulary) and isinstance(target, ImportedVocabulary):
        write_imported(model, recipe, search, (source, target), directory)
        return
    longest = recipe.corpus.max_pieces + 1
    limit = length_limit(longest, search)
    known = {key: getattr(search, key) for key in ("length_penalty", "length_penalty_alpha")}
    back = recipe.model_copy(update={"search": recipe.search.model_copy(update=known)})
    write_model(
        model,
        directory,
        direction=recipe.corpus.directions[0],
        positions=max(longest, limit + 1),
        further={RECIPE_KEY: back.model_dump(mode="json")},
    )
    generation = generation_keys(search) | _special_ids(model.config)
    generation["max_new_tokens"] = limit
    write_json(directory / GENERATION_FILE, generation)
    write_tokenizer(vocabularies, recipe, directory)


def read_written(
    directory: Path, recipe: Recipe, vocabularies: tuple[Vocabulary, Vocabulary]
) -> Transformer:
    """The model of a folder that `write_folder` filled, or transformers after a training.

    Recipe and files may come from a stranger. Raises CheckpointError if they contradict each other,
    ConfigError if such a folder has no such model.
    """
    check_expressible(recipe)
    form, orders = _form(recipe.model, vocabularies)
    padding = PAD if form.family in ("marian", "m2m_100") else _padding(recipe.model)
    expected = shape_keys(recipe.model) | {
        "pad_token_id": orders[1][padding],
        "eos_token_id": orders[1][EOS],
    }
    config = read_json(directory / CONFIG_FILE)
    for key, value in expected.items():
        if config.get(key) != value:
            raise CheckpointError(
                f'"{key}" is {config.get(key)!r:.60}, and the recipe has {value!r}',
                place=directory / CONFIG_FILE,
                remedy="take both from the same export, or if an earlier version wrote it, export "
                "the run again",
            )
    return read_model(directory, checked_files(directory, form), form, orders)


def _form(config: ModelConfig, vocabularies: tuple[Vocabulary, Vocabulary]) -> tuple[Form, Orders]:
    """The architecture of a model in its folder, and the id there of each of our ids."""
    source, target = vocabularies
    sizes = source.vocab_size, target.vocab_size
    if isinstance(source, ImportedVocabulary) and isinstance(target, ImportedVocabulary):
        family: Literal["m2m_100", "marian"] = "m2m_100" if config.norm == "pre" else "marian"
        return Form(family, config, sizes), (source.file.their_ids, target.file.their_ids)
    return Form(family_of(config), config, sizes), (range(sizes[0]), range(sizes[1]))


def write_tokenizer(vocabularies: tuple[bytes, bytes], recipe: Recipe, directory: Path) -> None:
    """Write the files of MarianMT's tokenizer; its SentencePiece models normalise a text as we do.

    It knows the tokens of the target languages by themselves, and the separator of sentences, which
    stands for no text.
    """
    joint = recipe.corpus.subword.joint
    source, target = (Subword.parse(one, place=directory) for one in vocabularies)
    for name, vocabulary in zip(MARIAN_MODELS, vocabularies, strict=True):
        model = with_normalization(vocabulary, lowercase=recipe.corpus.lowercase)
        (directory / name).write_bytes(model)
    listed = listed_ids(source)
    write_json(directory / LIST_FILE, listed)
    if not joint:
        write_json(directory / TARGET_LIST_FILE, listed_ids(target))
    special = [piece for piece in (*source.tokens, SEPARATOR) if piece in listed]
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": not joint,
        "model_max_length": recipe.corpus.max_pieces + 1,
        "pad_token": source.pieces([_padding(recipe.model)])[0],
        "additional_special_tokens": special,
        "clean_up_tokenization_spaces": False,
    }
    write_json(directory / TOKENIZER_FILE, settings)


def listed_ids(subword: Subword) -> dict[str, int]:
    """The id of each piece."""
    return {piece: number for number, piece in enumerate(subword.all_pieces())}


def write_model(
    model: Transformer,
    directory: Path,
    *,
    direction: Direction,
    positions: int = _LEAST_POSITIONS,
    further: Mapping[str, Any] | None = None,
) -> None:
    """Write config.json and the weights of a model into an existing directory.

    positions: the length of the table of positions, at least 1024 in any case.
    further: keys of config.json that transformers does not know.
    """
    num_positions = max(_LEAST_POSITIONS, positions)
    config = _config(model, direction) | {"max_position_embeddings": num_positions}
    write_json(directory / CONFIG_FILE, config | dict(further or {}))
    family, embeddings = family_of(model.config), model.embeddings
    orders = range(len(embeddings.source_matrix)), range(len(embeddings.target_matrix))
    weights = file_weights(model, family, orders, num_positions=num_positions)
    save_file(weights, directory / WEIGHTS_FILE, metadata={"format": "pt"})


def _special_ids(config: ModelConfig) -> dict[str, int | None]:
    return {
        "pad_token_id": _padding(config),
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_bos_token_id": None,
        "forced_eos_token_id": None,
    }


def _config(model: Transformer, direction: Direction) -> dict[str, Any]:
    """Every key of config.json that transformers reads but the length of the table of positions."""
    config, embeddings = model.config, model.embeddings
    pre = config.norm == "pre"
    architecture = "Pegasus" if pre else "FSMT"
    keys: dict[str, Any] = {
        "model_type": architecture.lower(),
        "architectures": [f"{architecture}ForConditionalGeneration"],
        **shape_keys(config),
        **training_keys(config),
        "tie_word_embeddings": config.tied_embeddings == "all",
        **_special_ids(config),
    }
    if pre:  # CTranslate2's converter reads what transformers takes for granted
        norms = {"normalize_before": True, "normalize_embedding": False}
        return keys | norms | {"vocab_size": len(embeddings.target_matrix)}
    return keys | {
        "src_vocab_size": len(embeddings.source_matrix),
        "tgt_vocab_size": len(embeddings.target_matrix),
        "langs": [*direction],
    }


def _padding(config: ModelConfig) -> int:
    """The id that fills a row there; Pegasus begins a translation with it."""
    return BOS if config.norm == "pre" else PAD


def family_of(config: ModelConfig) -> Literal["pegasus", "fsmt"]:
    """The architecture of transformers that has our models of this norm."""
    return "pegasus" if config.norm == "pre" else "fsmt"


def check_expressible(recipe: Recipe) -> None:
    """Raises ConfigError that names the setting for which transformers has no architecture."""
    model, corpus = recipe.model, recipe.corpus
    reasons = {"model.activation": model.activation == "swiglu"}
    if corpus.subword.kind != "imported":  # such models have the shape in which they came
        # With two lists of pieces, MarianTokenizer confuses those that are no text.
        has_special = bool(corpus.language_tokens) or corpus.context.sentences > 1
        reasons |= {
            "model.tied_embeddings": model.norm == "pre" and model.tied_embeddings != "all",
            "corpus.subword.joint": has_special and not corpus.subword.joint,
            "model.positions": model.positions != "tensor2tensor",
            "model.first_position": model.first_position != 1,
            "model.scaled_embeddings": not model.scaled_embeddings,
            "model.output_bias": model.norm == "post" and model.output_bias,
            "model.start_ids": model.start_ids != (BOS,),
        }
    for place, inexpressible in reasons.items():
        if inexpressible:
            raise ConfigError(
                "transformers cannot represent this setting of the recipe",
                place=place,
                remedy="export to ctranslate2, which takes every recipe",
            )


def translate_with_huggingface(
    directory: Path, texts: list[str], search: SearchConfig
) -> list[str]:
    """Translations by the export, loaded with transformers' Auto classes.

    Sentences of equal length form a batch, with the length limit of our own search.
    """
    with _silent_transformers() as transformers:
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(directory)
        model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(directory).eval()
    model.generation_config.max_length = None  # transformers would print which limit counts
    rows_by_length: dict[int, list[int]] = {}
    ids: list[list[int]] = tokenizer(texts)["input_ids"]
    for row, source in enumerate(ids):
        rows_by_length.setdefault(len(source), []).append(row)
    translations = [""] * len(texts)
    for length, rows in rows_by_length.items():
        inputs = torch.tensor([ids[row] for row in rows])
        limit = length_limit(length - 1, search)
        with torch.inference_mode():
            found = model.generate(
                inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=limit
            )
        decoded = tokenizer.batch_decode(found, skip_special_tokens=True)
        for row, text in zip(rows, decoded, strict=True):
            translations[row] = text
    return translations


@contextmanager
def _silent_transformers() -> Iterator[Any]:
    """The library; inside the block it shows no progress bars and no advice, such as to install a
    package that is not needed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import transformers
        except ImportError as error:
            raise MachineError(
                f"transformers is installed, but cannot be loaded: {error}",
                remedy="install it again: pip install 'dragoman[huggingface]'; or remove it",
            ) from error

        settings: Any = transformers.utils.logging
        was_shown = settings.is_progress_bar_enabled()
        settings.disable_progress_bar()
        try:
            yield transformers
        finally:
            if was_shown:
                settings.enable_progress_bar()
