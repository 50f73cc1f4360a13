"""Connections to a real server: broken off, and what their heads may say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

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
    libre = {"q": text, "source": "en", "target": "de"}
    body = libre if "libre" in path else {"text": text, "beam_size": 10}
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(server.connect()).sendall(post(path, json.dumps(body).encode()))
        # Both have come, and the question for the numbers; one alone fills the queue.
        wait_until(lambda: numbers()["dragoman_requests_under_way"] == 3 and waiting() > 600)
    wait_until(lambda: waiting() == 0)
    if path != "/translate/stream":  # of which some lines may have been answered
        assert numbers()[left] == before + 2
    assert server.ask("/translate", {"text": "A man."}).status == 200


def test_a_stream_whose_client_goes_before_its_first_line_leaves_the_queue() -> None:
    with serving(served_bundle(), "--threads", "1", "--timeout", "600") as patient:

        def number(name: str) -> float:
            lines = patient.ask("/metrics").body.decode().split("\n")
            return float(next(line for line in lines if line.startswith(name)).split(" ")[1])

        body = json.dumps({"text": LONG * 9, "beam_size": 10}).encode()
        with patient.connect() as connection:
            connection.sendall(post("/translate/stream", body))
            wait_until(lambda: number("dragoman_waiting_pieces") > 600)
        wait_until(lambda: number("dragoman_waiting_pieces") == 0)
        assert number('dragoman_requests_total{path="/translate/stream",status="499"}') == 1
