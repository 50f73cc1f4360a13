"""Adam and its surroundings: gradient norm, clipping, fp16 loss scaling, averaged weights.

Nothing here waits for the device: norms, scales and skips are tensors that stay on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from dragoman.training.config import OptimizerConfig


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Adam:
    """Fused Adam (Kingma and Ba 2015) or AdamW (Loshchilov and Hutter 2019) over trained weights.

    Weight decay is for matrices only: biases and the scales of LayerNorm never decay. Adam's is
    an L2 term in the gradient, AdamW's shrinks the weights themselves.
    The learning rate is 0 until `apply_gradients` sets it.
    """
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    decaying = [weight for weight in trained if weight.ndim >= 2]
    fixed = [weight for weight in trained if weight.ndim < 2]
    groups = [
        {"params": decaying, "weight_decay": config.weight_decay},
        {"params": fixed, "weight_decay": 0.0},
    ]
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    optimizer: torch.optim.Adam = kinds[config.kind](
        [group for group in groups if group["params"]],
        lr=0.0,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=True,
    )
    return optimizer


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The L2 norm of all gradients as one vector; a scalar on their device."""
    return torch.nn.utils.get_total_norm(
        [weight.grad for weight in parameters if weight.grad is not None]
    )


def apply_gradients(
    optimizer: torch.optim.Adam,
    norm: Tensor,
    *,
    learning_rate: float,
    clip_norm: float,
    loss_scale: Tensor | None,
) -> Tensor:
    """One step of the optimizer, unless a gradient is NaN or infinite; then nothing changes.

    norm: the norm of the true gradients, without the loss scale.
    clip_norm: gradients are scaled down to this norm if they exceed it; 0 never clips.
    loss_scale: the factor in the gradients.
    Returns whether the step was skipped, as a scalar of 0.0 or 1.0.

    Clipping, unscaling and skipping are part of the fused kernel, which divides each gradient as it
    reads it: they need no pass over memory of their own.
    """
    divisor = loss_scale
    if clip_norm > 0:
        excess = (norm / clip_norm).clamp(min=1.0)
        divisor = excess if divisor is None else divisor * excess
    skipped = torch.isfinite(norm).logical_not().float()
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.grad_scale = divisor  # type: ignore[attr-defined]  # as torch.amp.GradScaler does
    optimizer.found_inf = skipped  # type: ignore[attr-defined]
    optimizer.step()
    return skipped


class LossScaler:
    """Dynamic loss scaling for fp16 (Micikevicius et al. 2018), with PyTorch's numbers.

    scale: multiplies the loss. It halves when a step overflows and doubles after
        2000 good steps in a row.
    """

    GROWTH_INTERVAL = 2000
    MINIMUM = 1e-4
    """Below this, gradients overflow because the model diverges (fairseq's threshold)."""

    def __init__(self, device: torch.device, *, initial: float = 2.0**16) -> None:
        self.scale = torch.full((), initial, device=device)
        self._good_steps = torch.zeros((), device=device)

    def update(self, skipped: Tensor) -> None:
        """Record whether the last step overflowed, a scalar of 0.0 or 1.0."""
        good_steps = (self._good_steps + 1) * (1 - skipped)
        grown = (good_steps >= self.GROWTH_INTERVAL).float()
        self.scale *= (1 + grown) * (1 - 0.5 * skipped)
        self._good_steps = good_steps * (1 - grown)

    def state_dict(self) -> dict[str, float]:
        """Two numbers; waits for the device."""
        return {"scale": self.scale.item(), "good_steps": self._good_steps.item()}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from the result of `state_dict`."""
        self.scale.fill_(state["scale"])
        self._good_steps.fill_(state["good_steps"])


class Ema:
    """An exponential moving average of a model's weights.

    Early on the decay is (1 + step) / (10 + step), so that the random start fades quickly (as in
    TensorFlow and Marian).

    live: the tensors to average, by parameter, if they are not the model's weights themselves.
    """

    def __init__(
        self, model: nn.Module, decay: float, *, live: Sequence[Tensor] | None = None
    ) -> None:
        self._model = model
        self._names = [name for name, _ in model.named_parameters()]
        self._live: list[Tensor] = list(live or model.parameters())
        self._average = [weight.detach().clone() for weight in self._live]
        self._decay = decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after update number `step`."""
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._average, self._live, 1 - decay)

    def weights(self) -> dict[str, Tensor]:
        """The averages by parameter name; the tensors themselves, not copies."""
        return dict(zip(self._names, self._average, strict=True))

    def in_model(self) -> AbstractContextManager[None]:
        """Give the model the averages inside the block."""
        return lent(self._model, self._average)


@contextmanager
def lent(model: nn.Module, weights: Iterable[Tensor]) -> Iterator[None]:
    """Give a model other weights inside the block; nothing is copied."""
    own = [weight.data for weight in model.parameters()]
    for weight, other in zip(model.parameters(), weights, strict=True):
        weight.data = other
    try:
        yield
    finally:
        for weight, data in zip(model.parameters(), own, strict=True):
            weight.data = data
