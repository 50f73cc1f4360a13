from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dragoman.model.attention import Linear


@pytest.mark.parametrize(("d_in", "d_out"), [(5, 12), (12, 5), (6, 6)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("num_tokens", [0, 1, 17])
def test_values_and_gradients_equal_pytorch(
    d_in: int, d_out: int, bias: bool, num_tokens: int
) -> None:
    layer = Linear(d_in, d_out, bias=bias)
    x_NI = torch.randn(num_tokens, d_in, requires_grad=True)
    inputs = [x_NI, *layer.parameters()]
    ours, theirs = layer(x_NI), F.linear(x_NI, layer.weight, layer.bias)
    torch.testing.assert_close(ours, theirs)
    upstream_NO = torch.randn(num_tokens, d_out)
    torch.testing.assert_close(
        torch.autograd.grad(ours, inputs, upstream_NO),
        torch.autograd.grad(theirs, inputs, upstream_NO),
    )


def test_gradients_are_kept_in_the_memory_order_of_the_weights() -> None:
    layer = Linear(5, 12)
    layer(torch.randn(3, 5)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.stride() == layer.weight.stride()


def test_autocast_multiplies_in_its_own_type() -> None:
    layer = Linear(5, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(torch.randn(3, 5))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32
