"""Our model and its SentencePiece vocabulary as transformers loads them without any code of ours.

Pre-norm with one shared matrix is Pegasus up to names, post-norm is FSMT. Models that neither can
express are refused. Every key is written whose default would change a translation or a training,
since defaults differ between architectures and between versions of transformers.

Pegasus reads its positions from the file, so that every program that reads the file has ours; the
positions of M2M100, the same architecture otherwise, begin elsewhere in CTranslate2's converter.
That converter begins translations of Pegasus with the padding, as its training did. So the row of
our beginning of a sentence is that of padding there, and the other way round. FSMT begins its
positions at 1 if PAD is 0, as we do.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import torch
from safetensors.torch import save_file

from dragoman.base.errors import ConfigError, MachineError
from dragoman.base.files import write_json
from dragoman.corpus.directions import Direction
from dragoman.corpus.shards import BOS, EOS, PAD
from dragoman.corpus.stand_ins import SEPARATOR
from dragoman.corpus.subword import Subword
from dragoman.formats.imported_form import generation_keys, shape_keys
from dragoman.formats.normalizing_pieces import with_normalization
from dragoman.importing.tokenizer import LIST_FILE, MARIAN_MODELS, TOKENIZER_FILE
from dragoman.importing.weights import file_weights
from dragoman.model.config import ModelConfig, SearchConfig, length_limit
from dragoman.model.transformer import Transformer
from dragoman.recipe.recipe import Recipe

RECIPE_KEY: Final = "dragoman_recipe"
"""The key of config.json with our recipe, which transformers keeps through every training."""
_LEAST_POSITIONS: Final = 1024


def write_huggingface(
    model: Transformer,
    recipe: Recipe,
    search: SearchConfig,
    vocabulary: bytes,
    directory: Path,
) -> None:
    """Write configuration, weights and tokenizer into an existing directory.

    search: with the power penalty, the only one that transformers knows; see power_search.
    vocabulary: the SentencePiece model of both sides.
    Raises ConfigError if transformers has no such architecture.
    """
    check_expressible(recipe)
    assert search.length_penalty == "power"
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
    write_json(directory / "generation_config.json", generation)
    write_tokenizer(vocabulary, recipe, directory)


def write_tokenizer(vocabulary: bytes, recipe: Recipe, directory: Path) -> None:
    """Write the files of MarianMT's tokenizer; its SentencePiece models normalise a text as we do.

    It knows the tokens of the target languages by themselves, and the separator of sentences, which
    stands for no text.
    """
    subword = Subword.parse(vocabulary, place=directory)
    model = with_normalization(vocabulary, lowercase=recipe.corpus.lowercase)
    for name in MARIAN_MODELS:
        (directory / name).write_bytes(model)
    write_json(directory / LIST_FILE, listed_ids(subword))
    special = [piece for piece in (*subword.tokens, SEPARATOR) if piece in listed_ids(subword)]
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "model_max_length": recipe.corpus.max_pieces + 1,
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
    write_json(directory / "config.json", config | dict(further or {}))
    order = row_order(model.config, len(model.embeddings.target_matrix))
    family = family_of(model.config)
    weights = file_weights(model, family, (order, order), num_positions=num_positions)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def _special_ids(config: ModelConfig) -> dict[str, int | None]:
    return {
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": PAD if config.norm == "pre" else BOS,
        "forced_bos_token_id": None,
        "forced_eos_token_id": None,
    }


def _config(model: Transformer, direction: Direction) -> dict[str, Any]:
    """Every key of config.json that transformers reads but the length of the table of positions."""
    config, vocab_size = model.config, model.embeddings.target_matrix.shape[0]
    pre = config.norm == "pre"
    architecture = "Pegasus" if pre else "FSMT"
    keys: dict[str, Any] = {
        "model_type": architecture.lower(),
        "architectures": [f"{architecture}ForConditionalGeneration"],
        **shape_keys(config),
        "tie_word_embeddings": config.tied_embeddings == "all",
        **_special_ids(config),
    }
    if pre:  # CTranslate2's converter reads what transformers takes for granted
        norms = {"normalize_before": True, "normalize_embedding": False}
        return keys | norms | {"vocab_size": vocab_size}
    return keys | {
        "src_vocab_size": vocab_size,
        "tgt_vocab_size": vocab_size,
        "langs": [*direction],
    }


def row_order(config: ModelConfig, vocab_size: int) -> list[int]:
    """Their id of each of our ids: in Pegasus padding and beginning of sentence change places."""
    order = list(range(vocab_size))
    if config.norm == "pre":
        order[PAD], order[BOS] = BOS, PAD
    return order


def family_of(config: ModelConfig) -> Literal["pegasus", "fsmt"]:
    """The architecture of transformers that has our models of this norm."""
    return "pegasus" if config.norm == "pre" else "fsmt"


def check_expressible(recipe: Recipe) -> None:
    """Raises ConfigError that names the setting for which transformers has no architecture."""
    if recipe.corpus.subword.kind == "imported":  # it has the shape in which it came
        return
    model = recipe.model
    reasons = {
        "model.activation": model.activation == "swiglu",
        "model.tied_embeddings": model.norm == "pre" and model.tied_embeddings != "all",
        "corpus.subword.joint": not recipe.corpus.subword.joint,
        "model.positions": model.positions != "tensor2tensor",
        "model.first_position": model.first_position != 1,
        "model.scaled_embeddings": not model.scaled_embeddings,
        "model.output_bias": model.output_bias,
        "model.start_ids": model.start_ids != (BOS,),
    }
    for place, inexpressible in reasons.items():
        if inexpressible:
            raise ConfigError(
                "transformers cannot represent this setting of the recipe",
                place=place,
                remedy="export to ctranslate2 or bundle, which take every recipe",
            )


def translate_with_huggingface(
    directory: Path, texts: list[str], search: SearchConfig
) -> list[str]:
    """Translations by the export, loaded with transformers' Auto classes.

    Sentences of equal length form a batch, with the length limit of our own search.
    Raises MachineError if transformers is not installed.
    """
    transformers = _transformers()
    with _silent(transformers):
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
def _silent(transformers: Any) -> Iterator[None]:
    """Inside the block transformers shows no progress bars and no advice, such as to install a
    package that is not needed."""
    settings = transformers.utils.logging
    was_shown = settings.is_progress_bar_enabled()
    settings.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if was_shown:
            settings.enable_progress_bar()


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MachineError(
            "transformers is not installed",
            remedy="install it: pip install 'dragoman[huggingface]'",
        ) from error
    return transformers
