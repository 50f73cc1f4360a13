"""How fast the network between the hosts is, and how the ranks lie on them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from dragoman import units
from dragoman.errors import ConfigError

NOMINAL_SHARE: Final = 0.945
"""Of a port's nominal rate, what all-reduce over TCP reaches (Gloo, 100 Mbit/s and 1 Gbit/s)."""
LATENCY_S: Final = 0.3e-3
"""One step of a ring between machines on one switch."""
_RANGE_BYTES_PER_S: Final = (1.0, 1e15)
"""What is typed beyond it is a slip; a plan would be made of infinities."""
INSIDE_BYTES_PER_S: Final = 5e9
"""Between ranks of one host through PCIe or shared memory; NVLink is faster."""


@dataclass(frozen=True, slots=True)
class Link:
    """What collectives get out of the slowest network interface, in each direction.

    bytes_per_s: payload a second of an all-reduce between hosts, both directions busy.
    latency_s: one message between two hosts. inside_bytes_per_s: between ranks of one host.
    source: where the figures come from, for people.
    """

    bytes_per_s: float
    latency_s: float = LATENCY_S
    inside_bytes_per_s: float = INSIDE_BYTES_PER_S
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
        bytes_per_s = units.BYTE_RATE.parse(text)
        least, most = _RANGE_BYTES_PER_S
        if not least <= bytes_per_s <= most:
            raise ConfigError(
                f"{text!r} is no rate of a network",
                place="--link",
                remedy="write for example 100Mbit",
            )
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


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
