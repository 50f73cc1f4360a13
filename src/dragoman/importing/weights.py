"""Weights of MarianMT, M2M100, Pegasus and FSMT that others made or changed -> our weights.

Rows of embeddings are in the order of our ids here, of the original ids in files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

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
Tied = Literal["all", "decoder", "none"]
_MATRICES: Final[dict[Tied, dict[str, tuple[str, ...]]]] = {
    "all": {SHARED: (SHARED, SOURCE, TARGET, OUTPUT)},
    "decoder": {SOURCE: (SOURCE, SHARED), TARGET: (TARGET, SHARED, OUTPUT)},
    "none": {SOURCE: (SOURCE, SHARED), TARGET: (TARGET, SHARED), OUTPUT: (OUTPUT,)},
}
"""The names that each of our matrices may have in a file, which has tied ones once or more."""
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
    bias = weights.get(BIAS)
    update: dict[str, Any] = {"output_bias": bias is not None and bool(bias.any())}
    if update["output_bias"] and form.family == "m2m_100":  # its own form would lose it
        raise _lies(folder, f"knows nothing of {BIAS}, which the weights have")
    biases = (name for name in weights if "_attn." in name and name.endswith("_proj.bias"))
    if any(bool(weights[name].any()) for name in biases):
        update["attention_bias"] = True
    tied = form.model.tied_embeddings
    if not _are_equal(weights, tied):
        if form.family != "fsmt" or tied == "all":
            raise _lies(folder, "ties embeddings that are not equal in the weights")
        tied = update["tied_embeddings"] = "none"
    if form.family != "m2m_100":
        _check_positions(folder, weights, form)
    source_size, target_size = form.vocab_sizes
    # Not on the device "meta": to draw there imports sympy, which takes longer than to draw here.
    model = Transformer(
        form.model.model_copy(update=update),
        source_vocab_size=source_size,
        target_vocab_size=target_size,
    )
    ours, stored = WeightsForm(orders=orders), _stored(tied, weights)
    with torch.no_grad():
        for name, view in ours.views(dict(model.named_parameters())).items():
            view.copy_(ours.in_our_order(name, weights[stored.get(name, name)]))
    return model.eval()


def _name(name: str) -> str:
    return OUTPUT if name == FSMT_OUTPUT else name


def _stored(tied: Tied, found: Collection[str]) -> dict[str, str]:
    """The name in a file of each of our matrices."""
    return {
        ours: next((name for name in theirs if name in found), theirs[0])
        for ours, theirs in _MATRICES[tied].items()
    }


def _are_equal(weights: Mapping[str, Tensor], tied: Tied) -> bool:
    """Whether all copies of tied matrices are the same."""
    names = {
        "all": (SHARED, SOURCE, TARGET, OUTPUT),
        "decoder": (_stored(tied, weights).get(TARGET, ""), OUTPUT),
        "none": (),
    }[tied]
    copies = [weights[name] for name in names if name in weights]
    return all(torch.equal(copies[0], copy) for copy in copies[1:])


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
    described = model.model_copy(update={"attention_bias": True, "output_bias": BIAS in found})
    try:
        parameters = described.parameter_shapes(
            source_vocab_size=form.vocab_sizes[0], target_vocab_size=form.vocab_sizes[1]
        )
    except ValueError as error:
        raise _lies(place, str(error)) from error
    stored = _stored(model.tied_embeddings, found)
    shapes = WeightsForm().shapes(parameters)
    return {stored.get(name, name): shape for name, shape in shapes.items()}


def _lies(folder: Path, problem: str) -> CheckpointError:
    return CheckpointError(problem, place=folder / CONFIG_FILE, remedy=_OTHER_CONFIG)
