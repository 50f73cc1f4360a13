from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dragoman.model.dropout import add_dropped, dropout, keep_mask, keep_scale


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_the_mask_has_the_given_probability_and_no_pattern(p: float) -> None:
    torch.manual_seed(1)
    keep = keep_mask(torch.Size([1000, 1001]), p).double()
    # Five standard deviations of the mean of a million draws.
    assert keep.mean().item() == pytest.approx(1 - p, abs=5 * (p * (1 - p) / 1e6) ** 0.5)
    dropped = 1 - keep
    for dim in (0, 1):
        neighbours = (dropped.narrow(dim, 0, 999) * dropped.narrow(dim, 1, 999)).mean().item()
        assert neighbours == pytest.approx(p * p, abs=0.003)
    assert keep.mean(0).std().item() == pytest.approx((p * (1 - p) / 1000) ** 0.5, rel=0.15)


@pytest.mark.parametrize("p", [0.0001, 0.1, 0.3, 0.9999])
def test_the_probability_is_right_to_sixteen_bits(p: float) -> None:
    assert 1 / keep_scale(p) == pytest.approx(1 - p, abs=2**-17)


def test_kept_elements_and_their_gradients_are_scaled_alike() -> None:
    torch.manual_seed(1)
    x = torch.randn(50, 60, requires_grad=True)
    y = dropout(x, 0.25, training=True)
    kept = y != 0
    torch.testing.assert_close(y[kept], x[kept] / 0.75)
    assert 0.70 < kept.float().mean().item() < 0.80
    upstream = torch.randn(50, 60)
    (gradient,) = torch.autograd.grad(y, x, upstream)
    torch.testing.assert_close(gradient, upstream * kept / 0.75)


def test_joining_the_stream_drops_the_answer_only() -> None:
    x, added = torch.randn(2, 40, 50).unbind()
    x.requires_grad_()
    added.requires_grad_()
    torch.manual_seed(2)
    dropped = dropout(added, 0.4, training=True)
    torch.manual_seed(2)
    joined = add_dropped(x, added, 0.4, training=True)
    torch.testing.assert_close(joined, x + dropped)
    upstream = torch.randn(40, 50)
    torch.testing.assert_close(
        torch.autograd.grad(joined, [x, added], upstream),
        torch.autograd.grad(x + dropped, [x, added], upstream),
    )


def test_nothing_is_dropped_outside_training_or_with_probability_zero() -> None:
    x = torch.randn(3, 4)
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0, training=True) is x
    torch.testing.assert_close(add_dropped(x, x, 0.5, training=False), 2 * x)


def test_the_seed_of_pytorch_decides() -> None:
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        masks.append(torch.stack([keep_mask(torch.Size([9, 9]), 0.5) for _ in range(2)]))
    assert masks[0].equal(masks[1])
    assert not masks[0].equal(masks[2])
    assert not masks[0][0].equal(masks[0][1])


def test_the_mean_is_that_of_pytorch() -> None:
    torch.manual_seed(3)
    x = torch.ones(1_000_000)
    ours, theirs = dropout(x, 0.1, training=True), F.dropout(x, 0.1)
    assert ours.mean().item() == pytest.approx(theirs.mean().item(), abs=0.003)
    assert ours.max().item() == pytest.approx(theirs.max().item(), rel=1e-4)
