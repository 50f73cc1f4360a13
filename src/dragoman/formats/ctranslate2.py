"""Our model in CTranslate2's format.

Every architecture that a recipe can describe has its counterpart there. A length penalty of the
kind "gnmt" does not; `ctranslate2_engine` applies it to the results of CTranslate2. Free of torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from dragoman.base.errors import MachineError
from dragoman.corpus.shards import EOS, PAD, UNK
from dragoman.corpus.vocabulary import Vocabulary
from dragoman.formats.kinds import Quantization
from dragoman.model.config import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dragoman.model.transformer import Transformer

_INT8_LEVELS: Final = 80
"""The largest weight of a row in int8. With 127, as in CTranslate2's converter, sums of two
products overflow the 16 bits in which processors without VNNI compute them, and are cut off."""
_NUM_POSITIONS: Final = 2048
"""Rows of a table of positions; CTranslate2 computes as many if it knows the formula."""
_NEVER: Final = -30_000.0
"""A bias that excludes padding. In MarianMT padding starts a translation and is never part of one;
its probability, which transformers counts and does not use, is then 0."""


def write_ctranslate2(
    model: Transformer,
    subwords: tuple[Vocabulary, Vocabulary],
    directory: Path,
    *,
    quantization: Quantization,
) -> None:
    """Write model.bin, config.json and the vocabularies into an existing directory.

    Raises MachineError if CTranslate2 is not installed.
    """
    try:
        from ctranslate2.specs.common_spec import Activation
        from ctranslate2.specs.transformer_spec import TransformerSpec
    except ImportError as error:
        raise MachineError(
            "CTranslate2 is not installed", remedy="install it: pip install 'dragoman[serve]'"
        ) from error
    config = model.config
    activations = {
        "relu": Activation.RELU,
        "gelu": Activation.GELU,
        "silu": Activation.SWISH,
        "swiglu": Activation.SWISH,
    }
    spec = TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.num_heads,
        pre_norm=config.norm == "pre",
        activation=activations[config.activation],
        ffn_glu=config.activation == "swiglu",
        alignment_heads=0,  # all of them
    )
    source, target = subwords
    spec.register_source_vocabulary(source.all_pieces())
    spec.register_target_vocabulary(target.all_pieces())
    for name, value in ctranslate2_settings(target, config.start_ids[0]).items():
        setattr(spec.config, name, value)
    spec.encoder.embeddings[0].weight = _array(model.embeddings.source_matrix)
    spec.decoder.embeddings.weight = _array(model.embeddings.target_matrix)
    spec.decoder.projection.weight = _array(model.embeddings.output_matrix)
    bias = model.embeddings.output_bias
    if bias is not None:
        spec.decoder.projection.bias = _array(bias)
    if config.start_ids[0] == PAD:
        if bias is None:
            spec.decoder.projection.bias = np.zeros(target.vocab_size, dtype=np.float32)
        spec.decoder.projection.bias[PAD] = _NEVER
    for stack, described in ((model.encoder, spec.encoder), (model.decoder, spec.decoder)):
        if not config.scaled_embeddings:
            described.scale_embeddings = False
        if has_table_of_positions(config):
            table_PD = model.embeddings.positions(_NUM_POSITIONS)[:_NUM_POSITIONS]
            described.position_encodings.encodings = _array(table_PD)
        layers: Any = stack.layers
        for layer, layer_spec in zip(layers, described.layer, strict=True):
            _put_layer(layer, layer_spec)
        if config.norm == "pre":
            _put_norm(stack.norm, described.layer_norm)
    if quantization == "int8":
        quantize_weights(spec)
    spec.validate()
    spec.optimize(quantization="float16" if quantization == "float16" else None)
    spec.save(str(directory))


def ctranslate2_settings(target: Vocabulary, start_id: int) -> dict[str, str | bool | None]:
    """The settings of config.json on which translations depend."""
    unknown, end, start = target.pieces([UNK, EOS, start_id])
    return {
        "unk_token": unknown,
        "eos_token": end,
        "decoder_start_token": start,
        "add_source_bos": False,
        "add_source_eos": True,
        "layer_norm_epsilon": None,
        "multi_query_attention": False,
    }


def has_table_of_positions(config: ModelConfig) -> bool:
    """Whether CTranslate2 must be given the positions, since it would compute others."""
    return (config.positions, config.first_position) != ("tensor2tensor", 1)


def _put_layer(layer: Any, spec: Any) -> None:
    """Copy an encoder's or a decoder's layer into its description for CTranslate2."""
    own = layer.self_attention
    _put_linear(own.query_key_value, spec.self_attention.linear[0])
    _put_linear(own.output, spec.self_attention.linear[1])
    _put_norm(layer.self_attention_residual.norm, spec.self_attention.layer_norm)
    if hasattr(layer, "cross_attention"):
        cross = layer.cross_attention
        linears = (cross.query, cross.key_value, cross.output)
        for linear, linear_spec in zip(linears, spec.attention.linear, strict=True):
            _put_linear(linear, linear_spec)
        _put_norm(layer.cross_attention_residual.norm, spec.attention.layer_norm)
    feed_forward = layer.feed_forward
    _put_linear(feed_forward.output, spec.ffn.linear_1)
    if feed_forward.activation == "swiglu":
        weights, biases = feed_forward.input.weight.chunk(2), feed_forward.input.bias.chunk(2)
        halves = (spec.ffn.linear_0, spec.ffn.linear_0_noact)
        for half, weight, bias in zip(halves, weights, biases, strict=True):
            half.weight, half.bias = _array(weight), _array(bias)
    else:
        _put_linear(feed_forward.input, spec.ffn.linear_0)
    _put_norm(layer.feed_forward_residual.norm, spec.ffn.layer_norm)


def _put_linear(linear: nn.Linear, spec: Any) -> None:
    spec.weight = _array(linear.weight)
    if linear.bias is not None:
        spec.bias = _array(linear.bias)


def _put_norm(norm: Any, spec: Any) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    """A copy in fp32, since CTranslate2 quantizes in place."""
    return np.array(tensor.detach().float().cpu().numpy(), order="C")


def quantize_weights(spec: Any) -> None:
    """Convert a spec's matrices to int8, with a scale for each row; the rest stays fp32."""
    from ctranslate2.specs.model_spec import visit_spec

    def quantize(layer: Any, name: str, value: Any) -> None:
        attribute = name.rsplit("/", 1)[-1]
        if not hasattr(layer, f"{attribute}_scale") or not isinstance(value, np.ndarray):
            return
        largest = np.abs(value).max(axis=1)
        scale = (_INT8_LEVELS / np.where(largest > 0, largest, 1.0)).astype(np.float32)
        setattr(layer, attribute, np.rint(value * scale[:, None]).astype(np.int8))
        setattr(layer, f"{attribute}_scale", scale)

    visit_spec(spec, quantize)
