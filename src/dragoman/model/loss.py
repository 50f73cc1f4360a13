"""Label-smoothed cross-entropy that keeps no logits.

The logits of a whole batch are its largest tensor by far (4096 tokens x 32768 pieces are 512 MiB).
Here they are made for some rows at a time, turned into the loss and its gradients on the spot, and
their memory used again for the next rows.

Shapes: N target tokens, C rows in a chunk, D model width, V target vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dragoman.model.products import onednn_project, prefers_onednn, project

CPU_CHUNK_CELLS = 8 << 20
"""Logits that exist at a time: with fewer, the gradient of the weights is added to more often."""
CHUNK_CELLS = 64 << 20


class LossSum(NamedTuple):
    """Sums over target tokens, in nats.

    loss: label-smoothed cross-entropy; differentiable, once.
    nll: negative log-likelihood, without smoothing; detached.
    """

    loss: Tensor
    nll: Tensor


def smoothed_cross_entropy(
    x_ND: Tensor, weight_VD: Tensor, target_N: Tensor, *, smoothing: float
) -> LossSum:
    """The loss of softmax(x_ND @ weight_VD.T) against target_N.

    smoothing: share of the probability spread evenly over all V pieces, the right one included
        (as torch.nn.functional.cross_entropy defines it).
    """
    loss, nll = _ChunkedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        x_ND, weight_VD, target_N, smoothing, torch.is_grad_enabled()
    )
    return LossSum(loss, nll)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """The forward pass makes the gradients as well, while a chunk's probabilities are at hand.

    With p the softmax of the logits z, e the smoothing and t the target, the loss of a row is
    (1 - e) * -log p_t + e * mean(-log p), and its gradient in z is p - (1 - e) * onehot(t) - e / V.
    The even part e / V never touches the V columns: it reaches the gradients, and mean(z) the loss,
    through the sums of weight_VD and of x_ND.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        target_N: Tensor,
        smoothing: float,
        with_gradients: bool,
    ) -> tuple[Tensor, Tensor]:
        vocab_size = weight_VD.shape[0]
        even = smoothing / vocab_size
        dtype = _matmul_dtype(x_ND)
        x_ND, typed_VD = x_ND.to(dtype), weight_VD.to(dtype)
        weight_sum_D = weight_VD.sum(0, dtype=torch.float32)
        x_sum_D = x_ND.sum(0, dtype=torch.float32)
        grad_x_ND = torch.empty_like(x_ND)
        grad_weight_VD = (x_sum_D * -even).repeat(vocab_size, 1)
        sum_nll = torch.zeros((), device=x_ND.device)
        sum_log_partition = torch.zeros((), device=x_ND.device)
        cells = CPU_CHUNK_CELLS if x_ND.is_cpu else CHUNK_CELLS
        rows = min(max(1, cells // vocab_size), max(1, x_ND.shape[0]))
        buffer_CV = torch.empty(rows, vocab_size, dtype=dtype, device=x_ND.device)
        for start in range(0, x_ND.shape[0], rows):
            x_CD, target_C1 = x_ND[start : start + rows], target_N[start : start + rows, None]
            logits_CV = project(x_CD, typed_VD, memory_NO=buffer_CV[: len(x_CD)]).float()
            target_logits_C1 = logits_CV.gather(1, target_C1)
            torch.log_softmax(logits_CV, 1, out=logits_CV)
            nll_C1 = -logits_CV.gather(1, target_C1)
            sum_nll += nll_C1.sum()
            sum_log_partition += (target_logits_C1 + nll_C1).sum()
            if with_gradients:
                grad_CV = logits_CV.exp_()
                grad_CV.scatter_add_(1, target_C1, torch.full_like(nll_C1, smoothing - 1.0))
                grad_CV = grad_CV.to(dtype)
                grad_x_ND[start : start + rows] = project(grad_CV, typed_VD.t())
                _add_product_(grad_weight_VD, grad_CV.t(), x_CD)
        ctx.save_for_backward(grad_x_ND.sub_(weight_sum_D * even), grad_weight_VD)
        sum_mean_nll = sum_log_partition - torch.dot(x_sum_D, weight_sum_D) / vocab_size
        ctx.mark_non_differentiable(sum_nll)
        return (1.0 - smoothing) * sum_nll + smoothing * sum_mean_nll, sum_nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _grad_nll: Tensor) -> tuple[Tensor | None, ...]:
        grad_x_ND, grad_weight_VD = ctx.saved_tensors
        return grad_x_ND.mul_(grad_loss), grad_weight_VD.mul_(grad_loss), None, None, None


def _add_product_(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, where total may be of a wider type than the product."""
    if prefers_onednn(left, right.t()):
        total += onednn_project(right.t(), left).t()
    elif total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += torch.mm(left, right)


def _matmul_dtype(x: Tensor) -> torch.dtype:
    """What autocast would multiply in; a custom function has to ask for itself."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
