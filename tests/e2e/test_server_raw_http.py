"""Requests as bytes, most of them malformed: each has its status, and the server goes on."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest

from served import Server, served_bundle, serving

HOST = b"Host: localhost\r\n"
CLOSE = b"Connection: close\r\n"
BODY = b'{"text":"a"}'
CHUNKED = b"Transfer-Encoding: chunked\r\n"
BOMB = gzip.compress(b" " * 50_000_000 + BODY)
CHUNKS = b"c\r\n" + BODY + b"\r\n0\r\n\r\n"
UPGRADE = b"Connection: Upgrade\r\n"
MISDIRECTED = b"GET /models HTTP/1.1\r\nHost: %b\r\n" + CLOSE + b"\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(served_bundle(), "--threads", "1") as server:
        yield server
        assert server.ask("/translate", {"text": "A man."}).status == 200
        server.process.terminate()
        assert server.process.communicate() == ("", "")


def get(path: bytes, headers: bytes = HOST, *, method: bytes = b"GET") -> bytes:
    return method + b" " + path + b" HTTP/1.1\r\n" + headers + CLOSE + b"\r\n"


def posted(headers: bytes, body: bytes = BODY, *, version: bytes = b"1.1") -> bytes:
    head = b"POST /translate HTTP/" + version + b"\r\nContent-Type: application/json\r\n"
    return head + HOST + headers + CLOSE + b"\r\n" + body


CASES: dict[str, tuple[int, bytes]] = {
    "control characters": (400, b"\x00\x01\x02\x03\r\n\r\n"),
    "a TLS hello": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200),
    "HTTP/2": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/3": (400, b"GET /health HTTP/3.0\r\n" + HOST + b"\r\n"),
    "another protocol": (400, b"GET /health HTTX/1.1\r\n" + HOST + b"\r\n"),
    "no path": (400, b"GET HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a control character in the path": (400, get(b"/hea\x01lth")),
    "eight bits in the path": (400, get(b"/\xff")),
    "percent signs in the path": (404, get(b"/%ff%00%zz")),
    "a path that climbs": (404, get(b"/../../etc/passwd")),
    "an escaped path that climbs": (404, get(b"/%2e%2e%2fetc/passwd")),
    "a fragment": (200, get(b"/health#x")),
    "the whole address": (200, get(b"http://LOCALHOST/models")),
    "the address of another host": (421, get(b"http://localhost/models", b"Host: far.test\r\n")),
    "another host's address": (200, get(b"http://far.test/models")),
    "another host's address, asked for health": (200, get(b"http://far.test/health")),
    "an address with a user": (200, get(b"http://far.test@localhost/models")),
    "an address with another port": (200, get(b"http://localhost:1/models")),
    "an address in the query": (200, get(b"/models?x=http://far.test/")),
    "two slashes": (404, get(b"//localhost/models")),
    "a space before the colon": (400, get(b"/health", b"Host : localhost\r\n")),
    "no colon": (400, get(b"/health", b"Host localhost\r\n")),
    "no name": (400, get(b"/health", HOST + b": x\r\n")),
    "NUL in a value": (400, get(b"/health", HOST + b"X: a\x00b\r\n")),
    "NUL in a name": (400, get(b"/health", HOST + b"X\x00: b\r\n")),
    "a folded value": (400, get(b"/health", HOST + b"X: a\r\n b\r\n")),
    "a lone CR": (400, get(b"/health", HOST + b"X: a\rb\r\n")),
    "lone LFs": (400, b"GET /health HTTP/1.1\nHost: localhost\n\n"),
    "empty lines first": (200, b"\r\n\r\n" + get(b"/health")),
    "3,000 headers": (200, get(b"/health", HOST + b"X: a\r\n" * 3000)),
    "60 kB of a header": (200, get(b"/health", HOST + b"X: " + b"a" * 60_000 + b"\r\n")),
    "OPTIONS *": (404, get(b"*", method=b"OPTIONS")),
    "CONNECT": (400, get(b"localhost:22", method=b"CONNECT")),
    "TRACE": (405, get(b"/translate", method=b"TRACE")),
    "DELETE": (405, get(b"/models", method=b"DELETE")),
    "an unknown method": (400, get(b"/translate", method=b"BREW")),
    "a method in small letters": (400, get(b"/health", method=b"get")),
    "a body of GET": (200, get(b"/health", HOST + b"Content-Length: 3\r\n") + b"abc"),
    "a WebSocket": (200, get(b"/", HOST + b"Upgrade: websocket\r\nConnection: Upgrade\r\n")),
    "a WebSocket of another site": (
        403,
        get(b"/translate", HOST + b"Origin: http://far.test\r\nUpgrade: websocket\r\n" + UPGRADE),
    ),
    "a preflight of another site": (
        403,
        get(
            b"/translate",
            HOST + b"Origin: http://far.test\r\nAccess-Control-Request-Method: POST\r\n",
            method=b"OPTIONS",
        ),
    ),
    "a host with a path": (421, MISDIRECTED % b"localhost/@far.test"),
    "a host with a user": (421, MISDIRECTED % b"far.test@localhost"),
    "a host of eight bits": (421, MISDIRECTED % b"\xff\xfe"),
    "a good length": (200, posted(b"Content-Length: 12\r\n")),
    "an odd expectation": (200, posted(b"Content-Length: 12\r\nExpect: 42\r\n")),
    "two lengths": (400, posted(b"Content-Length: 12\r\nContent-Length: 2\r\n")),
    "one length twice": (400, posted(b"Content-Length: 12\r\nContent-Length: 12\r\n")),
    "a list of lengths": (400, posted(b"Content-Length: 12, 12\r\n")),
    "a negative length": (400, posted(b"Content-Length: -1\r\n")),
    "a length with a plus": (400, posted(b"Content-Length: +12\r\n")),
    "a length in hex": (400, posted(b"Content-Length: 0xc\r\n")),
    "a length of 23 digits": (400, posted(b"Content-Length: 99999999999999999999999\r\n")),
    "an empty length": (400, posted(b"Content-Length:\r\n")),
    "a length and chunks": (400, posted(b"Content-Length: 12\r\n" + CHUNKED, CHUNKS)),
    "a gzip bomb": (
        400,
        posted(b"Content-Encoding: gzip\r\nContent-Length: %d\r\n" % len(BOMB), BOMB),
    ),
    "gzip within chunks": (
        400,
        posted(CHUNKED.replace(b" c", b" gzip, c"), b"4\r\n\x1f\x8b\x08\0\r\n0\r\n\r\n"),
    ),
    "a chunk of 2^64 bytes": (400, posted(CHUNKED, b"1" + b"0" * 16 + b"\r\n")),
    "a chunk in C's hex": (400, posted(CHUNKED, CHUNKS.replace(b"c\r", b"0xc\r"))),
    "chunks": (200, posted(CHUNKED, CHUNKS)),
    "chunks of HTTP/1.0": (200, posted(CHUNKED, CHUNKS, version=b"1.0")),
    "chunked twice": (400, posted(CHUNKED * 2, CHUNKS)),
    "chunks that gzip follows": (400, posted(b"Transfer-Encoding: chunked, gzip\r\n", CHUNKS)),
    "gzip without chunks": (400, posted(b"Transfer-Encoding: gzip\r\n")),
    "an encoding nobody knows": (400, posted(b"Transfer-Encoding: xchunked\r\n")),
    "an encoding with a space": (400, posted(b"Transfer-Encoding : chunked\r\n")),
    "a chunk of negative size": (400, posted(CHUNKED, b"-1\r\n")),
    "a chunk of no size": (400, posted(CHUNKED, b"zz\r\n")),
    "a chunk of 2^68 bytes": (400, posted(CHUNKED, b"f" * 17 + b"\r\n")),
    "a chunk longer than it said": (400, posted(CHUNKED, b"c\r\n" + BODY + b"XX0\r\n\r\n")),
    "chunks with lone LFs": (400, posted(CHUNKED, b"c\n" + BODY + b"\n0\n\n")),
    "a chunk with an extension": (200, posted(CHUNKED, CHUNKS.replace(b"c\r", b"c;a=b\r"))),
    "a Host after the body": (400, posted(CHUNKED, CHUNKS[:-2] + b"Host: far.test\r\n\r\n")),
}


@pytest.mark.parametrize(("status", "request_"), CASES.values(), ids=CASES.keys())
def test_bytes_have_their_status(server: Server, status: int, request_: bytes) -> None:
    answer = server.exchange(request_)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"HTTP/1.1 ") == 1, "one request is one answer"


def test_a_client_that_waits_for_leave_to_send_a_body_gets_it(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(posted(b"Content-Length: 12\r\nExpect: 100-continue\r\n", b""))
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
