"""The precision of training: the recipe's, or the faster one of each device."""

from __future__ import annotations

import functools
from typing import Final

import torch

from dragoman.distributed.world import World
from dragoman.training.config import Precision, TrainConfig
from dragoman.training.matrix_rate import matrix_flop_per_s

_CLEARLY_FASTER: Final = 1.25
"""bf16 over fp32: autocast converts weights in each step, so that a smaller gain is lost again.
Processors with instructions for bf16 multiply 1.8 to 2.2 times as fast, those without at a tenth
of the speed."""


def agreed_precision(train: TrainConfig, world: World) -> Precision:
    """The precision of all ranks: the recipe's; if that is "auto", the fastest that all have."""
    if train.precision != "auto":
        return train.precision
    found: list[Precision] = world.gather_json(fastest_precision(world.device.type))
    return "bf16" if set(found) == {"bf16"} else "fp32"


@functools.cache
def fastest_precision(device_type: str) -> Precision:
    """bf16 on GPUs that have it (Ampere and newer), and on processors that multiply clearly faster
    in it than in fp32; else fp32. A processor is measured once in a process, for about a second.

    fp16 is never chosen, as it needs a scale of the loss.
    """
    if device_type == "cuda":
        return "bf16" if torch.cuda.get_device_capability() >= (8, 0) else "fp32"
    fp32, bf16 = matrix_flop_per_s(torch.device(device_type), "fp32", "bf16")
    return "bf16" if bf16 > _CLEARLY_FASTER * fp32 else "fp32"
