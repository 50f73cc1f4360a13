"""This host's interfaces and sockets, as Linux reports them."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from dragoman.cluster.facts import InterfaceFacts
from dragoman.telemetry.host import NETWORK_INTERFACES, nominal_bits_per_s

LOOPBACK: Final = "lo"
_SIOCGIFADDR: Final = 0x8915
_LOSSES: Final = ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped")
_LISTENING: Final = "0A"
_REACH_S: Final = 15.0
"""How long a peer may take to accept a connection: other traffic may fill the queue of a slow link
for seconds."""


def addresses() -> dict[str, str]:
    """The IPv4 address of each interface that has one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
                found[name] = socket.inet_ntoa(answer[20:24])
    return found


def resolve(name: str) -> tuple[str, ...]:
    """The IPv4 addresses to which a name resolves on this host; none if it does not."""
    try:
        entries = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))


def route_to(peers: Iterable[str]) -> str | None:
    """The interface of the route to the first peer that has one; None if there is none."""
    by_address = {address: name for name, address in addresses().items()}
    for peer in peers:
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking,
        ):
            asking.connect((peer, 9))  # sends nothing, only chooses a route
            return by_address.get(asking.getsockname()[0])
    return None


def interface_facts(name: str) -> InterfaceFacts:
    """Facts from the kernel about an interface that has an address."""
    card = NETWORK_INTERFACES / name
    duplex = _text(card / "duplex")
    return InterfaceFacts(
        name=name,
        address=addresses()[name],
        speed_bits_per_s=nominal_bits_per_s(name),
        full_duplex={"full": True, "half": False}.get(duplex),
        mtu_bytes=_number(card / "mtu") or 0,
        errors=sum(_number(card / "statistics" / name) or 0 for name in _LOSSES),
    )


def unreachable(endpoints: Iterable[tuple[str, int]]) -> list[str]:
    """The endpoints (address:port) that do not accept a connection."""
    tried = list(endpoints)
    with ThreadPoolExecutor(len(tried) or 1) as pool:
        accepted = list(pool.map(_accepts, tried))
    return [
        f"{address}:{port}"
        for (address, port), is_open in zip(tried, accepted, strict=True)
        if not is_open
    ]


def _accepts(endpoint: tuple[str, int]) -> bool:
    try:
        socket.create_connection(endpoint, timeout=_REACH_S).close()
    except OSError:
        return False
    return True


def listening(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Addresses and ports at which these processes accept TCP connections."""
    inodes = {inode for pid in pids for inode in _sockets(pid)}
    return {
        (address, port)
        for table in ("tcp", "tcp6")
        for inode, address, port in _listeners(Path("/proc/net") / table)
        if inode in inodes
    }


def _sockets(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(descriptor.readlink())
                if target.startswith("socket:["):
                    yield target[8:-1]


def _listeners(table: Path) -> Iterator[tuple[str, str, int]]:
    """Inode, address and port of every listening socket in one of the kernel's tables."""
    for line in _text(table).splitlines()[1:]:
        fields = line.split()
        if fields[3] == _LISTENING:
            address, _, port = fields[1].rpartition(":")
            yield fields[9], _address(address), int(port, 16)


def _address(text: str) -> str:
    """An address from the kernel's hexadecimal words, each in the byte order of the machine."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, packed)


def _number(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
