from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from dragoman.model import loss as loss_module
from dragoman.model.loss import smoothed_cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("rows_in_a_chunk", [1, 5, 1000])
def test_equals_pytorch_in_value_and_gradients(
    smoothing: float, rows_in_a_chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "CPU_CHUNK_CELLS", rows_in_a_chunk * 31)
    torch.manual_seed(0)
    x_ND = (3 * torch.randn(23, 8)).requires_grad_()
    weight_VD = torch.randn(31, 8, requires_grad=True)
    target_N = torch.randint(31, (23,))
    for scale in (1.0, 0.25):
        ours = smoothed_cross_entropy(x_ND, weight_VD, target_N, smoothing=smoothing)
        logits_NV = x_ND @ weight_VD.T
        theirs = F.cross_entropy(logits_NV, target_N, label_smoothing=smoothing, reduction="sum")
        nll = F.cross_entropy(logits_NV, target_N, reduction="sum").detach()
        torch.testing.assert_close(ours.loss, theirs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours.nll, nll, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            torch.autograd.grad(scale * ours.loss, [x_ND, weight_VD]),
            torch.autograd.grad(scale * theirs, [x_ND, weight_VD]),
            rtol=1e-5,
            atol=1e-5,
        )


def test_large_logits_do_not_overflow() -> None:
    x_ND = torch.full((2, 4), 100.0)
    weight_VD = torch.eye(4)[:3] * 100
    target_N = torch.tensor([0, 1])
    ours = smoothed_cross_entropy(x_ND, weight_VD, target_N, smoothing=0.1)
    assert ours.nll.item() == pytest.approx(2 * torch.tensor(3.0).log().item(), abs=1e-2)


def test_evaluation_makes_no_gradients() -> None:
    x_ND = torch.randn(3, 4, requires_grad=True)
    with torch.no_grad():
        ours = smoothed_cross_entropy(
            x_ND, torch.randn(9, 4), torch.tensor([1, 2, 3]), smoothing=0.1
        )
    assert not ours.loss.requires_grad


class _Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most elements of any tensor that an operation made, other than views of `weight`."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0
        self._weight = weight.untyped_storage().data_ptr()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if not isinstance(tensor, torch.Tensor):
                continue
            if tensor.untyped_storage().data_ptr() != self._weight:
                self.elements = max(self.elements, tensor.numel())
        return made


def test_evaluation_keeps_no_memory_for_gradients() -> None:
    x_ND, weight_VD = torch.randn(3, 64), torch.randn(1000, 64)
    with torch.no_grad(), _Largest(weight_VD) as largest:
        smoothed_cross_entropy(x_ND, weight_VD, torch.tensor([1, 2, 3]), smoothing=0.1)
    assert largest.elements <= weight_VD.shape[0] * len(x_ND)
