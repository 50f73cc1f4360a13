"""Sinusoidal positions (Vaswani et al. 2017, section 3.5, in the form of tensor2tensor).

The first half of the width holds sines, the second half cosines, of D/2 wavelengths in geometric
progression from 2 pi to 10000 * 2 pi. The first token has position 1. So do Hugging Face's M2M100
(where PAD is 0, as here), OpenNMT-tf and CTranslate2, which therefore run our weights unchanged.

Shapes: P positions, D model width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sinusoids(num_positions: int, d_model: int) -> Tensor:
    """The table (P, D) of the first `num_positions` tokens of a sentence, in fp32."""
    num_wavelengths = d_model // 2
    step = math.log(10_000) / max(num_wavelengths - 1, 1)
    rates = torch.exp(torch.arange(num_wavelengths, dtype=torch.float32) * -step)
    angles = torch.arange(1, num_positions + 1, dtype=torch.float32)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)
