"""Weights in int8, in the numbers that every processor multiplies without overflow."""

from __future__ import annotations

import numpy as np
import pytest

attention_spec = pytest.importorskip("ctranslate2.specs.attention_spec")

from dragoman.formats.ctranslate2 import quantize_weights  # noqa: E402 - it needs CTranslate2


def test_rows_are_rounded_to_their_own_scale() -> None:
    rng = np.random.default_rng(1)
    weights = rng.uniform(-1, 1, (8, 64)).astype(np.float32) * np.geomspace(1e-6, 1e3, 8)[:, None]
    weights[3] = 0.0
    layer = attention_spec.MultiHeadAttentionSpec(self_attention=True)
    layer.linear[0].weight = weights.astype(np.float32)
    layer.linear[0].bias = rng.normal(size=8).astype(np.float32)
    before = layer.linear[0].bias.copy()
    quantize_weights(layer)
    linear = layer.linear[0]
    assert linear.weight.dtype == np.int8
    assert np.array_equal(linear.bias, before)
    largest = np.abs(linear.weight.astype(int)).max(axis=1)
    assert np.array_equal(largest, [80, 80, 80, 0, 80, 80, 80, 80])
    back = linear.weight / linear.weight_scale[:, None]
    assert np.all(np.abs(back - weights) <= 0.501 / linear.weight_scale[:, None])


def test_sums_of_two_products_seldom_overflow_sixteen_bits() -> None:
    """Inputs are of eight bits, too, and moved by 128 if a processor has no VNNI."""
    rng = np.random.default_rng(2)
    layer = attention_spec.MultiHeadAttentionSpec(self_attention=True)
    layer.linear[0].weight = rng.uniform(-1, 1, (256, 256)).astype(np.float32)
    quantize_weights(layer)
    rows = rng.normal(size=(64, 256))
    inputs = np.rint(rows * (127 / np.abs(rows).max(axis=1, keepdims=True))) + 128
    products = inputs[:, None, :].astype(int) * layer.linear[0].weight.astype(int)[None]
    pairs = products[..., ::2] + products[..., 1::2]
    overflown = np.abs(pairs) > np.iinfo(np.int16).max
    assert overflown.mean() < 1e-4
