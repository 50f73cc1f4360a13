"""A folder in Hugging Face form with our model in it, written and read without transformers.

transformers loads it without any code of ours. Pre-norm with one shared matrix is Pegasus up to
names, post-norm is FSMT. Models that neither can express are refused. Every key is written whose
default would change a translation or a training, since defaults differ between architectures and
between versions of transformers.

Pegasus reads its positions from the file, so that every program that reads the file has ours; the
positions of M2M100, the same architecture otherwise, begin elsewhere in CTranslate2's converter.
That converter begins translations of Pegasus with the padding, as its training did. So padding
there is our beginning of a sentence. FSMT begins its positions at 1 if PAD is 0, as we do, and
gives padding none: a translation that has padding in it, which no trained model writes, goes on
differently there, unless the search never chooses padding.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import torch
from safetensors.torch import save_file

from dragoman.base.errors import CheckpointError, ConfigError, MachineError
from dragoman.base.files import json_bytes
from dragoman.corpus.directions import Direction
from dragoman.corpus.imported_vocabulary import ImportedVocabulary
from dragoman.corpus.shards import BOS, EOS, PAD
from dragoman.corpus.stand_ins import SEPARATOR
from dragoman.corpus.subword import VOCABULARIES, Subword
from dragoman.corpus.vocabulary import Vocabulary, parse_vocabulary
from dragoman.formats.imported_form import (
    generation_keys,
    imported_files,
    shape_keys,
    training_keys,
)
from dragoman.formats.normalizing_pieces import with_normalization
from dragoman.importing.config import GENERATION_FILE, read_json
from dragoman.importing.tokenizer import (
    LIST_FILE,
    MARIAN_MODELS,
    TARGET_LIST_FILE,
    TOKENIZER_FILE,
)
from dragoman.importing.weights import Form, checked_files, read_model
from dragoman.model.config import (
    CONFIG_FILE,
    ModelConfig,
    SearchConfig,
    length_limit,
    power_search,
)
from dragoman.model.transformer import Transformer
from dragoman.model.weights_form import WEIGHTS_FILE, WeightsForm
from dragoman.recipe.recipe import Recipe

RECIPE_KEY: Final = "dragoman_recipe"
"""The key of config.json with our recipe, which transformers keeps through every training."""
_LEAST_POSITIONS: Final = 1024


def write_folder(
    model: Transformer,
    recipe: Recipe,
    mean_target_tokens: float,
    vocabularies: tuple[bytes, bytes],
    directory: Path,
    *,
    written: Path | None = None,
) -> None:
    """Write configuration, weights and tokenizer into an existing directory, as training does.

    The model must have passed `check_expressible`.
    vocabularies: the files of source and target. mean_target_tokens: see `folder_files`.
    written: a folder that has these very weights in this form: a checkpoint, or an imported model.
    """
    for name, content in folder_files(recipe, mean_target_tokens, vocabularies).items():
        (directory / name).write_bytes(content)
    if written is not None and _num_positions_in(written) == _num_positions_in(directory):
        shutil.copyfile(written / WEIGHTS_FILE, directory / WEIGHTS_FILE)
        return
    source, target = (parse_vocabulary(one, place=directory) for one in vocabularies)
    weights = form_of(recipe, (source, target)).to_file(dict(model.named_parameters()))
    save_file(weights, directory / WEIGHTS_FILE, metadata={"format": "pt"})


def folder_files(
    recipe: Recipe,
    mean_target_tokens: float,
    vocabularies: tuple[bytes, bytes],
    *,
    further: Mapping[str, Any] | None = None,
) -> dict[str, bytes]:
    """The files beside the weights by name; an imported model gets those with which it came.

    mean_target_tokens: a translation's length, for which the power penalty, the only one that
        transformers knows, ranks as the recipe's does; see power_search.
    further: keys of config.json that transformers does not know.
    If transformers has no such architecture, config.json says so and is the only file.
    """
    search = power_search(recipe.search.without_guard(), mean_target_tokens)
    source, target = (
        parse_vocabulary(one, place=Path(name))
        for one, name in zip(vocabularies, VOCABULARIES, strict=True)
    )
    if isinstance(source, ImportedVocabulary) and isinstance(target, ImportedVocabulary):
        return imported_files(recipe, search, (source, target), further or {})
    known = {key: getattr(search, key) for key in ("length_penalty", "length_penalty_alpha")}
    back = recipe.model_copy(update={"search": recipe.search.model_copy(update=known)})
    keys = {RECIPE_KEY: back.model_dump(mode="json"), **(further or {})}
    if setting := inexpressible_setting(recipe):
        keys |= {"model_type": "dragoman", "not_in_transformers": setting}
        return {CONFIG_FILE: json_bytes(keys)}
    sizes = source.vocab_size, target.vocab_size
    config = config_keys(recipe.model, sizes, recipe.corpus.directions[0])
    config["max_position_embeddings"] = num_positions(recipe)
    generation = generation_keys(search, padding=PAD) | _special_ids(recipe.model)
    generation["forced_eos_token_id"] = EOS if search.end_at_limit else None
    generation["max_new_tokens"] = length_limit(recipe.corpus.max_pieces + 1, search)
    return {
        CONFIG_FILE: json_bytes(config | keys),
        GENERATION_FILE: json_bytes(generation),
        **tokenizer_files(vocabularies, recipe),
    }


def _num_positions_in(folder: Path) -> object:
    """The rows of the positions that the weights of a folder may hold, by its configuration."""
    return read_json(folder / CONFIG_FILE).get("max_position_embeddings")


def num_positions(recipe: Recipe) -> int:
    """Positions that the longest sentence and the longest translation need, at least 1024."""
    longest = recipe.corpus.max_pieces + 1
    return max(_LEAST_POSITIONS, longest, length_limit(longest, recipe.search) + 1)


def form_of(recipe: Recipe, vocabularies: tuple[Vocabulary, Vocabulary]) -> WeightsForm:
    """The form in which files have the weights of a recipe's model."""
    source, target = vocabularies
    config = recipe.model
    if isinstance(source, ImportedVocabulary) and isinstance(target, ImportedVocabulary):
        orders = source.file.their_ids, target.file.their_ids
        return WeightsForm("m2m_100" if config.norm == "pre" else "marian", orders)
    family = family_of(config)
    has_positions = family == "pegasus" and not inexpressible_setting(recipe)
    return WeightsForm(family, num_positions=num_positions(recipe) if has_positions else 0)


def read_written(
    directory: Path, recipe: Recipe, vocabularies: tuple[Vocabulary, Vocabulary]
) -> Transformer:
    """The model of a folder that `write_folder` filled, or transformers after a training.

    Recipe and files may come from a stranger. Raises CheckpointError if they contradict each other,
    ConfigError if such a folder has no such model.
    """
    check_expressible(recipe)
    source, target = vocabularies
    sizes = source.vocab_size, target.vocab_size
    written = form_of(recipe, vocabularies)
    form, orders = Form(written.family, recipe.model, sizes), written.orders
    orders = orders or (range(sizes[0]), range(sizes[1]))
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


def tokenizer_files(vocabularies: tuple[bytes, bytes], recipe: Recipe) -> dict[str, bytes]:
    """The files of MarianMT's tokenizer; its SentencePiece models normalise a text as we do.

    It knows the tokens of the target languages by themselves, and the separator of sentences, which
    stands for no text.
    """
    joint, files = recipe.corpus.subword.joint, {}
    source, target = (
        Subword.parse(one, place=Path(name))
        for one, name in zip(vocabularies, VOCABULARIES, strict=True)
    )
    for name, vocabulary in zip(MARIAN_MODELS, vocabularies, strict=True):
        files[name] = with_normalization(vocabulary, lowercase=recipe.corpus.lowercase)
    listed = listed_ids(source)
    files[LIST_FILE] = json_bytes(listed)
    if not joint:
        files[TARGET_LIST_FILE] = json_bytes(listed_ids(target))
    special = [piece for piece in (*source.tokens, SEPARATOR) if piece in listed]
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": not joint,
        "model_max_length": recipe.corpus.max_pieces + 1,
        "pad_token": source.pieces([_padding(recipe.model)])[0],
        "additional_special_tokens": special,
        "clean_up_tokenization_spaces": False,
    }
    return files | {TOKENIZER_FILE: json_bytes(settings)}


def listed_ids(subword: Subword) -> dict[str, int]:
    """The id of each piece."""
    return {piece: number for number, piece in enumerate(subword.all_pieces())}


def _special_ids(config: ModelConfig) -> dict[str, int | None]:
    return {
        "pad_token_id": _padding(config),
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_bos_token_id": None,
        "forced_eos_token_id": None,
    }


def config_keys(
    config: ModelConfig, sizes: tuple[int, int], direction: Direction
) -> dict[str, Any]:
    """Every key of config.json that transformers reads but the length of the table of positions.

    sizes: of the vocabularies of source and target.
    """
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
        return keys | norms | {"vocab_size": sizes[1]}
    return keys | {
        "src_vocab_size": sizes[0],
        "tgt_vocab_size": sizes[1],
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
    if setting := inexpressible_setting(recipe):
        raise ConfigError(
            "transformers cannot represent this setting of the recipe",
            place=setting,
            remedy="export to ctranslate2, which takes every recipe",
        )


def inexpressible_setting(recipe: Recipe) -> str:
    """The setting for which transformers has no architecture; "" if it has one."""
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
    return next((setting for setting, is_one in reasons.items() if is_one), "")


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
