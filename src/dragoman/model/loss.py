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

CHUNK_CELLS = 4 << 20
"""Logits that exist at a time."""


class LossSum(NamedTuple):
    """Sums over target tokens, in nats.

    loss: label-smoothed cross-entropy; differentiable.
    nll: negative log-likelihood, without smoothing; detached.
    """

    loss: Tensor
    nll: Tensor


def smoothed_cross_entropy(
    x_ND: Tensor, weight_VD: Tensor, target_N: Tensor, *, smoothing: float, real_N: Tensor | None
) -> LossSum:
    """The loss of softmax(x_ND @ weight_VD.T) against target_N.

    smoothing: share of the probability spread evenly over all V pieces, the right one included
        (as torch.nn.functional.cross_entropy defines it).
    real_N: which rows count; None where all do.
    """
    loss, nll = _ChunkedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        x_ND, weight_VD, target_N, smoothing, real_N, torch.is_grad_enabled()
    )
    return LossSum(loss, nll)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """The forward pass makes the gradients as well, while a chunk's probabilities are at hand."""

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        target_N: Tensor,
        smoothing: float,
        real_N: Tensor | None,
        with_gradients: bool,
    ) -> tuple[Tensor, Tensor]:
        dtype = _matmul_dtype(x_ND)
        x_input_dtype, x_ND, typed_VD = x_ND.dtype, x_ND.to(dtype), weight_VD.to(dtype)
        rows = max(1, CHUNK_CELLS // weight_VD.shape[0])
        sums = torch.zeros(2, device=x_ND.device)
        grad_x_ND = torch.empty_like(x_ND)
        grad_weight_VD = torch.zeros_like(weight_VD)
        for start in range(0, x_ND.shape[0], rows):
            chunk = slice(start, start + rows)
            real_C = None if real_N is None else real_N[chunk]
            logits_CV = torch.mm(x_ND[chunk], typed_VD.t()).float()
            sums += _loss_to_gradient_(logits_CV, target_N[chunk], smoothing, real_C)
            if with_gradients:
                grad_CV = logits_CV.to(dtype)
                torch.mm(grad_CV, typed_VD, out=grad_x_ND[chunk])
                if dtype == weight_VD.dtype:
                    grad_weight_VD.addmm_(grad_CV.t(), x_ND[chunk])
                else:
                    grad_weight_VD += torch.mm(grad_CV.t(), x_ND[chunk])
        ctx.save_for_backward(grad_x_ND.to(x_input_dtype), grad_weight_VD)
        loss, nll = sums.unbind()
        loss, nll = loss.clone(), nll.clone()
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _grad_nll: Tensor) -> tuple[Tensor | None, ...]:
        grad_x_ND, grad_weight_VD = ctx.saved_tensors
        return grad_x_ND.mul_(grad_loss), grad_weight_VD.mul_(grad_loss), None, None, None, None


def _loss_to_gradient_(
    logits_CV: Tensor, target_C: Tensor, smoothing: float, real_C: Tensor | None
) -> Tensor:
    """Turn logits into the gradient of their loss, in place; returns (loss, nll) summed over rows.

    With p = softmax(z) and q = 1 - smoothing on the target plus smoothing / V everywhere,
    loss = logsumexp(z) - q.z, and its gradient is p - q.
    """
    vocab_size = logits_CV.shape[1]
    target_C1 = target_C[:, None]
    target_logits_C1 = logits_CV.gather(1, target_C1)
    mean_logits_C1 = logits_CV.sum(1, keepdim=True) / vocab_size
    log_sums_C1 = logits_CV.logsumexp(1, keepdim=True)
    logits_CV.sub_(log_sums_C1).exp_().sub_(smoothing / vocab_size)
    logits_CV.scatter_add_(1, target_C1, torch.full_like(target_logits_C1, smoothing - 1))
    nll_C1 = log_sums_C1 - target_logits_C1
    loss_C1 = log_sums_C1 - (1 - smoothing) * target_logits_C1 - smoothing * mean_logits_C1
    both_C2 = torch.cat([loss_C1, nll_C1], dim=1)
    if real_C is not None:
        logits_CV.mul_(real_C[:, None])
        both_C2 = both_C2 * real_C[:, None]
    return both_C2.sum(0)


def _matmul_dtype(x: Tensor) -> torch.dtype:
    """What autocast would multiply in; a custom function has to ask for itself."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
