"""The server behind nginx and Caddy, as docs/how-to/serve.md configures them.

What a stock server does not stop by itself, clients that send or read slowly, nginx stops.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from processes import wait_until
from proxied import behind
from served import HealthWatch, Server, post, served_bundle, serving

TOKEN = "a-token-of-some-length"
GET = b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n"
LATE_S = 5.0
MOST_MB = 600
LONG = "A man in a red shirt is standing. " * 300


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One that trusts the proxy, and allows a client two requests at a time."""
    options = ("--threads", "1", "--requests-per-client", "2", "--trusted-proxy", "127.0.0.1")
    with serving(served_bundle(), *options, token=TOKEN) as server:
        yield server


@pytest.fixture(scope="module")
def nginx() -> Iterator[Server]:
    """A server behind nginx: of connections it has those of nginx alone."""
    with (
        serving(served_bundle(), "--threads", "1", "--trusted-proxy", "127.0.0.1") as server,
        behind("nginx", server) as proxied,
    ):
        yield proxied


def file_link(server: Server, **headers: str) -> str:
    form = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in {"source": "en", "target": "de", "api_key": TOKEN}.items()
    )
    form += (
        '--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\na\r\n--x--\r\n'
    )
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = server.ask("/translate_file", form.encode(), headers=kind | headers)
    url: str = answer.json["translatedFileUrl"]
    return url


@pytest.mark.parametrize("proxy", ["nginx", "caddy"])
def test_people_and_programs_reach_the_server_through_a_proxy(server: Server, proxy: str) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    with behind(proxy, server) as proxied:
        assert proxied.ask("/").status == 401
        assert b"page.js" in proxied.ask("/", headers=bearer).body
        own = bearer | {"Origin": proxied.url}
        assert proxied.ask("/translate", {"text": "A man."}, headers=own).status == 200
        foreign = bearer | {"Origin": "https://elsewhere.example"}
        assert proxied.ask("/translate", {"text": "A man."}, headers=foreign).status == 403
        lines = proxied.ask("/translate/stream", {"text": "A man.\nA dog."}, headers=bearer)
        assert [json.loads(line)["index"] for line in lines.body.splitlines()] == [0, 1]
        link = file_link(proxied)
        assert link.startswith(f"{proxied.url}/download_file/")
        assert proxied.ask(link.removeprefix(proxied.url)).status == 200
        assert proxied.ask("/translate", {"text": "a" * 1_100_000}, headers=bearer).status == 413


def busy(server: Server, stack: ExitStack, source: str, forwarded: str = "") -> None:
    """Two requests from this address that are under way."""
    body = json.dumps({"text": LONG, "beam_size": 10}).encode()
    header = f"Authorization: Bearer {TOKEN}\r\n"
    header += f"X-Forwarded-For: {forwarded}\r\n" * bool(forwarded)
    request = post("/translate", body).replace(b"Host:", header.encode() + b"Host:")
    for _ in range(2):
        stack.enter_context(server.connect(source)).sendall(request)


def status_from(server: Server, source: str, forwarded: str = "") -> bytes:
    header = f"Authorization: Bearer {TOKEN}\r\n"
    header += f"X-Forwarded-For: {forwarded}\r\n" * bool(forwarded)
    request = f"GET /models HTTP/1.1\r\nHost: localhost\r\n{header}Connection: close\r\n\r\n"
    return server.exchange(request.encode(), source=source).split(b" ")[1]


def test_clients_behind_a_trusted_proxy_are_told_apart(server: Server) -> None:
    with behind("nginx", server) as proxied, ExitStack() as stack:
        busy(proxied, stack, "127.0.0.2")
        wait_until(lambda: status_from(proxied, "127.0.0.2") == b"429")
        assert status_from(proxied, "127.0.0.3") == b"200"
        assert status_from(proxied, "127.0.0.2", forwarded="10.0.0.1") == b"429", "nginx says who"


def test_a_forwarded_address_counts_only_from_a_trusted_proxy(server: Server) -> None:
    with ExitStack() as stack:  # 127.0.0.2 is no proxy that was named
        busy(server, stack, "127.0.0.2")
        wait_until(lambda: status_from(server, "127.0.0.2") == b"429")
        assert status_from(server, "127.0.0.2", forwarded="10.0.0.1") == b"429"
        assert status_from(server, "127.0.0.1", forwarded="10.0.0.1") == b"200"
    assert file_link(server, **{"X-Forwarded-Proto": "https"}).startswith("https://")
    with serving(served_bundle(), "--threads", "1") as untrusting:
        assert file_link(untrusting, **{"X-Forwarded-Proto": "https"}).startswith("http://")


def send_all_that_is_taken(connection: socket.socket, data: bytes) -> None:
    connection.setblocking(False)
    with suppress(BlockingIOError, ConnectionError):
        while data:
            data = data[connection.send(data) :]
    connection.settimeout(60)


def test_a_head_is_bounded_in_bytes_and_in_time(nginx: Server) -> None:
    with nginx.connect() as endless, suppress(ConnectionError):
        endless.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
        for _ in range(40):
            endless.sendall(b"a" * 500_000)
        assert endless.recv(1000)[9:12] in (b"400", b"")
    with nginx.connect() as slow, nginx.connect() as silent:
        slow.sendall(b"GET /health HTTP/1.1\r\n")
        began = time.monotonic()
        for connection in (slow, silent):
            assert connection.recv(1000)[9:12] in (b"", b"408")
        assert time.monotonic() - began < 30
    assert nginx.memory_mb < MOST_MB


def test_requests_sent_ahead_take_no_memory(nginx: Server) -> None:
    ahead = (GET % b"/openapi.json") * 5000
    with ExitStack() as stack:
        with HealthWatch(nginx) as health:
            for number in range(100):
                source = f"127.0.0.{2 + number // 50}"
                send_all_that_is_taken(stack.enter_context(nginx.connect(source)), ahead)
            time.sleep(3)
        assert (health.refused, health.worst_s < LATE_S) == (0, True)
        assert nginx.peak_memory_mb < MOST_MB


def test_clients_that_do_not_read_are_cut_off(nginx: Server) -> None:
    with ExitStack() as stack:
        deaf = [stack.enter_context(nginx.connect("127.0.0.5", read_bytes=4096)) for _ in range(50)]
        with HealthWatch(nginx) as health:
            for connection in deaf:
                send_all_that_is_taken(connection, (GET % b"/openapi.json") * 200)
            time.sleep(13)

            def num_open() -> int:
                return sum(not is_closed(connection.fileno()) for connection in deaf)

            wait_until(lambda: num_open() == 0, limit_s=60)
        assert (health.refused, health.worst_s < LATE_S) == (0, True)


def is_closed(descriptor: int) -> bool:
    """Whether the other side has closed or reset this connection, unread bytes or not."""
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


def test_one_address_leaves_connections_to_others(nginx: Server) -> None:
    waits = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
    with ExitStack() as stack:
        many = [stack.enter_context(nginx.connect("127.0.0.6")) for _ in range(80)]
        for connection in many:
            send_all_that_is_taken(connection, waits)
        refused = 0
        for connection in many:
            connection.settimeout(0.05)
            with suppress(TimeoutError):
                refused += connection.recv(1000)[9:12] == b"503"
        assert refused == 16, "64 connections of one address"
        assert nginx.ask("/translate", {"text": "A man."}).status == 200


@pytest.mark.parametrize(
    "request_",
    [
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
        b"Content-Length: 41\r\n\r\nGET /models HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\nHost: elsewhere.example\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        b"Content-Length: 4\r\n\r\n0\r\n\r\nGET /models HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["upgrade", "trailer", "two lengths"],
)
def test_a_request_within_a_request_reaches_nobody(nginx: Server, request_: bytes) -> None:
    with nginx.connect() as connection:
        connection.sendall(
            request_.replace(b"\r\n\r\n", b"\r\nContent-Type: text/plain\r\n\r\n", 1)
        )
        connection.settimeout(2)
        answer = b""
        with suppress(TimeoutError, ConnectionError):
            while part := connection.recv(65_536):
                answer += part
    assert b'"card"' not in answer
    assert answer.startswith(b"HTTP/1.1 4")
