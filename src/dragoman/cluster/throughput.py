"""How fast one device trains a Transformer: useful arithmetic a second, with its source.

Useful: what the model's matrix products need, over the whole time of a step without network. A
doctor's measurement on the machine itself is better than any line of this table. FLOP of a model
are those of its matrix products forward and backward: 183 MFLOP for each source or target token
of Transformer-base, 1,258 MFLOP for a pair of them in Transformer-big.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final

from dragoman.base.errors import ConfigError

LEAST_STEP_S: Final = 0.02
"""A GPU's step is not shorter: some 2,000 kernels of a 6+6 Transformer, 10 µs to start each."""
_FLOP_PER_BIG_TOKEN: Final = 1.258e9
_FLOP_PER_BASE_TOKEN: Final = 183e6


@dataclass(frozen=True, slots=True)
class Device:
    """One device with one rank on it."""

    name: str
    flop_per_s: float
    source: str
    least_step_s: float = LEAST_STEP_S


def device(name: str) -> Device:
    """The device of this name; ConfigError names the nearest, or all."""
    if known := DEVICES.get(name.lower()):
        return known
    near = difflib.get_close_matches(name.lower(), DEVICES, n=1)
    remedy = f"did you mean {near[0]}?" if near else f"the known ones are {', '.join(DEVICES)}."
    raise ConfigError(
        f"the speed of {name!r} is not known",
        place="gpu",
        remedy=f"{remedy} For another give the compute of a step as --compute 0.25s",
    )


_KNOWN: Final = (
    Device(
        "p100",
        2 * 25_000 * _FLOP_PER_BASE_TOKEN / 0.4 / 8,
        "Vaswani et al. 2017: base, 0.4 s a step of 25,000 tokens a side on 8",
    ),
    Device(
        "v100",
        32_942 * _FLOP_PER_BIG_TOKEN,
        "NVIDIA DeepLearningExamples, PyTorch: big, mixed precision, 32,942 tokens/s",
    ),
    Device(
        "a100",
        82_059 * _FLOP_PER_BIG_TOKEN,
        "NVIDIA DeepLearningExamples, PyTorch: big, mixed precision, 82,059 tokens/s",
    ),
    Device("4090", 0.33 * 165e12, "not measured: an A100's share of its dense bf16 peak, 33%"),
    Device(
        "h100",
        10.27e12 / 0.0402,
        "measured: base, bf16, compiled, 55,400 source and target tokens in 40.2 ms",
    ),
    Device("h200", 10.27e12 / 0.0402, "an H100's: its arithmetic is the same, its memory faster"),
    Device(
        "cpu",
        120e9,
        "measured: two hardware threads, AVX2, fp32, 2,100 to 2,700 target tokens/s of 45 MFLOP",
        least_step_s=0.0,
    ),
)
DEVICES: Final = {known.name: known for known in _KNOWN}
