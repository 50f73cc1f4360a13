"""Connections to a real server: many of them, idle or broken off, and what their heads may say."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from dragoman.serve.protocol import MAX_CONNECTIONS
from processes import wait_until
from served import Server, post, served_bundle, serving

LONG = "A man in a red shirt is standing. " * 300
TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(served_bundle(), "--threads", "1") as server:
        yield server


@pytest.mark.parametrize("path", [b"/health", b"/models", b"/translate"])
def test_a_request_with_two_hosts_is_refused(server: Server, path: bytes) -> None:
    for first, second in ((b"elsewhere.example", b"localhost"), (b"localhost", b"localhost")):
        hosts = b"Host: " + first + b"\r\nHost: " + second + b"\r\nConnection: close\r\n\r\n"
        answer = server.exchange(b"GET " + path + b" HTTP/1.1\r\n" + hosts)
        assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("path", [b"/health", b"/models", b"/translate"])
def test_a_request_without_a_host_is_refused_unless_it_is_too_old_to_have_one(
    server: Server, path: bytes
) -> None:
    def status(version: bytes, headers: bytes) -> int:
        request = b"GET " + path + b" HTTP/" + version + b"\r\n" + headers
        return int(server.exchange(request + b"Connection: close\r\n\r\n").split()[1])

    asked = status(b"1.1", b"Host: localhost\r\n")
    assert asked in (200, 405)
    assert status(b"1.1", b"") == 400
    assert status(b"1.1", b"Host:\r\n") == asked  # of who asks for a name without an authority
    assert status(b"1.0", b"") == asked


def test_the_head_of_an_answer_can_be_asked_for_alone(server: Server) -> None:
    def head(server: Server, path: bytes) -> tuple[bytes, bytes]:
        request = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer, body = (
            server.exchange(method + b" " + path + request).partition(b"\r\n\r\n")[::2]
            for method in (b"HEAD", b"GET")
        )
        assert answer[1] == b""
        assert answer[0].split(b"\r\n")[0] == body[0].split(b"\r\n")[0]
        return answer[0], body[1]

    for path in (b"/health", b"/ready", b"/", b"/models"):
        answer, content = head(server, path)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"content-length: %d" % len(content) in answer
    assert head(server, b"/translate")[0].startswith(b"HTTP/1.1 405 ")
    with serving(served_bundle(), token=TOKEN) as guarded:
        assert head(guarded, b"/health")[0].startswith(b"HTTP/1.1 200 ")
        assert head(guarded, b"/ready")[0].startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("path", ["/translate", "/translate/stream", "/libretranslate/translate"])
def test_the_rows_of_a_client_that_has_gone_leave_the_queue(server: Server, path: str) -> None:
    def numbers() -> dict[str, float]:
        lines = server.ask("/metrics").body.decode().split("\n")
        return {line.split(" ")[0]: float(line.split(" ")[1]) for line in lines if line[:1] == "d"}

    def waiting() -> float:
        return numbers()['dragoman_waiting_pieces{model="small",source="en",target="de"}']

    left = f'dragoman_requests_total{{path="{path}",status="499"}}'
    before = numbers().get(left, 0.0)
    text = "\n".join([LONG] * 4)
    body = {"q": text, "target": "de"} if "libre" in path else {"text": text, "beam_size": 10}
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(server.connect()).sendall(post(path, json.dumps(body).encode()))
        # Both have come, and the question for the numbers; one alone fills the queue.
        wait_until(lambda: numbers()["dragoman_requests_under_way"] == 3 and waiting() > 600)
    wait_until(lambda: waiting() == 0)
    if path != "/translate/stream":  # of which some lines may have been answered
        assert numbers()[left] == before + 2
    assert server.ask("/translate", {"text": "A man."}).status == 200


def test_idle_connections_make_room_for_others(server: Server) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this process may have {hard} files; {wanted} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        with ExitStack() as stack:
            busy = {"text": LONG * 3, "beam_size": 8}
            working = stack.enter_context(server.connect())
            working.sendall(post("/translate", json.dumps(busy).encode()))
            idle = [
                stack.enter_context(server.connect(f"127.0.0.{2 + number % 5}"))
                for number in range(MAX_CONNECTIONS + 200)
            ]
            assert server.ask("/health", timeout=5).status == 200
            assert idle[0].recv(100) == b""
            idle[-1].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert idle[-1].recv(100).startswith(b"HTTP/1.1 200 ")
            assert working.recv(100).startswith(b"HTTP/1.1 200 ")
            assert server.memory_mb < 500
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert server.ask("/health").status == 200


@pytest.mark.parametrize("together", [True, False])
def test_the_body_of_a_request_to_upgrade_is_no_request(server: Server, *, together: bool) -> None:
    body = b"GET /models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = (
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    with server.connect() as connection:
        answer = b""
        try:
            for part in [head + body] if together else [head, body]:
                connection.sendall(part)
                time.sleep(0.2)
            while part := connection.recv(65_536):
                answer += part
        except ConnectionError:  # closed while there was something to read
            pass
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 400 ")
    upgrade = b"GET /health HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\n"
    reply = server.exchange(upgrade + b"Connection: upgrade, close\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 200 ")
