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

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor

from dragoman.base.errors import CheckpointError, ConfigError, MachineError
from dragoman.base.files import write_json
from dragoman.corpus.directions import Direction
from dragoman.corpus.shards import BOS, EOS, PAD
from dragoman.corpus.stand_ins import SEPARATOR
from dragoman.corpus.subword import Subword
from dragoman.formats.imported_form import check_imported, refuse, shape_keys
from dragoman.formats.normalizing_pieces import with_normalization
from dragoman.importing.tokenizer import LIST_FILE, MARIAN_MODELS, TOKENIZER_FILE
from dragoman.importing.weights import layer_weights
from dragoman.model.config import ModelConfig, SearchConfig, length_limit
from dragoman.model.transformer import Transformer, sinusoids
from dragoman.recipe.recipe import Recipe
from dragoman.training.checkpoint import read_weights, weight_shapes

RECIPE_KEY: Final = "dragoman_recipe"
"""The key of config.json with our recipe, which transformers keeps through every training."""
_AGAIN: Final = "export it again from its run"
_LEAST_POSITIONS: Final = 1024
_SOURCE: Final = "model.encoder.embed_tokens.weight"
_TARGET: Final = "model.decoder.embed_tokens.weight"
_FSMT_OUTPUT: Final = "model.decoder.output_projection.weight"
_PEGASUS_SHARED: Final = "model.shared.weight"
_PEGASUS_OUTPUT: Final = "lm_head.weight"
_BIAS: Final = "final_logits_bias"
_POSITIONS: Final = "embed_positions.weight"
_SAME: Final = 1e-3
"""How far positions in a file may be from ours: they may have been written in 16 bits."""


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
    generation = {
        "num_beams": search.beam_size,
        "length_penalty": search.length_penalty_alpha,
        "early_stopping": search.early_stopping and search.beam_size > 1,
        "max_new_tokens": limit,
        "do_sample": False,
        # A training switches it off in config.json, and FSMT searches wrongly without it.
        "use_cache": True,
        **_special_ids(model.config),
    }
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
    weights = dict(_weights(model))
    if model.config.norm == "pre":
        shared = weights[_PEGASUS_SHARED][_order(model)]
        for name in (_SOURCE, _TARGET, _PEGASUS_OUTPUT):
            del weights[name]
        table_PD = sinusoids(num_positions, model.config.d_model)
        weights |= {
            _PEGASUS_SHARED: shared,
            _BIAS: torch.zeros(1, len(shared)),
            **{f"model.{side}.{_POSITIONS}": table_PD for side in ("encoder", "decoder")},
        }
    # Cloned, as safetensors refuses tensors that share memory.
    written = {name: weight.contiguous().clone() for name, weight in weights.items()}
    save_file(written, directory / "model.safetensors", metadata={"format": "pt"})


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
        "is_encoder_decoder": True,
        **shape_keys(config),
        "scale_embedding": True,
        "tie_word_embeddings": config.tied_embeddings == "all",
        **_special_ids(config),
        "use_cache": True,
        "dtype": "float32",
    }
    if pre:  # CTranslate2's converter reads what transformers takes for granted
        norms = {"normalize_before": True, "normalize_embedding": False}
        return keys | norms | {"vocab_size": vocab_size}
    return keys | {
        "src_vocab_size": vocab_size,
        "tgt_vocab_size": vocab_size,
        "langs": [*direction],
    }


def model_from_huggingface(file: Path, recipe: Recipe, *, vocab_size: int) -> Transformer:
    """Our model with the weights of an export's file.

    vocab_size: of the vocabulary that both sides share.
    Raises CheckpointError if the file cannot be read or is of another model; a recipe that asks
    for more than the file holds is refused before a model is built.
    """
    shapes = weight_shapes(file)
    sizes = {"source_vocab_size": vocab_size, "target_vocab_size": vocab_size}
    try:
        wanted = recipe.model.num_parameters(**sizes)
        check_expressible(recipe)
    except (ValueError, ConfigError) as error:
        problem = f"its recipe describes no model of this kind: {error}"
        raise CheckpointError(problem, place=file.parent, remedy=_AGAIN) from error
    held = sum(map(math.prod, shapes.values()))
    if wanted > held:
        problem = f"holds {held:,} weights, but the recipe's model has {wanted:,}"
        raise CheckpointError(problem, place=file, remedy=_AGAIN)
    model = Transformer(recipe.model, **sizes)
    fill_from_huggingface(file, model)
    return model


def trained_form(file: Path, config: ModelConfig) -> ModelConfig:
    """The configuration of a model after a training in transformers.

    There a bias that our model lacked has begun at 0 and was trained, and two matrices that ours
    had tied may have become different ones.
    """
    written, update = read_weights(file), dict[str, Any]()
    biases = (name for name in written if "_attn." in name and name.endswith("_proj.bias"))
    if not config.attention_bias and any(bool(written[name].any()) for name in biases):
        update["attention_bias"] = True
    target, output = written.get(_TARGET), written.get(_FSMT_OUTPUT)
    if (
        config.tied_embeddings == "decoder"
        and target is not None
        and output is not None
        and not torch.equal(target, output)
    ):
        update["tied_embeddings"] = "none"
    return config.model_copy(update=update)


@torch.no_grad()
def fill_from_huggingface(file: Path, model: Transformer) -> None:
    """Put the weights of an export's file into our model: `write_model` the other way round.

    Raises CheckpointError if the file cannot be read or is of another model.
    """
    written = read_weights(file)
    _check_fixed(written, model.config, place=file)
    fixed = (_POSITIONS, _BIAS)
    theirs = {name: weight for name, weight in written.items() if not name.endswith(fixed)}
    ours = _weights(model)  # views of our own matrices: writing to them changes ours
    # Of matrices that are tied the file may have any one, or several.
    given: dict[int, str] = {}
    for name in theirs:
        if name in ours:
            first = given.setdefault(ours[name].data_ptr(), name)
            if not torch.equal(theirs[first], theirs[name]):
                problem = f"{first} and {name} differ, but the recipe's model has one for both"
                raise CheckpointError(problem, place=file, remedy=_AGAIN)
    for name in {*ours, *theirs}:
        there = theirs.get(name)
        if name not in ours or (there is None and ours[name].data_ptr() not in given):
            raise CheckpointError(f"{name} is on one side only", place=file, remedy=_AGAIN)
        if there is not None and there.shape != ours[name].shape:
            problem = (
                f"{name} has the shape {tuple(there.shape)}, "
                f"but the recipe's model has {tuple(ours[name].shape)}"
            )
            raise CheckpointError(problem, place=file, remedy=_AGAIN)
    for name, tensor in theirs.items():
        ours[name].copy_(tensor)
    if model.config.norm == "pre":
        shared = model.embeddings.target_matrix
        shared.copy_(shared[_order(model)])


def _check_fixed(written: Mapping[str, Tensor], config: ModelConfig, *, place: Path) -> None:
    """Raises CheckpointError if what no training changes is not as it was exported."""
    for name, weight in written.items():
        if name == _BIAS and bool(weight.any()):
            raise CheckpointError(f"{name} is not zero", place=place, remedy=_AGAIN)
        if name.endswith(_POSITIONS):
            # The first row of FSMT is that of padding.
            table_PD = weight if config.norm == "pre" else weight[1:]
            ours = sinusoids(len(table_PD), config.d_model)
            if table_PD.shape != ours.shape or not torch.allclose(
                table_PD.float(), ours, atol=_SAME, rtol=0
            ):
                raise CheckpointError(
                    f"{name} holds positions that were trained, but our model computes them",
                    place=place,
                    remedy="train the export again with its positions frozen, as its card shows",
                )


def _order(model: Transformer) -> list[int]:
    """Ids in which padding and beginning of sentence have changed places; its own inverse."""
    order = list(range(model.embeddings.target_matrix.shape[0]))
    order[PAD], order[BOS] = BOS, PAD
    return order


def check_expressible(recipe: Recipe) -> None:
    """Raises ConfigError that names the setting for which transformers has no architecture."""
    if recipe.corpus.subword.kind == "imported":
        check_imported(recipe)
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
    refuse("transformers", reasons)


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


def _weights(model: Transformer) -> dict[str, Tensor]:
    """Our weights, in our order, under all names that transformers has for them."""
    embeddings = model.embeddings
    weights = {_SOURCE: embeddings.source_matrix, _TARGET: embeddings.target_matrix}
    if model.config.norm == "pre":
        weights |= dict.fromkeys((_PEGASUS_SHARED, _PEGASUS_OUTPUT), embeddings.target_matrix)
    else:
        weights[_FSMT_OUTPUT] = embeddings.output_matrix
    weights |= layer_weights(model)
    return {name: tensor.detach().float().cpu() for name, tensor in weights.items()}
