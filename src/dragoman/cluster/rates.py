"""Speeds of devices, of links inside a host and of networks, each with the source of the figure.

Every source begins with one of these words: measured (by dragoman), published (by others),
calculated, given (by the user) or assumed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dragoman.base import units
from dragoman.base.errors import ConfigError
from dragoman.training.config import Precision

NOMINAL_SHARE: Final = 0.945
"""The share of a port's nominal rate that an all-reduce over TCP gets."""
NOMINAL_SOURCE: Final = (
    "measured: Gloo between two hosts, 100 Mbit/s and 1 Gbit/s; assumed for more hosts, faster "
    "ports and NCCL"
)
LATENCY_S: Final = 0.3e-3
"""Seconds of one message of a ring between hosts, if doctor has not measured it: one switch."""
LAYER_S: Final = 16.6e-3 / 8
LAYER_SOURCE: Final = "assumed: 2.1 ms a layer, as one H100's host took with a small model"
"""The time in which a GPU's host can start the kernels of one layer: forward, backward and Adam."""
SEVERAL_GPUS: Final = 0.85
SEVERAL_GPUS_SOURCE: Final = (
    "published: 81 to 90% for 4 to 16 A100 or V100 of one host, in 14 lines of NVIDIA "
    "DeepLearningExamples (PyTorch, Transformer); assumed for other GPUs, for two, between hosts"
)
"""The speed of several GPUs over that of as many single ones: in each step all wait for the
slowest."""
DILOCO_WEIGHT_S: Final = {
    "CPU": (18e-9, "measured: a core of an AMD EPYC (Zen 3); assumed for others"),
    "GPU": (0.5e-9, "assumed: 330 bytes of memory a weight, 40 kernels for each half a million"),
}
"""Seconds of DiLoCo's work on a weight from one exchange to the next, if doctor has not measured
it."""
ONE_WAY: Final = 0.6
"""A direction with less than this share of the opposite rate has a limit of its own."""
_RANGE_BYTES_PER_S: Final = (1.0, 1e15)
"""Values outside are typing mistakes; with larger ones a plan's figures would be infinite."""


@dataclass(frozen=True, slots=True)
class Device:
    """The useful arithmetic per second of one device with one rank, in a step without network.

    Useful arithmetic is the matrix products that the model needs. is_compiled: whether
    `torch.compile` had made the steps.
    """

    name: str
    flop_per_s: float
    source: str
    is_compiled: bool = False


_BIG: Final = 1.258e9
_BASE: Final = 366e6
"""FLOP of a source and a target token of Transformer-big and -base, forward and backward."""
_V100_SHARE: Final = 8_742 * _BIG / 15.7e12
_A100_SHARE: Final = 82_059 * _BIG / 312e12
_EXAMPLES: Final = "published: NVIDIA DeepLearningExamples, PyTorch, Transformer-big"
_AS_V100: Final = "assumed: 70% of its fp32 peak, as a V100 reaches"
_AS_A100: Final = "assumed: 33% of its dense peak, as an A100 reaches in bf16"
DEVICES: Final = {
    "fp32": {
        one.name: one
        for one in (
            Device("p100", 25_000 * _BASE / 0.4 / 8, "published: Vaswani et al. 2017, base, 8 of "
                "them, 0.4 s a step of 25,000 tokens a side"),
            Device("v100", 8_742 * _BIG, f"{_EXAMPLES}, FP32, 8,742 tokens/s"),
            Device("a100", _V100_SHARE * 19.5e12, _AS_V100),
            Device("4090", _A100_SHARE * 82.6e12, _AS_A100),
            Device("h100", _V100_SHARE * 67e12, _AS_V100),
            Device("h200", _V100_SHARE * 67e12, _AS_V100),
            Device("cpu", 120e9, "measured: two threads with AVX2, 2,100 to 2,700 tokens/s of 45 "
                "MFLOP; assumed for others"),
        )
    },
    "half": {
        one.name: one
        for one in (
            Device("v100", 32_942 * _BIG, f"{_EXAMPLES}, mixed, 32,942 tokens/s"),
            Device("a100", 82_059 * _BIG, f"{_EXAMPLES}, mixed, 82,059 tokens/s"),
            Device("4090", _A100_SHARE * 165e12, _AS_A100),
            Device("h100", 10.27e12 / 0.0402, "measured: base, bf16, compiled, 55,400 tokens of "
                "both sides in 40.2 ms", is_compiled=True),
            Device("h200", 10.27e12 / 0.0402, "assumed: as an H100, whose arithmetic it has",
                is_compiled=True),
        )
    },
}  # fmt: skip
"""Devices by precision and name; TF32 is never used."""
WITHOUT_BF16: Final = frozenset({"p100", "v100", "t4"})
_MAKERS: Final = ("nvidia", "geforce", "tesla", "rtx")


def device(name: str, precision: Precision = "bf16", *, tflops: float | None = None) -> Device:
    """The device of this name, such as v100 or "NVIDIA A100-SXM4-80GB"; at its fp32 rate if it is
    not known to be faster in half precision, or has no bf16.

    tflops: the vendor's dense peak in this precision, for a GPU that the table lacks.
    Raises ConfigError if the speed is neither known nor given.
    """
    if tflops is not None:
        source = f"given: a peak of {tflops:g} TFLOP/s; assumed: 33% of it, as an A100 reaches"
        return Device(name, _A100_SHARE * tflops * 1e12, source)
    words = [word for word in re.split(r"[\s_-]+", name.lower()) if word not in _MAKERS]
    kind = words[0] if words else ""
    in_fp32, in_half = DEVICES["fp32"].get(kind), DEVICES["half"].get(kind)
    if in_fp32 is None:
        raise ConfigError(
            f"the speed of {name!r} is not known",
            place="gpu",
            remedy=f"known are {', '.join(DEVICES['fp32'])}; for another give tflops, its "
            f"dense peak in {precision} (its data sheet has it), or compute, the time of a "
            "step",
        )
    if precision == "fp32":
        return in_fp32
    if in_half is not None and (precision == "fp16" or kind not in WITHOUT_BF16):
        return in_half
    return Device(kind, in_fp32.flop_per_s, f"assumed: as in fp32 ({in_fp32.source})")


@dataclass(frozen=True, slots=True)
class Link:
    """A link between hosts, or between the ranks of one.

    bytes_per_s: payload of an all-reduce per second through each end, in each direction, both busy;
    the bus bandwidth of nccl-tests. latency_s: the time that one message takes.
    """

    bytes_per_s: float
    source: str = "measured"
    latency_s: float = LATENCY_S

    @classmethod
    def nominal(cls, bits_per_s: float) -> Link:
        """A port of this speed; TCP and the collectives leave 94.5% of it."""
        source = f"given: {NOMINAL_SHARE:.1%} of a port of {units.BIT_RATE.text(bits_per_s)}"
        return cls(bits_per_s / 8 * NOMINAL_SHARE, source)

    @classmethod
    def parse(cls, text: str) -> Link:
        """Bits are the speed of a port (100Mbit), bytes a measured rate (12 MB/s).

        Raises ConfigError if the text is not a rate, or not one that a network has.
        """
        bytes_per_s: float = units.BYTE_RATE.parse(text)
        least, most = _RANGE_BYTES_PER_S
        if not least <= bytes_per_s <= most:
            raise ConfigError(
                f"{text!r} is not a network rate",
                place="link",
                remedy="write for example 100Mbit",
            )
        if "bit" in text:
            return cls.nominal(bytes_per_s * 8)
        return cls(bytes_per_s, "given as a measurement")


SHARED_MEMORY: Final = Link(5e9, "assumed: Gloo between processes of one host", 0.0)
_INSIDE: Final = {
    "pcie": Link(10e9, "assumed: half of what nccl-tests issue 178 has for PCIe 4", 0.0),
    "p100": Link(60e9, "assumed: 77% of NVLink's nominal 80 GB/s each way, as NVLink3", 0.0),
    "v100": Link(115e9, "assumed: 77% of NVLink2's nominal 150 GB/s each way, as NVLink3", 0.0),
    "a100": Link(230e9, "assumed: 77% of NVLink3's nominal 300 GB/s each way; nccl-tests issue 149 "
        "has some 200 GB/s on eight A100", 0.0),
    "h100": Link(370e9, "published: nccl-tests issue 212, rings on eight H100", 0.0),
    "h200": Link(370e9, "assumed: as an H100, whose NVLink4 it has", 0.0),
    "4090": Link(5e9, "assumed: through the memory of the host, without peer to peer", 0.0),
    "cpu": SHARED_MEMORY,
    "": Link(10e9, "assumed: PCIe, the kind of GPU is not known", 0.0),
}  # fmt: skip
"""The usual link inside a host, by the first of these words in a driver's name for its GPUs: cards
whose name says PCIe have no NVLink."""


def inside_of(device_name: str) -> Link:
    """The link inside a host between devices of this name: `v100`, or a driver's name for them."""
    name = device_name.lower()
    return next(link for word, link in _INSIDE.items() if word in name)


@dataclass(frozen=True, slots=True)
class Directions:
    """The rates at which a host's interface sends and receives, one at a time; infinite if
    unknown."""

    sends_bytes_per_s: float = math.inf
    receives_bytes_per_s: float = math.inf

    @property
    def slower_bytes_per_s(self) -> float:
        """The limit of an all-reduce, in which as much goes out as comes in."""
        return min(self.sends_bytes_per_s, self.receives_bytes_per_s)

    @property
    def faster_bytes_per_s(self) -> float:
        """The rate of the faster direction."""
        return max(self.sends_bytes_per_s, self.receives_bytes_per_s)

    @property
    def is_one_sided(self) -> bool:
        """Whether one direction has a limit of its own."""
        return self.slower_bytes_per_s < ONE_WAY * self.faster_bytes_per_s

    @property
    def limit(self) -> str:
        """The slower direction in words: `sends 2.36 MB/s and receives 23.6 MB/s`."""
        out = f"sends {units.BYTE_RATE.text(self.sends_bytes_per_s)}"
        into = f"receives {units.BYTE_RATE.text(self.receives_bytes_per_s)}"
        is_slow_out = self.sends_bytes_per_s <= self.receives_bytes_per_s
        return f"{out} and {into}" if is_slow_out else f"{into} and {out}"


UNKNOWN: Final = Directions()
"""The directions were not measured."""


def one_sided(ways: Sequence[Directions]) -> list[int]:
    """The numbers of the hosts that have a limit of their own in one direction.

    With only two hosts, the sender may be slow to send or the receiver slow to receive. Then the
    sender is named, as doctor does.
    """
    return [
        number
        for number, one in enumerate(ways)
        if one.is_one_sided and (len(ways) > 2 or one.sends_bytes_per_s < one.receives_bytes_per_s)
    ]
