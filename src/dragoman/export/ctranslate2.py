"""Our model in CTranslate2's format, through its model specification.

Every architecture that a recipe can describe has its counterpart there. A length penalty of the
kind "gnmt" does not; `ctranslate2_engine` applies it to what CTranslate2 finds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from dragoman.base.errors import MachineError
from dragoman.corpus.subword import Subword
from dragoman.export.bundle import Quantization
from dragoman.model.attention import CrossAttention, SelfAttention
from dragoman.model.transformer import DecoderLayer, EncoderLayer, FeedForward, Transformer

_INT8_LEVELS: Final = 80
"""The largest weight of a row in int8. With 127, as CTranslate2's converter takes, sums of two
products overflow the 16 bits in which processors without VNNI make them, and are cut off there."""


def write_ctranslate2(
    model: Transformer,
    subwords: tuple[Subword, Subword],
    directory: Path,
    *,
    quantization: Quantization,
) -> None:
    """Write model.bin, config.json and the vocabularies into an existing directory.

    Raises MachineError where CTranslate2 is not installed.
    """
    try:
        from ctranslate2.specs.transformer_spec import TransformerSpec
    except ImportError as error:
        raise MachineError(
            "CTranslate2 is not installed", remedy="install it: pip install 'dragoman[serve]'"
        ) from error
    config = model.config
    spec = TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.num_heads,
        pre_norm=config.norm == "pre",
        activation=_activation(config.activation),
        ffn_glu=config.activation == "swiglu",
    )
    source, target = subwords
    spec.register_source_vocabulary(source.all_pieces())
    spec.register_target_vocabulary(target.all_pieces())
    spec.config.add_source_eos = True
    spec.config.decoder_start_token = "<s>"  # noqa: S105 - a piece
    spec.encoder.embeddings[0].weight = _array(model.embeddings.source_matrix)
    spec.decoder.embeddings.weight = _array(model.embeddings.target_matrix)
    spec.decoder.projection.weight = _array(model.embeddings.output_matrix)
    for stack, described in ((model.encoder, spec.encoder), (model.decoder, spec.decoder)):
        for layer, layer_spec in zip(stack.layers, described.layer, strict=True):
            assert isinstance(layer, EncoderLayer | DecoderLayer)
            _put_layer(layer, layer_spec)
        if isinstance(stack.norm, nn.LayerNorm):
            _put_norm(stack.norm, described.layer_norm)
    if quantization == "int8":
        quantize_weights(spec)
    spec.validate()
    spec.optimize(quantization="float16" if quantization == "float16" else None)
    spec.save(str(directory))


def _activation(name: str) -> Any:
    from ctranslate2.specs.common_spec import Activation

    return {"relu": Activation.RELU, "gelu": Activation.GELU, "swiglu": Activation.SWISH}[name]


def _put_layer(layer: EncoderLayer | DecoderLayer, spec: Any) -> None:
    _put_self_attention(layer.self_attention, layer.self_attention_residual.norm, spec)
    if isinstance(layer, DecoderLayer):
        _put_cross_attention(layer.cross_attention, layer.cross_attention_residual.norm, spec)
    _put_feed_forward(layer.feed_forward, spec.ffn)
    _put_norm(layer.feed_forward_residual.norm, spec.ffn.layer_norm)


def _put_self_attention(attention: SelfAttention, norm: nn.LayerNorm, spec: Any) -> None:
    _put_linear(attention.query_key_value, spec.self_attention.linear[0])
    _put_linear(attention.output, spec.self_attention.linear[1])
    _put_norm(norm, spec.self_attention.layer_norm)


def _put_cross_attention(attention: CrossAttention, norm: nn.LayerNorm, spec: Any) -> None:
    linears = (attention.query, attention.key_value, attention.output)
    for linear, linear_spec in zip(linears, spec.attention.linear, strict=True):
        _put_linear(linear, linear_spec)
    _put_norm(norm, spec.attention.layer_norm)


def _put_feed_forward(feed_forward: FeedForward, spec: Any) -> None:
    _put_linear(feed_forward.output, spec.linear_1)
    if feed_forward.activation != "swiglu":
        _put_linear(feed_forward.input, spec.linear_0)
        return
    gate, up = feed_forward.input.weight.chunk(2)
    gate_bias, up_bias = feed_forward.input.bias.chunk(2)
    spec.linear_0.weight, spec.linear_0.bias = _array(gate), _array(gate_bias)
    spec.linear_0_noact.weight, spec.linear_0_noact.bias = _array(up), _array(up_bias)


def _put_linear(linear: nn.Linear, spec: Any) -> None:
    spec.weight = _array(linear.weight)
    if linear.bias is not None:
        spec.bias = _array(linear.bias)


def quantize_weights(spec: Any) -> None:
    """Turn each row of a specification's matrices to int8, with its scale; the rest stays fp32."""
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


def _put_norm(norm: nn.LayerNorm, spec: Any) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> Any:
    """A copy, for CTranslate2 quantizes in place."""
    return tensor.detach().float().cpu().clone(memory_format=torch.contiguous_format).numpy()
