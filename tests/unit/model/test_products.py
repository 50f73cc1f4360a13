from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from dragoman.model import products
from dragoman.model.attention import Linear
from dragoman.model.loss import smoothed_cross_entropy


@pytest.fixture(params=[True, False], ids=["onednn", "mkl"])
def onednn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Either library, whatever the processor."""
    chosen = bool(request.param)
    monkeypatch.setattr(products, "mkl_is_slow", lambda: chosen)
    monkeypatch.setattr(products, "LEAST_MULTIPLICATIONS", 100)
    return chosen


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_product_equals_pytorchs(onednn: bool, turned: bool, with_bias: bool) -> None:
    x_NI = torch.randn(70, 30).t() if turned else torch.randn(30, 70)
    weight_OI = torch.randn(70, 50).t() if turned else torch.randn(50, 70)
    bias_O = torch.randn(50) if with_bias else None
    assert products.prefers_onednn(x_NI, weight_OI) == onednn
    torch.testing.assert_close(
        products.project(x_NI, weight_OI, bias_O, memory_NO=torch.empty(30, 50)),
        F.linear(x_NI, weight_OI, bias_O),
    )


@pytest.mark.parametrize(("d_in", "d_out"), [(20, 50), (50, 20)])
def test_gradients_of_a_layer_equal_pytorchs(onednn: bool, d_in: int, d_out: int) -> None:
    layer = Linear(d_in, d_out)
    x_NI = torch.randn(30, d_in, requires_grad=True)
    upstream_NO = torch.randn(30, d_out)
    inputs = [x_NI, *layer.parameters()]
    theirs = F.linear(x_NI, layer.weight, layer.bias)
    torch.testing.assert_close(
        torch.autograd.grad(layer(x_NI), inputs, upstream_NO),
        torch.autograd.grad(theirs, inputs, upstream_NO),
    )


def test_gradients_of_the_loss_equal_pytorchs(onednn: bool) -> None:
    x_ND = torch.randn(40, 24, requires_grad=True)
    weight_VD = torch.randn(60, 24, requires_grad=True)
    target_N = torch.randint(0, 60, (40,))
    ours = smoothed_cross_entropy(x_ND, weight_VD, target_N, smoothing=0.1).loss
    theirs = F.cross_entropy(x_ND @ weight_VD.t(), target_N, label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours, [x_ND, weight_VD]), torch.autograd.grad(theirs, [x_ND, weight_VD])
    )


def test_other_types_and_small_products_are_left_to_pytorch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(products, "mkl_is_slow", lambda: True)
    large = torch.randn(512, 512)
    assert products.prefers_onednn(large, large)
    assert not products.prefers_onednn(large[:64], large)
    assert not products.prefers_onednn(large.double(), large.double())
    assert not products.prefers_onednn(large.bfloat16(), large.bfloat16())


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="needs Linux's /proc/cpuinfo")
def test_intels_own_processors_keep_mkl() -> None:
    cpuinfo = Path("/proc/cpuinfo").read_text()
    products.mkl_is_slow.cache_clear()
    if "GenuineIntel" in cpuinfo or "avx512" not in cpuinfo:
        assert not products.mkl_is_slow()
    elif "AuthenticAMD" in cpuinfo and torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        assert products.mkl_is_slow()
