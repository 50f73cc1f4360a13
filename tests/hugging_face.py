"""Our weights in the architecture of Hugging Face's M2M100, which is ours up to names."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

from dragoman.corpus.special_ids import BOS, EOS, PAD
from dragoman.model.transformer import DecoderLayer, EncoderLayer, Transformer


def to_m2m100(model: Transformer) -> Any:
    """An M2M100ForConditionalGeneration with the weights of a pre-norm, all-tied model."""
    transformers = pytest.importorskip("transformers")
    config = model.config
    theirs = transformers.M2M100ForConditionalGeneration(
        transformers.M2M100Config(
            vocab_size=model.embeddings.target_matrix.shape[0],
            d_model=config.d_model,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.d_ffn,
            decoder_ffn_dim=config.d_ffn,
            activation_function=config.activation,
            scale_embedding=True,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            decoder_start_token_id=BOS,
        )
    ).eval()
    loaded = theirs.load_state_dict(_weights(model), strict=False)
    assert not loaded.unexpected_keys
    assert all("embed" in key or key == "lm_head.weight" for key in loaded.missing_keys)  # tied
    theirs.tie_weights()
    return theirs


def _weights(model: Transformer) -> dict[str, Tensor]:
    """Our weights under their names."""
    weights: dict[str, Tensor] = {"model.shared.weight": model.embeddings.get_parameter("shared")}

    def put(name: str, module: nn.Linear | nn.LayerNorm) -> None:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = module.weight, module.bias

    def put_fused(name: str, parts: str, fused: nn.Linear) -> None:
        slices = zip(fused.weight.chunk(len(parts)), fused.bias.chunk(len(parts)), strict=True)
        for part, (weight, bias) in zip(parts, slices, strict=True):
            weights[f"{name}.{part}_proj.weight"] = weight
            weights[f"{name}.{part}_proj.bias"] = bias

    for stack in (model.encoder, model.decoder):
        side = "encoder" if stack is model.encoder else "decoder"
        for number, layer in enumerate(stack.layers):
            assert isinstance(layer, EncoderLayer | DecoderLayer)
            name = f"model.{side}.layers.{number}"
            put_fused(f"{name}.self_attn", "qkv", layer.self_attention.query_key_value)
            put(f"{name}.self_attn.out_proj", layer.self_attention.output)
            put(f"{name}.self_attn_layer_norm", layer.self_attention_residual.norm)
            if isinstance(layer, DecoderLayer):
                put(f"{name}.encoder_attn.q_proj", layer.cross_attention.query)
                put_fused(f"{name}.encoder_attn", "kv", layer.cross_attention.key_value)
                put(f"{name}.encoder_attn.out_proj", layer.cross_attention.output)
                put(f"{name}.encoder_attn_layer_norm", layer.cross_attention_residual.norm)
            put(f"{name}.fc1", layer.feed_forward.input)
            put(f"{name}.fc2", layer.feed_forward.output)
            put(f"{name}.final_layer_norm", layer.feed_forward_residual.norm)
        assert isinstance(stack.norm, nn.LayerNorm)
        put(f"model.{side}.layer_norm", stack.norm)
    return weights
