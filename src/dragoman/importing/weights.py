"""Weights of MarianMT, M2M100, Pegasus and FSMT that others made or changed -> our weights.

Rows of embeddings are in the order of our ids here, of the original ids in files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from dragoman.base.errors import CheckpointError
from dragoman.importing.config import read_json
from dragoman.model.config import CONFIG_FILE, ModelConfig
from dragoman.model.transformer import Transformer, sinusoids
from dragoman.model.weights_form import (
    BIAS,
    FSMT_OUTPUT,
    OUTPUT,
    POSITIONS,
    SHARED,
    SOURCE,
    TARGET,
    WEIGHTS_FILE,
    Family,
    Orders,
    WeightsForm,
)
from dragoman.training.checkpoint import read_weights, weight_shapes

INDEX_FILE: Final = "model.safetensors.index.json"
PICKLES: Final = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5",
    "flax_model.msgpack", "model.npz", "rust_model.ot")  # fmt: skip
_POSITIONS: Final = (*POSITIONS, *(f"{name}s" for name in POSITIONS))
_SAME: Final = 1e-3
"""How far positions in a file may be from ours: some were written in 16 bits."""
_OTHER_CONFIG: Final = "take the config.json that belongs to the weights"


@dataclass(frozen=True, slots=True)
class Form:
    """The model that a file of weights is to hold.

    family: `model_type` of config.json. vocab_sizes: of source and target.
    """

    family: Family
    model: ModelConfig
    vocab_sizes: tuple[int, int]


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a folder's weights.

    Raises CheckpointError if there are none in safetensors: reading other formats can run code.
    """
    if (folder / WEIGHTS_FILE).exists():
        return [folder / WEIGHTS_FILE]
    if (folder / INDEX_FILE).exists():
        parts = read_json(folder / INDEX_FILE, limit=1 << 24).get("weight_map")
        names = [*parts.values()] if isinstance(parts, dict) else []
        if names and all(isinstance(name, str) and _is_file_name(name) for name in names):
            return [folder / name for name in sorted(set(names))]
        raise CheckpointError(
            "names no files of weights", place=folder / INDEX_FILE, remedy="copy the file again"
        )
    for name in PICKLES:
        if (folder / name).exists():
            raise CheckpointError(
                f"is not read: only {WEIGHTS_FILE} is, since other formats can run code or need "
                "other libraries",
                place=folder / name,
                remedy='if you trust it, convert it: python -c "from transformers import '
                "AutoModelForSeq2SeqLM as M; "
                "M.from_pretrained('FOLDER').save_pretrained('FOLDER')\"",
            )
    raise CheckpointError(
        "is missing",
        place=folder / WEIGHTS_FILE,
        remedy="copy all files of the model into this folder",
    )


def _is_file_name(name: str) -> bool:
    return Path(name).name == name and name.isprintable()


def checked_files(folder: Path, form: Form) -> list[Path]:
    """The files of a folder's weights, once their headers have been checked.

    Raises CheckpointError if they do not fit the configuration. This check comes first, because a
    false configuration could ask for a vocabulary and a model of any size.
    """
    files = weight_files(folder)
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        shapes |= {_name(name): shape for name, shape in weight_shapes(file).items()}
    expected = _expected_shapes(form, shapes, place=folder)
    for name, shape in expected.items():
        if name not in shapes:
            raise _lies(folder, f"asks for {name}, which the weights do not have")
        if shapes[name] != shape:
            raise _lies(folder, f"asks for {name} of the shape {shape}, and it is {shapes[name]}")
    known = {*expected, SHARED, SOURCE, TARGET, OUTPUT, BIAS, *_POSITIONS}
    for name in shapes:
        if name not in known:
            raise _lies(folder, f"knows nothing of {name}, which the weights have")
    return files


def read_model(folder: Path, files: Sequence[Path], form: Form, orders: Orders) -> Transformer:
    """Our model with the weights of a folder.

    files: those that `checked_files` returned.
    A training in transformers adds biases that our model lacked, and parts what FSMT does not tie:
    the model has them.
    Raises CheckpointError if the weights cannot be read or contradict the configuration.
    """
    weights: dict[str, Tensor] = {}
    for file in files:
        weights |= {_name(name): tensor.float() for name, tensor in read_weights(file).items()}
    source_order, target_order = (torch.tensor(order) for order in orders)
    matrices = _matrices(folder, form, weights)
    bias = weights.get(BIAS)
    update: dict[str, Any] = {"output_bias": bias is not None and bool(bias.any())}
    if update["output_bias"] and form.family == "m2m_100":  # its own form would lose it
        raise _lies(folder, f"knows nothing of {BIAS}, which the weights have")
    biases = (name for name in weights if "_attn." in name and name.endswith("_proj.bias"))
    if any(bool(weights[name].any()) for name in biases):
        update["attention_bias"] = True
    if form.model.tied_embeddings == "decoder" and not torch.equal(*matrices[1:]):
        update["tied_embeddings"] = "none"
    model_config = form.model.model_copy(update=update)
    if form.family != "m2m_100":
        _check_positions(folder, weights, form)
    # Not on the device "meta": to draw there imports sympy, which takes longer than to draw here.
    model = Transformer(
        model_config,
        source_vocab_size=len(source_order),
        target_vocab_size=len(target_order),
    )
    embeddings = model.embeddings
    with torch.no_grad():
        embeddings.source_matrix.copy_(matrices[0][source_order])
        embeddings.target_matrix.copy_(matrices[1][target_order])
        embeddings.output_matrix.copy_(matrices[2][target_order])
        if embeddings.output_bias is not None and bias is not None:
            embeddings.output_bias.copy_(bias.view(-1)[target_order])
        layers = {
            name: weight for name, weight in model.named_parameters() if not _is_embedding(name)
        }
        for name, view in WeightsForm(form.family).views(layers).items():
            view.copy_(weights[name])
    return model.eval()


def _name(name: str) -> str:
    return OUTPUT if name == FSMT_OUTPUT else name


def _embedding_names(tied: str, found: Mapping[str, Any]) -> tuple[str, str]:
    """The names of the matrices of source and target in a file, which has tied ones once or more
    often."""
    others = (TARGET, SOURCE, OUTPUT) if tied == "all" else ()
    output = (OUTPUT,) if tied == "decoder" else ()
    source, target = (SOURCE, SHARED, *others), (TARGET, SHARED, *others, *output)
    return (
        next((name for name in source if name in found), SOURCE),
        next((name for name in target if name in found), TARGET),
    )


def _matrices(
    folder: Path, form: Form, weights: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The matrices of source, target and output, with rows in the order of the original ids."""
    tied = form.model.tied_embeddings
    source, target = (weights[name] for name in _embedding_names(tied, weights))
    output = weights.get(OUTPUT, target)
    equal = {"all": [source, target, output], "decoder": [target, output], "none": []}[tied]
    if tied == "all" and SHARED in weights:
        equal.append(weights[SHARED])
    if form.family == "fsmt" and tied == "decoder":
        equal = []
    if any(not torch.equal(equal[0], one) for one in equal[1:]):
        raise _lies(folder, "ties embeddings that are not equal in the weights")
    return source, target, output


def _check_positions(folder: Path, weights: Mapping[str, Tensor], form: Form) -> None:
    """Raises CheckpointError if the positions in a file are not the sinusoids that we compute."""
    config = form.model
    for name in _POSITIONS:
        if name in weights:
            found = weights[name]
            if form.family == "fsmt" and found.dim() == 2:
                found = found[1:]  # the first row is that of padding
            is_like_ours = found.dim() == 2 and found.shape[1] == config.d_model
            rows = len(found) if is_like_ours else 0  # no more than the file has
            ours = sinusoids(
                rows, config.d_model, kind=config.positions, first=config.first_position
            )
            if found.shape != ours.shape or not torch.allclose(found, ours, atol=_SAME, rtol=0):
                raise CheckpointError(
                    f"{name} holds positions that are not the sinusoids that our model computes",
                    place=folder,
                    remedy="take a model without learned positions; train an export of dragoman "
                    "with its positions frozen, as its card shows",
                )


def _expected_shapes(
    form: Form, found: Mapping[str, tuple[int, ...]], *, place: Path
) -> dict[str, tuple[int, ...]]:
    """The shapes that the configuration asks for, under transformers' names."""
    model = form.model
    if model.encoder_layers + model.decoder_layers > len(found):
        layers = model.encoder_layers + model.decoder_layers
        raise _lies(place, f"asks for {layers} layers, and the weights are {len(found)} tensors")
    with_biases = model.model_copy(update={"attention_bias": True, "output_bias": False})
    try:
        parameters = with_biases.parameter_shapes(
            source_vocab_size=form.vocab_sizes[0], target_vocab_size=form.vocab_sizes[1]
        )
    except ValueError as error:
        raise _lies(place, str(error)) from error
    stacks = {name: shape for name, shape in parameters.items() if not _is_embedding(name)}
    source, target = ((size, model.d_model) for size in form.vocab_sizes)
    names = _embedding_names(model.tied_embeddings, found)
    shapes: dict[str, tuple[int, ...]] = dict(zip(names, (source, target), strict=True))
    if OUTPUT in found or model.tied_embeddings == "none":
        shapes[OUTPUT] = target
    if BIAS in found:
        shapes[BIAS] = (1, form.vocab_sizes[1])
    return shapes | WeightsForm(form.family).shapes(stacks)


def _is_embedding(name: str) -> bool:
    """Whether this is the name of a parameter of our embeddings."""
    return name.startswith("embeddings.")


def _lies(folder: Path, problem: str) -> CheckpointError:
    return CheckpointError(problem, place=folder / CONFIG_FILE, remedy=_OTHER_CONFIG)
