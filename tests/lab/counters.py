"""The bytes that a lab host has sent, by the counters of its kernel."""

from __future__ import annotations

from pathlib import Path

from dragoman.telemetry.host import interface_number
from lab.laboratory import INTERFACE

HEADER_BYTES = 66
"""Headers of Ethernet, IP and TCP with timestamps. They are 2 to 7% of what the interface counts:
it takes larger packets than 1,500 bytes from some senders, and from others it does not."""
SEGMENT_BYTES = 1448
"""Data of a packet of 1,500 bytes. Receivers that are short of time drop some packets, which are
sent again."""


def payload_sent() -> int:
    """Bytes that this host has sent so far, without headers, acknowledgements and repetitions."""
    packets = interface_number(INTERFACE, "statistics/tx_packets")
    lines = Path("/proc/net/snmp").read_text().splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    again = int(values[names.index("RetransSegs")])
    sent_bytes = interface_number(INTERFACE, "statistics/tx_bytes")
    return sent_bytes - HEADER_BYTES * packets - SEGMENT_BYTES * again
