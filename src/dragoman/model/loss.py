"""Label-smoothed cross-entropy that keeps no logits.

The logits of a whole batch are its largest tensor by far (4096 tokens x 32768 pieces are 512 MiB).
Here they are made for some rows at a time and turned into the loss and its gradients on the spot;
their memory is used again for the next rows.

Shapes: N target tokens, C rows in a chunk, D model width, V target vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dragoman.model.products import onednn_project, prefers_onednn, project

CPU_CHUNK_CELLS = 8 << 20
"""Logits that exist at a time: with fewer, the gradient of the weights is added to more often."""
GPU_CHUNK_CELLS = 128 << 20


_Step = Callable[[Tensor, Tensor, float, bool], tuple[Tensor | None, Tensor, Tensor]]


class LossSum(NamedTuple):
    """Sums over target tokens, in nats.

    loss: label-smoothed cross-entropy; differentiable, once.
    nll: negative log-likelihood, without smoothing; detached.
    """

    loss: Tensor
    nll: Tensor


def smoothed_cross_entropy(
    x_ND: Tensor,
    weight_VD: Tensor,
    target_N: Tensor,
    *,
    bias_V: Tensor | None = None,
    smoothing: float,
    compiled: bool = False,
) -> LossSum:
    """The loss of softmax(x_ND @ weight_VD.T + bias_V) against target_N.

    bias_V: gets no gradient.
    smoothing: share of the probability spread evenly over all V pieces, the right one included
        (as torch.nn.functional.cross_entropy defines it).
    compiled: on a GPU, torch.compile makes one kernel of the steps between the matrix products.
    """
    loss, nll = _ChunkedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        x_ND, weight_VD, target_N, bias_V, smoothing, torch.is_grad_enabled(), compiled
    )
    return LossSum(loss, nll)


def token_nll(
    x_ND: Tensor, weight_VD: Tensor, target_N: Tensor, *, bias_V: Tensor | None = None
) -> Tensor:
    """Negative log-likelihood of each target in nats, (N,) in fp32, without gradients."""
    dtype = _matmul_dtype(x_ND)
    x_ND, weight_VD = x_ND.detach().to(dtype), weight_VD.detach().to(dtype)
    cells = CPU_CHUNK_CELLS if x_ND.is_cpu else GPU_CHUNK_CELLS
    rows = max(1, cells // weight_VD.shape[0])
    nll_N = torch.empty(len(x_ND), device=x_ND.device)
    for start in range(0, len(x_ND), rows):
        logits_CV = project(x_ND[start : start + rows], weight_VD).float()
        if bias_V is not None:
            logits_CV.add_(bias_V.detach())
        target_C1 = target_N[start : start + rows, None]
        picked_C = logits_CV.gather(1, target_C1).squeeze(1)
        nll_N[start : start + rows] = logits_CV.logsumexp(1) - picked_C
    return nll_N


class _ChunkedCrossEntropy(torch.autograd.Function):
    """The forward pass makes the gradients as well, while a chunk's probabilities are at hand.

    With p the softmax of the logits z, e the smoothing and t the target, the loss of a row is
    (1 - e) * -log p_t + e * mean(-log p), and its gradient in z is p - (1 - e) * onehot(t) - e / V.
    The even part e / V is never spread over the V columns: it reaches the gradients through the
    sums of weight_VD and of x_ND, as mean(z) reaches the loss.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        target_N: Tensor,
        bias_V: Tensor | None,
        smoothing: float,
        with_gradients: bool,
        compiled: bool,
    ) -> tuple[Tensor, Tensor]:
        vocab_size = weight_VD.shape[0]
        even = smoothing / vocab_size
        dtype = _matmul_dtype(x_ND)
        x_ND, typed_VD = x_ND.to(dtype), weight_VD.to(dtype)
        weight_sum_D = weight_VD.sum(0, dtype=torch.float32)
        x_sum_D = x_ND.sum(0, dtype=torch.float32)
        if with_gradients:
            grad_x_ND = torch.empty_like(x_ND)
            grad_weight_VD = (x_sum_D * -even).repeat(vocab_size, 1)
        sum_nll = torch.zeros((), device=x_ND.device)
        sum_log_partition = torch.zeros((), device=x_ND.device)
        cells = CPU_CHUNK_CELLS if x_ND.is_cpu else GPU_CHUNK_CELLS
        rows = min(max(1, cells // vocab_size), max(1, x_ND.shape[0]))
        buffer_CV = torch.empty(rows, vocab_size, dtype=dtype, device=x_ND.device)
        step = _compiled_step() if compiled and x_ND.is_cuda else _step
        for start in range(0, x_ND.shape[0], rows):
            x_CD, target_C1 = x_ND[start : start + rows], target_N[start : start + rows, None]
            logits_CV = project(x_CD, typed_VD, memory_NO=buffer_CV[: len(x_CD)])
            if bias_V is not None:
                logits_CV.add_(bias_V)
            grad_CV, nll, log_partition = step(logits_CV, target_C1, smoothing, with_gradients)
            sum_nll += nll
            sum_log_partition += log_partition
            if grad_CV is not None:
                grad_x_ND[start : start + rows] = project(grad_CV, typed_VD.t())
                grad_weight_VD = _add_product(grad_weight_VD, grad_CV.t(), x_CD)
        if with_gradients:
            ctx.save_for_backward(grad_x_ND.sub_(weight_sum_D * even), grad_weight_VD)
        sum_mean_nll = sum_log_partition - torch.dot(x_sum_D, weight_sum_D) / vocab_size
        if bias_V is not None:
            sum_mean_nll -= bias_V.float().mean() * x_ND.shape[0]
        ctx.mark_non_differentiable(sum_nll)
        return (1.0 - smoothing) * sum_nll + smoothing * sum_mean_nll, sum_nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _grad_nll: Tensor) -> tuple[Tensor | None, ...]:
        grad_x_ND, grad_weight_VD = ctx.saved_tensors
        grads = grad_x_ND.mul_(grad_loss), grad_weight_VD.mul_(grad_loss)
        return *grads, None, None, None, None, None


def _step(
    logits_CV: Tensor, target_C1: Tensor, smoothing: float, with_gradients: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Logits -> p - (1 - e) * onehot(t), sum(-log p_t), sum(log sum exp z).

    The first has the type of the logits and may overwrite them; it is None without gradients.
    """
    dtype, logits_CV = logits_CV.dtype, logits_CV.float()
    target_logits_C1 = logits_CV.gather(1, target_C1)
    torch.log_softmax(logits_CV, 1, out=logits_CV)
    nll_C1 = -logits_CV.gather(1, target_C1)
    sums = nll_C1.sum(), (target_logits_C1 + nll_C1).sum()
    if not with_gradients:
        return None, *sums
    grad_CV = logits_CV.exp_()
    grad_CV.scatter_add_(1, target_C1, torch.full_like(nll_C1, smoothing - 1.0))
    return grad_CV.to(dtype), *sums


def _fused_step(
    logits_CV: Tensor, target_C1: Tensor, smoothing: float, with_gradients: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """`_step` for torch.compile, which makes one kernel of it.

    On a GPU each line of `_step` itself reads and writes all logits.
    """
    wide_CV = logits_CV.float()
    log_partition_C1 = wide_CV.logsumexp(1, keepdim=True)
    nll_C1 = log_partition_C1 - wide_CV.gather(1, target_C1)
    if not with_gradients:
        return None, nll_C1.sum(), log_partition_C1.sum()
    pieces_V = torch.arange(logits_CV.shape[1], device=logits_CV.device)
    grad_CV = (wide_CV - log_partition_C1).exp()
    grad_CV = grad_CV - (pieces_V == target_C1) * (1.0 - smoothing)
    return grad_CV.to(logits_CV.dtype), nll_C1.sum(), log_partition_C1.sum()


@functools.cache
def _compiled_step() -> _Step:
    """`_fused_step`, compiled once for any number of rows; on first use, as that takes a second."""
    compiled = torch.compile(_fused_step)

    def step(
        logits_CV: Tensor, target_C1: Tensor, smoothing: float, with_gradients: bool
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        for rows in (logits_CV, target_C1):
            torch._dynamo.maybe_mark_dynamic(rows, 0)
        return compiled(logits_CV, target_C1, smoothing, with_gradients)

    return step


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """total + left @ right; total may be of a wider type, and may be overwritten."""
    if prefers_onednn(left, right.t()):
        return total.add_(onednn_project(right.t(), left).t())
    if total.dtype == left.dtype:
        return total.addmm_(left, right)
    if total.is_cuda:
        return torch.addmm(total, left, right, out_dtype=total.dtype)
    return total.add_(torch.mm(left, right))


def _matmul_dtype(x: Tensor) -> torch.dtype:
    """Autocast's type for products, else x's own; a custom function must look it up itself."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
