"""How fast the network is between the hosts and inside each of them, and how ranks lie on them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from dragoman.base import units
from dragoman.base.errors import ConfigError

NOMINAL_SHARE: Final = 0.945
"""Of a port's nominal rate, what all-reduce over TCP reaches (Gloo, 100 Mbit/s and 1 Gbit/s)."""
LATENCY_S: Final = 0.3e-3
"""One step of a ring between machines on one switch."""
_RANGE_BYTES_PER_S: Final = (1.0, 1e15)
"""What is typed beyond it is a slip; a plan would be made of infinities."""


@dataclass(frozen=True, slots=True)
class Inside:
    """What ranks of one host reach each other through.

    bytes_per_s: bus bandwidth of an all-reduce as nccl-tests count it, 2 (N-1)/N times the bytes
    that are summed over the seconds. source: where the figure comes from, for people.
    """

    name: str
    bytes_per_s: float
    source: str

    @classmethod
    def parse(cls, text: str) -> Inside:
        """A kind of link (nvlink3, pcie4, none) or what was measured (200GB/s).

        Raises ConfigError, which names the kinds, if the text is neither.
        """
        if known := INSIDES.get(text.strip().lower()):
            return known
        try:
            bytes_per_s = _rate(text)
        except ConfigError as error:
            raise ConfigError(
                f"{text!r} is no link inside a host",
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
        Inside("nvlink4", 370e9, "NCCL's authors, nccl-tests issue 212: rings on eight H100; with "
            "NVLS up to 480 GB/s"),
        Inside("nvlink5", 700e9, "assumed: NCCL's own limit of 720 GB/s for B200 (nccl issue 1807, "
            "where eight reach 830 GB/s with NVLS)"),
        Inside("pcie3", 10e9, "assumed: PCIe 4's rate halved"),
        Inside("pcie4", 20e9, "nccl-tests issue 178: A100s between which only PCIe 4 is"),
        Inside("pcie5", 28e9, "nccl issue 1639: eight GPUs on PCIe 5"),
        Inside("none", 5e9, "assumed: through the memory of the host, without peer to peer"),
    )
}  # fmt: skip
"""By what hosts.toml and --gpu-link call them."""
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
"""What GPUs of a kind usually have between them; PCIe cards of the same name have less."""
PCIE_INSIDES: Final = {"a100": "pcie4", "h100": "pcie5", "h200": "pcie5"}
"""What cards have between them if their driver's name says PCIe: their own generation of it."""
UNKNOWN_INSIDE: Final = "pcie3"
"""Of GPUs whose kind is not known."""


def inside_of(device_name: str) -> Inside:
    """What is between devices of this name, `v100` or what a driver calls them, in one host."""
    name = device_name.lower()
    if name == "cpu":
        return SHARED_MEMORY
    kind = next((link for gpu, link in GPU_INSIDES.items() if gpu in name), None)
    if kind is not None and "pcie" in name:
        kind = next((link for gpu, link in PCIE_INSIDES.items() if gpu in name), "pcie3")
    if kind is None:
        known = INSIDES[UNKNOWN_INSIDE]
        return Inside(known.name, known.bytes_per_s, f"{known.source}; the kind is not known")
    known = INSIDES[kind]
    return Inside(known.name, known.bytes_per_s, f"{known.source}; usual between {device_name}")


@dataclass(frozen=True, slots=True)
class Link:
    """What collectives get out of the slowest network interface, in each direction.

    bytes_per_s: payload a second of an all-reduce between hosts, both directions busy.
    latency_s: one message between two hosts. inside: what is between ranks of one host.
    source: where the figures come from, for people.
    """

    bytes_per_s: float
    latency_s: float = LATENCY_S
    inside: Inside = SHARED_MEMORY
    source: str = "measured"

    @classmethod
    def nominal(cls, bits_per_s: float) -> Link:
        """A port of this speed, of which TCP and the collectives leave 94.5%."""
        source = f"a port of {units.BIT_RATE.text(bits_per_s)}"
        return cls(bits_per_s / 8 * NOMINAL_SHARE, source=source)

    @classmethod
    def parse(cls, text: str) -> Link:
        """Bits are the speed of a port (100Mbit), bytes what was measured over it (12 MB/s).

        Raises ConfigError where the text is no rate, or none that a network has.
        """
        bytes_per_s = _rate(text)
        return cls.nominal(bytes_per_s * 8) if "bit" in text else cls(bytes_per_s)


@dataclass(frozen=True, slots=True)
class Layout:
    """How many ranks each host has; hosts may differ."""

    ranks_per_host: tuple[int, ...]

    @property
    def num_ranks(self) -> int:
        """Ranks of all hosts together."""
        return sum(self.ranks_per_host)

    @property
    def num_hosts(self) -> int:
        """Hosts."""
        return len(self.ranks_per_host)

    @property
    def most_ranks(self) -> int:
        """Ranks of the host that has the most."""
        return max(self.ranks_per_host)

    def extended(self, num_hosts: int) -> Layout:
        """With this many hosts in all, further ones being like the first."""
        more = (self.ranks_per_host[0],) * (num_hosts - self.num_hosts)
        return Layout(self.ranks_per_host[:num_hosts] + more)

    @classmethod
    def parse(cls, text: str) -> Layout:
        """`4`: four hosts of one rank each; `2+1`: two ranks on one host, one on another."""
        if not re.fullmatch(r"[1-9]\d{0,3}(\+[1-9]\d{0,3})*", text.strip()):
            raise ConfigError(
                f"{text!r} is no number of ranks",
                place="--ranks",
                remedy="write 4 for four hosts of one rank each, 2+1 for hosts of two and of one",
            )
        counts = tuple(int(part) for part in text.split("+"))
        return cls(counts if len(counts) > 1 else (1,) * counts[0])

    def __str__(self) -> str:
        if self.num_hosts == 1:
            return f"{_ranks(self.num_ranks)} on one host"
        if self.most_ranks == 1:
            return f"{self.num_ranks} hosts of one rank"
        if len(set(self.ranks_per_host)) == 1:
            return f"{self.num_hosts} hosts of {_ranks(self.most_ranks)}"
        return f"{self.num_hosts} hosts of {'+'.join(map(str, self.ranks_per_host))} ranks"


def _rate(text: str) -> float:
    bytes_per_s: float = units.BYTE_RATE.parse(text)
    least, most = _RANGE_BYTES_PER_S
    if not least <= bytes_per_s <= most:
        raise ConfigError(
            f"{text!r} is no rate of a network",
            place="--link",
            remedy="write for example 100Mbit",
        )
    return bytes_per_s


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
