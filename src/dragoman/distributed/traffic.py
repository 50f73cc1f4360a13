"""Bytes on the wire: by formula, and as the kernel counts them."""

from __future__ import annotations

from typing import NamedTuple

from dragoman.telemetry.host import interface_number


class InterfaceBytes(NamedTuple):
    """What an interface has received and sent since it came up."""

    received: int
    sent: int


def ring_all_reduce_bytes(payload_bytes: int, world_size: int) -> int:
    """What each of `world_size` ranks sends to sum a payload: 2 (N - 1) / N of it.

    Patarasuk and Yuan 2009: N - 1 parts of one N-th are passed round twice, first to add, then to
    tell the result. Headers are not counted.
    """
    return round(payload_bytes * 2 * (world_size - 1) / world_size)


def interface_bytes(interface: str) -> InterfaceBytes:
    """The kernel's counters of one interface, headers included.

    Raises FileNotFoundError where there is no such interface.
    """
    return InterfaceBytes(
        received=interface_number(interface, "statistics/rx_bytes"),
        sent=interface_number(interface, "statistics/tx_bytes"),
    )
