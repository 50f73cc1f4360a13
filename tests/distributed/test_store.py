"""The store in which ranks of several hosts meet: where it listens, what strangers can do."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from dragoman.base.errors import MachineError
from dragoman.cluster import network
from dragoman.cluster.join import StoreProcess
from dragoman.distributed.rendezvous import StoreAddress
from dragoman.distributed.store import connect, serve
from processes import LOOPBACK, listening_addresses

GARBAGE = {
    "a browser": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "zeros": bytes(4096),
    "ones": b"\xff" * 4096,
    "noise": random.Random(7).randbytes(1 << 16),
    "nothing": b"",
    # A good beginning of PyTorch's protocol (TCPStoreBackend.hpp: VALIDATE and its number, SET),
    # then a key of 2^63 - 1 bytes.
    "an endless key": b"\x00" + struct.pack("<IBQ", 0x3C85F7CE, 1, (1 << 63) - 1) + b"key",
}


def test_garbage_and_a_wrong_token_leave_the_values_of_the_ranks() -> None:
    with closing(StoreProcess("127.0.0.1")) as process:
        port = process.port
        where = StoreAddress("127.0.0.1", port, "0123456789abcdef")
        ours = connect(where, prefix="run")
        ours.set("key", "value")
        for sent in GARBAGE.values():
            with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
                stranger.settimeout(0.5)
                with contextlib.suppress(OSError):  # it waits for more, or has hung up
                    stranger.sendall(sent)
                    stranger.shutdown(socket.SHUT_WR)
                    stranger.recv(100)
        assert ours.get("key") == b"value"
        other = connect(StoreAddress("127.0.0.1", port, "another"), prefix="run")
        assert not other.check(["key"])
        late = connect(where, prefix="run")  # who comes after them still gets in
        assert late.get("key") == b"value"


def test_the_store_listens_on_its_given_address_alone() -> None:
    with closing(StoreProcess("127.0.0.1")) as process:
        port = process.port
        connect(StoreAddress("127.0.0.1", port, "token"), prefix="run").set("key", "value")
        mine = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdecimal() and _is_store(entry)
        ]
        assert {listening_addresses(pid) == {LOOPBACK} for pid in mine} == {True}
        assert network.unreachable([("127.0.0.1", port)]) == []
        assert network.unreachable([("127.0.0.2", port)]) == [f"127.0.0.2:{port}"]


def _is_store(entry: Path) -> bool:
    try:
        words = (entry / "cmdline").read_bytes().split(b"\0")
        parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        return False
    return b"dragoman.distributed.store" in words and int(parent) == os.getpid()


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(MachineError, match=r"cannot listen at 203\.0\.113\.1"):
        StoreProcess("203.0.113.1")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_store_takes_its_given_port(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.create_server((address, 0), family=family) as free:
            port = free.getsockname()[1]
    except OSError:
        pytest.skip(f"this machine has no {address}")
    store = serve(address, port=port)
    assert store.port == port
    connect(StoreAddress(address, port, "token"), prefix="run").set("key", "value")
    # Another run, and another part of the same run, have a place of their own in it.
    for token, prefix, there in (
        ("token", "run", True),
        ("token", "b", False),
        ("a", "run", False),
    ):
        assert connect(StoreAddress(address, port, token), prefix=prefix).check(["key"]) is there


@pytest.mark.system
def test_peers_may_connect_before_the_store_runs_and_it_ends_with_its_input() -> None:
    program = [sys.executable, "-P", "-m", "dragoman.distributed.store"]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        where = StoreAddress("127.0.0.1", listener.getsockname()[1], "token")
        number = listener.fileno()
        assert network.unreachable([(where.address, where.port)]) == []
        process = subprocess.Popen(
            [*program, str(number)], stdin=subprocess.PIPE, pass_fds=[number]
        )
    with process:
        connect(where, prefix="run").set("key", "value")
        assert connect(where, prefix="run").get("key") == b"value"
        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0
