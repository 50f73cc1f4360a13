"""The gradient noise scale (McCandlish et al. 2018, An empirical model of large-batch training).

The squared norm of a gradient over B target tokens is on average |G|^2 + tr(S) / B: G is the true
gradient, S the covariance of one token's gradient. Two batch sizes give both terms (appendix A.1).
An update with several micro-batches or ranks has two sizes at no extra cost: a part of its
gradient, and the whole. tr(S) / |G|^2 is the noise scale, in tokens. A batch far below it wastes
steps, and a batch far above it wastes text.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

MEASURE_EVERY: Final = 10
"""Steps between two measurements, each of which costs a pass over the gradients."""


def signal_and_noise(part_norm: Tensor, norm: Tensor, *, part_tokens: int, tokens: int) -> Tensor:
    """|G|^2 and tr(S), estimated without bias from one update: two numbers, on the device.

    norm: the norm of the mean gradient of the update's target tokens. part_norm: the norm of the
    part of it that comes from `part_tokens` of them. Either result may be negative by chance, so
    both are averaged over many updates before they are divided.
    """
    part_square = (part_norm * (tokens / part_tokens)) ** 2
    square = norm**2
    signal = (tokens * square - part_tokens * part_square) / (tokens - part_tokens)
    noise = (part_square - square) / (1 / part_tokens - 1 / tokens)
    return torch.stack([signal, noise]).double()
