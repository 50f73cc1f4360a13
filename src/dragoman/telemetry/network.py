"""The interface that the collectives use, as the kernel counts it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from dragoman.telemetry.events import Payload
from dragoman.telemetry.samples import NetworkSampled

_INTERFACES: Final = Path("/sys/class/net")
_VARIABLES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_MEGABIT: Final = 1e6


def collective_interface() -> str | None:
    """The interface that Gloo or NCCL was told to use; None where they choose one themselves."""
    for variable in _VARIABLES:
        name = os.environ.get(variable, "").split(",")[0].removeprefix("=")
        if name and (_INTERFACES / name).is_dir():
            return name
    return None


@dataclass(frozen=True, slots=True)
class Counters:
    """What the kernel has counted on one interface since it came up."""

    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int
    errors: int
    carrier_changes: int

    @classmethod
    def read(cls, interface: str) -> Counters | None:
        """The counters; None where there is no such interface any more."""
        directory = _INTERFACES / interface
        statistics = directory / "statistics"
        try:
            return cls(
                sent_bytes=_number(statistics / "tx_bytes"),
                received_bytes=_number(statistics / "rx_bytes"),
                sent_packets=_number(statistics / "tx_packets"),
                received_packets=_number(statistics / "rx_packets"),
                errors=_number(statistics / "tx_errors") + _number(statistics / "rx_errors"),
                carrier_changes=_number(directory / "carrier_changes"),
            )
        except OSError:
            return None


class NetworkProbe:
    """Sums of one interface between two tellings, and its busiest second."""

    names: ClassVar[str] = "counters of the interface"

    def __init__(self, interface: str) -> None:
        self._interface = interface
        self._sent_file = _INTERFACES / interface / "statistics" / "tx_bytes"
        self._before = Counters.read(interface)
        self._last: tuple[float, int] | None = None
        self._most: float | None = None

    def look(self) -> None:
        """Read the bytes that were sent."""
        try:
            now, sent = time.monotonic(), _number(self._sent_file)
        except OSError:
            self._last = None
            return
        if self._last is not None:
            seconds_s, count = now - self._last[0], sent - self._last[1]
            if seconds_s > 0 and count >= 0:
                self._most = max(self._most or 0.0, count / seconds_s)
        self._last = (now, sent)

    def tell(self, seconds_s: float) -> Iterator[Payload]:
        """The sums; nothing where the interface was away or came up anew meanwhile."""
        before, now = self._before, Counters.read(self._interface)
        most, self._most, self._before = self._most, None, now
        if before is None or now is None or now.sent_bytes < before.sent_bytes:
            return
        yield NetworkSampled(
            interface=self._interface,
            seconds_s=seconds_s,
            sent_bytes=now.sent_bytes - before.sent_bytes,
            received_bytes=now.received_bytes - before.received_bytes,
            sent_packets=now.sent_packets - before.sent_packets,
            received_packets=now.received_packets - before.received_packets,
            most_sent_bytes_per_s=None if most is None else round(most, 1),
            errors=now.errors - before.errors,
            nominal_bits_per_s=nominal_bits_per_s(self._interface),
            carrier_changes=now.carrier_changes - before.carrier_changes,
        )


def nominal_bits_per_s(interface: str) -> float | None:
    """What the port claims to carry; None where it claims nothing, as virtual ones do."""
    try:
        megabits = _number(_INTERFACES / interface / "speed")
    except OSError:
        return None
    return megabits * _MEGABIT if megabits > 0 else None


def _number(path: Path) -> int:
    return int(path.read_text())
