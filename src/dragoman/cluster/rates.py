"""Speeds of devices, of links inside a host and of networks, each with the source of the figure.

Every source begins with one of these words: measured (by dragoman), published (by others),
calculated, given (by the user) or assumed. A measurement by doctor is better than any line of these
tables.
"""

from __future__ import annotations

import difflib
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
"""Seconds of one message of a ring between hosts, if doctor has not measured it."""
LATENCY_SOURCE: Final = "assumed: one switch between the hosts"
LAYER_S: Final = 16.6e-3 / 8
"""The time in which a GPU's host can start the kernels of one layer: forward, backward and Adam.

An H100's host took 16.6 ms for an update of a model with four and four layers, of which the GPU
worked for 2.9 ms (benchmarks/HISTORY.md, "On a GPU").
"""
LAYER_SOURCE: Final = "assumed: 2.1 ms a layer, as one H100's host took with a small model"
FLOP_PER_BIG_TOKEN: Final = 1.258e9
"""Forward and backward matrix products of Transformer-big, for a source and a target token."""
FLOP_PER_BASE_TOKEN: Final = 183e6
"""Forward and backward matrix products of Transformer-base, for a source or a target token."""
_FP32_SHARE: Final = 8_742 * FLOP_PER_BIG_TOKEN / 15.7e12
"""The share of its fp32 peak that a V100 reaches in NVIDIA's table, 70%."""
_A100_SHARE: Final = 82_059 * FLOP_PER_BIG_TOKEN / 312e12
"""The share of its dense bf16 peak that an A100 reaches in that table, 33%."""
ONE_WAY: Final = 0.6
"""A direction with less than this share of the opposite rate has a limit of its own."""
_RANGE_BYTES_PER_S: Final = (1.0, 1e15)
"""Values outside are typing mistakes; with larger ones a plan's figures would be infinite."""


@dataclass(frozen=True, slots=True)
class Device:
    """The useful arithmetic per second of one device with one rank, in a step without network.

    Useful arithmetic is the matrix products that the model needs. layer_s: see `LAYER_S`; 0 if no
    kernels have to be started. layer_source: the source of layer_s.
    """

    name: str
    flop_per_s: float
    source: str
    layer_s: float = LAYER_S
    layer_source: str = LAYER_SOURCE


_EXAMPLES: Final = "published: NVIDIA DeepLearningExamples, PyTorch, Transformer-big"
_FP32_GUESS: Final = "assumed: 70% of its fp32 peak, as a V100 reaches"
_H100: Final = 10.27e12 / 0.0402
_HALF: Final = (
    Device("p100", 2 * 25_000 * FLOP_PER_BASE_TOKEN / 0.4 / 8, "assumed: as in fp32"),
    Device("v100", 32_942 * FLOP_PER_BIG_TOKEN, f"{_EXAMPLES}, mixed, 32,942 tokens/s"),
    Device("a100", 82_059 * FLOP_PER_BIG_TOKEN, f"{_EXAMPLES}, mixed, 82,059 tokens/s"),
    Device("4090", _A100_SHARE * 165e12, "assumed: 33% of its dense bf16 peak, as an A100 reaches"),
    Device("h100", _H100, "measured: base, bf16, compiled, 55,400 tokens of both sides in 40.2 ms"),
    Device("h200", _H100, "assumed: as an H100, whose arithmetic it has"),
    Device("cpu", 120e9, "assumed: as in fp32", layer_s=0.0),
)
_FP32: Final = (
    Device(
        "p100",
        2 * 25_000 * FLOP_PER_BASE_TOKEN / 0.4 / 8,
        "published: Vaswani et al. 2017, base, 0.4 s a step of 25,000 tokens a side on 8",
    ),
    Device("v100", 8_742 * FLOP_PER_BIG_TOKEN, f"{_EXAMPLES}, FP32, 8,742 tokens/s"),
    Device("a100", _FP32_SHARE * 19.5e12, _FP32_GUESS),
    Device("4090", _A100_SHARE * 82.6e12, "assumed: 33% of its fp32 peak"),
    Device("h100", _FP32_SHARE * 67e12, _FP32_GUESS),
    Device("h200", _FP32_SHARE * 67e12, _FP32_GUESS),
    Device(
        "cpu",
        120e9,
        "measured: two hardware threads with AVX2, 2,100 to 2,700 target tokens/s of 45 MFLOP; "
        "assumed for others",
        layer_s=0.0,
    ),
)
DEVICES: Final = {
    "fp32": {one.name: one for one in _FP32},
    "half": {one.name: one for one in _HALF},
}
"""Devices by precision and name; TF32 is never used."""
WITHOUT_BF16: Final = frozenset({"p100", "v100", "t4"})


def device(name: str, precision: Precision = "bf16") -> Device:
    """The device of this name; for bf16, at its fp32 rate if it has no bf16.

    Raises ConfigError if the name is not known; the error suggests the closest name, or lists all.
    """
    name = name.lower()
    known = DEVICES["fp32" if precision == "fp32" else "half"]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"the known ones are {', '.join(known)}."
        raise ConfigError(
            f"the speed of {name!r} is not known",
            place="gpu",
            remedy=f"{remedy} For another give the compute of a step as --compute 0.25s",
        )
    if precision == "bf16" and name in WITHOUT_BF16:
        fp32 = DEVICES["fp32"][name]
        source = (
            f"assumed: it has no bf16 and is no faster than in fp32 ({fp32.source}); "
            "see --set train.precision=fp16"
        )
        return Device(name, fp32.flop_per_s, source)
    return known[name]


@dataclass(frozen=True, slots=True)
class Inside:
    """The link between ranks of one host.

    bytes_per_s: bus bandwidth of an all-reduce as in nccl-tests: 2 (N-1)/N times the bytes that are
    summed, divided by the seconds.
    """

    name: str
    bytes_per_s: float
    source: str

    @classmethod
    def parse(cls, text: str) -> Inside:
        """A kind of link (nvlink3, pcie4, none) or a measured rate (200GB/s).

        Raises ConfigError, which names the kinds, if the text is neither.
        """
        if known := INSIDES.get(text.strip().lower()):
            return known
        try:
            bytes_per_s = _rate(text)
        except ConfigError as error:
            raise ConfigError(
                f"{text!r} is not a link inside a host",
                place="gpu_link",
                remedy=f"write one of {', '.join(INSIDES)}, or a measured rate such as 200GB/s",
            ) from error
        return cls("given", bytes_per_s, "given")


INSIDES: Final = {
    known.name: known
    for known in (
        Inside("nvlink1", 60e9, "assumed: NVLink2's share of the nominal 80 GB/s each way"),
        Inside("nvlink2", 115e9, "assumed: NVLink3's share, 77%, of the nominal 150 GB/s each way"),
        Inside("nvlink3", 230e9, "assumed: 77% of the nominal 300 GB/s each way; nccl-tests issue "
            "149 has some 200 GB/s on eight A100"),
        Inside("nvlink4", 370e9, "published: NCCL's authors, nccl-tests issue 212, rings on eight "
            "H100; with NVLS up to 480 GB/s"),
        Inside("nvlink5", 700e9, "assumed: NCCL's own limit of 720 GB/s for B200 (nccl issue 1807, "
            "where eight reach 830 GB/s with NVLS)"),
        Inside("pcie3", 10e9, "assumed: PCIe 4's rate halved"),
        Inside("pcie4", 20e9, "published: nccl-tests issue 178, A100s with only PCIe 4 between"),
        Inside("pcie5", 28e9, "published: nccl issue 1639, eight GPUs on PCIe 5"),
        Inside("none", 5e9, "assumed: through the memory of the host, without peer to peer"),
    )
}  # fmt: skip
"""Links by their names in hosts.toml and --gpu-link."""
SHARED_MEMORY: Final = Inside("shared memory", 5e9, "assumed: Gloo between processes of one host")
GPU_INSIDES: Final = {
    "p100": "nvlink1",
    "v100": "nvlink2",
    "a100": "nvlink3",
    "h100": "nvlink4",
    "h200": "nvlink4",
    "b200": "nvlink5",
    "4090": "none",
}
"""The usual link between GPUs of a kind; PCIe cards of the same name have a slower one."""
PCIE_INSIDES: Final = {"a100": "pcie4", "h100": "pcie5", "h200": "pcie5"}
"""The link between cards whose driver name says PCIe: PCIe of their own generation."""
UNKNOWN_INSIDE: Final = "pcie3"
"""The link between GPUs of an unknown kind."""


def inside_of(device_name: str) -> Inside:
    """The link inside a host between devices of this name: `v100`, or a driver's name for them."""
    name = device_name.lower()
    if name == "cpu":
        return SHARED_MEMORY
    kind = next((link for gpu, link in GPU_INSIDES.items() if gpu in name), None)
    if kind is not None and "pcie" in name:
        kind = next((link for gpu, link in PCIE_INSIDES.items() if gpu in name), "pcie3")
    why = "the kind of GPU is not known" if kind is None else f"usual between {device_name}"
    known = INSIDES[kind or UNKNOWN_INSIDE]
    return Inside(known.name, known.bytes_per_s, f"{known.source}; assumed: {why}")


@dataclass(frozen=True, slots=True)
class Link:
    """The rate of collectives over the slowest network interface, in each direction.

    bytes_per_s: payload per second of an all-reduce between hosts, both directions busy.
    latency_s: the time that one message takes from one host to another.
    """

    bytes_per_s: float
    latency_s: float = LATENCY_S
    source: str = "measured"
    latency_source: str = LATENCY_SOURCE

    @classmethod
    def nominal(cls, bits_per_s: float) -> Link:
        """A port of this speed; TCP and the collectives leave 94.5% of it."""
        source = f"given: {NOMINAL_SHARE:.1%} of a port of {units.BIT_RATE.text(bits_per_s)}"
        return cls(bits_per_s / 8 * NOMINAL_SHARE, source=source)

    @classmethod
    def parse(cls, text: str) -> Link:
        """Bits are the speed of a port (100Mbit), bytes a measured rate (12 MB/s).

        Raises ConfigError if the text is not a rate, or not one that a network has.
        """
        bytes_per_s = _rate(text)
        if "bit" in text:
            return cls.nominal(bytes_per_s * 8)
        return cls(bytes_per_s, source="given as a measurement")


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


def parse_ranks(text: str) -> tuple[int, ...]:
    """Ranks of each host. `4`: four hosts of one; `2+1`: hosts of two and one; `2x8`: two of eight.

    Raises ConfigError if the text has none of these forms.
    """
    text = text.strip()
    if match := re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", text):
        return (int(match[2]),) * int(match[1])
    if not re.fullmatch(r"[1-9]\d{0,3}(\+[1-9]\d{0,3})*", text):
        raise ConfigError(
            f"{text!r} is not a number of ranks",
            place="--ranks",
            remedy="write 4 for four hosts of one rank each, 2+1 for hosts of two and of one, "
            "1x8 for one host of eight; each number is at most 9999",
        )
    counts = tuple(int(part) for part in text.split("+"))
    return counts if len(counts) > 1 else (1,) * counts[0]


def _rate(text: str) -> float:
    bytes_per_s: float = units.BYTE_RATE.parse(text)
    least, most = _RANGE_BYTES_PER_S
    if not least <= bytes_per_s <= most:
        raise ConfigError(
            f"{text!r} is not a network rate",
            place="--link",
            remedy="write for example 100Mbit",
        )
    return bytes_per_s
