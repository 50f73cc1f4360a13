"""Weights of MarianMT, M2M100, Pegasus and FSMT <-> our weights.

The names in files of transformers differ from ours in spelling, and our projections of one input
are one matrix. Rows of embeddings are in the order of our ids here, of the original ids in files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from dragoman.base.errors import CheckpointError
from dragoman.importing.config import CONFIG_FILE, read_json
from dragoman.model.config import ModelConfig
from dragoman.model.transformer import DecoderLayer, EncoderLayer, Transformer, sinusoids
from dragoman.training.checkpoint import read_weights, weight_shapes

WEIGHTS_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
PICKLES: Final = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5",
    "flax_model.msgpack", "model.npz", "rust_model.ot")  # fmt: skip
_SHARED: Final = "model.shared.weight"
_SOURCE: Final = "model.encoder.embed_tokens.weight"
_TARGET: Final = "model.decoder.embed_tokens.weight"
_OUTPUT: Final = "lm_head.weight"
_FSMT_OUTPUT: Final = "model.decoder.output_projection.weight"
_BIAS: Final = "final_logits_bias"
_POSITIONS: Final = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight",
    "model.encoder.embed_positions.weights", "model.decoder.embed_positions.weights")  # fmt: skip
_SAME: Final = 1e-3
"""How far positions in a file may be from ours: some were written in 16 bits."""
_OTHER_CONFIG: Final = "take the config.json that belongs to the weights"
Orders = tuple[Sequence[int], Sequence[int]]
"""The original id of each of our ids: for the source, and for the target."""


@dataclass(frozen=True, slots=True)
class Form:
    """The model that a file of weights is to hold.

    family: `model_type` of config.json. vocab_sizes: of source and target.
    """

    family: Literal["marian", "m2m_100", "pegasus", "fsmt"]
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
    known = {*expected, _SHARED, _SOURCE, _TARGET, _OUTPUT, _BIAS, *_POSITIONS}
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
    bias = weights.get(_BIAS)
    update: dict[str, Any] = {"output_bias": bias is not None and bool(bias.any())}
    if update["output_bias"] and form.family == "m2m_100":  # its own form would lose it
        raise _lies(folder, f"knows nothing of {_BIAS}, which the weights have")
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
        for name, view in layer_weights(model).items():
            view.copy_(weights[name])
    return model.eval()


def _name(name: str) -> str:
    return _OUTPUT if name == _FSMT_OUTPUT else name


def _embedding_names(tied: str, found: Mapping[str, Any]) -> tuple[str, str]:
    """The names of the matrices of source and target in a file, which has tied ones once or more
    often."""
    others = (_TARGET, _SOURCE, _OUTPUT) if tied == "all" else ()
    output = (_OUTPUT,) if tied == "decoder" else ()
    source, target = (_SOURCE, _SHARED, *others), (_TARGET, _SHARED, *others, *output)
    return (
        next((name for name in source if name in found), _SOURCE),
        next((name for name in target if name in found), _TARGET),
    )


def _matrices(
    folder: Path, form: Form, weights: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The matrices of source, target and output, with rows in the order of the original ids."""
    tied = form.model.tied_embeddings
    source, target = (weights[name] for name in _embedding_names(tied, weights))
    output = weights.get(_OUTPUT, target)
    equal = {"all": [source, target, output], "decoder": [target, output], "none": []}[tied]
    if tied == "all" and _SHARED in weights:
        equal.append(weights[_SHARED])
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
    d, ffn = model.d_model, model.d_ffn
    source, target = ((size, d) for size in form.vocab_sizes)
    names = _embedding_names(model.tied_embeddings, found)
    shapes: dict[str, tuple[int, ...]] = dict(zip(names, (source, target), strict=True))
    if _OUTPUT in found or model.tied_embeddings == "none":
        shapes[_OUTPUT] = target
    if _BIAS in found:
        shapes[_BIAS] = (1, form.vocab_sizes[1])
    sides = {"encoder": model.encoder_layers, "decoder": model.decoder_layers}
    for side, layers in sides.items():
        for number in range(layers):
            layer = f"model.{side}.layers.{number}"
            attentions = ["self_attn", *(["encoder_attn"] if side == "decoder" else [])]
            for attention in attentions:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    shapes[f"{layer}.{attention}.{part}.weight"] = (d, d)
                    shapes[f"{layer}.{attention}.{part}.bias"] = (d,)
            shapes |= {f"{layer}.fc1.weight": (ffn, d), f"{layer}.fc1.bias": (ffn,)}
            shapes |= {f"{layer}.fc2.weight": (d, ffn), f"{layer}.fc2.bias": (d,)}
            for norm in (*(f"{name}_layer_norm" for name in attentions), "final_layer_norm"):
                shapes |= {f"{layer}.{norm}.{part}": (d,) for part in ("weight", "bias")}
        if model.norm == "pre":
            shapes |= {f"model.{side}.layer_norm.{part}": (d,) for part in ("weight", "bias")}
    return shapes


def _lies(folder: Path, problem: str) -> CheckpointError:
    return CheckpointError(problem, place=folder / CONFIG_FILE, remedy=_OTHER_CONFIG)


def file_weights(
    model: Transformer, family: str, orders: Orders, *, num_positions: int = 0
) -> dict[str, Tensor]:
    """Our weights under the names of transformers, as `read_model` reads them.

    num_positions: rows of the tables of positions of Pegasus.
    """
    embeddings, tied = model.embeddings, model.config.tied_embeddings
    source = _reordered(embeddings.source_matrix, orders[0])
    target = _reordered(embeddings.target_matrix, orders[1])
    output = _reordered(embeddings.output_matrix, orders[1])
    weights = dict(layer_weights(model))
    if family == "fsmt":
        weights |= {_SOURCE: source, _TARGET: target, _FSMT_OUTPUT: output}
    else:
        if tied == "all" or family == "m2m_100":
            weights[_SHARED] = source
        if tied != "all":
            weights |= {_SOURCE: source, _TARGET: target}
        if tied == "none":
            weights[_OUTPUT] = output
    if family in ("marian", "pegasus"):
        bias: Tensor | None = embeddings.output_bias
        bias = torch.zeros(len(target)) if bias is None else bias
        weights[_BIAS] = _reordered(bias, orders[1])[None]
    if family == "pegasus":
        table_PD = sinusoids(num_positions, model.config.d_model)
        weights |= dict.fromkeys(_POSITIONS[:2], table_PD)
    # Cloned, as safetensors refuses tensors that share memory: one matrix of ours becomes several.
    return {name: weight.detach().float().cpu().clone() for name, weight in weights.items()}


def _reordered(rows: Tensor, order: Sequence[int]) -> Tensor:
    """Rows in the order of the original ids; order: the original id for each of ours."""
    rows = rows.detach().cpu()
    there = torch.empty_like(rows)
    there[torch.tensor(order)] = rows
    return there


def layer_weights(model: Transformer) -> dict[str, Tensor]:
    """Our weights, except for the embeddings, under the names of transformers' models.

    They are views: writing to them changes the model. Zeros stand for biases that it lacks.
    """
    weights: dict[str, Tensor] = {}
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for number, layer in enumerate(stack.layers):
            assert isinstance(layer, EncoderLayer | DecoderLayer)
            weights |= _layer(f"model.{side}.layers.{number}", layer)
        if isinstance(stack.norm, nn.LayerNorm):
            weights |= _linear(f"model.{side}.layer_norm", stack.norm)
    return weights


def _layer(name: str, layer: EncoderLayer | DecoderLayer) -> dict[str, Tensor]:
    own, feed_forward = layer.self_attention, layer.feed_forward
    weights = {
        **_fused(f"{name}.self_attn", "qkv", own.query_key_value),
        **_linear(f"{name}.self_attn.out_proj", own.output),
        **_linear(f"{name}.self_attn_layer_norm", layer.self_attention_residual.norm),
        **_linear(f"{name}.fc1", feed_forward.input),
        **_linear(f"{name}.fc2", feed_forward.output),
        **_linear(f"{name}.final_layer_norm", layer.feed_forward_residual.norm),
    }
    if isinstance(layer, DecoderLayer):
        cross = layer.cross_attention
        weights |= {
            **_fused(f"{name}.encoder_attn", "q", cross.query),
            **_fused(f"{name}.encoder_attn", "kv", cross.key_value),
            **_linear(f"{name}.encoder_attn.out_proj", cross.output),
            **_linear(f"{name}.encoder_attn_layer_norm", layer.cross_attention_residual.norm),
        }
    return weights


def _fused(name: str, parts: str, fused: nn.Linear) -> dict[str, Tensor]:
    """The projections of one matrix of ours, which are several in transformers' models."""
    weights = {}
    slices = zip(fused.weight.chunk(len(parts)), _bias(fused).chunk(len(parts)), strict=True)
    for part, (weight, bias) in zip(parts, slices, strict=True):
        weights[f"{name}.{part}_proj.weight"] = weight
        weights[f"{name}.{part}_proj.bias"] = bias
    return weights


def _linear(name: str, module: nn.Linear | nn.LayerNorm) -> dict[str, Tensor]:
    return {f"{name}.weight": module.weight, f"{name}.bias": _bias(module)}


def _bias(module: nn.Linear | nn.LayerNorm) -> Tensor:
    """The bias; zeros if the recipe leaves it out, for which transformers has no setting."""
    bias: Tensor | None = module.bias
    return torch.zeros(module.weight.shape[0]) if bias is None else bias
