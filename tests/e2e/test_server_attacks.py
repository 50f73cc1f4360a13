"""Attacks on a real server by clients that may be anybody, and by pages of other sites.

Those with slow and idle connections are in test_behind_a_proxy.py: a proxy stops them.

What is measured is the whole process: its memory, and how long /health takes on another connection
meanwhile. The limit of 5 s leaves room for a machine that does other things; alone it is 0.1 s.
"""

from __future__ import annotations

import base64
import json
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlencode

import pytest

from dragoman.serve.limits import Limits
from processes import wait_until
from served import Answer, HealthWatch, Server, post, served_bundle, serving

MOST_MB = 600
LATE_S = 5.0
TOKEN = "a-token-of-some-length"
GET = b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=x-y"


@pytest.fixture(scope="module")
def bundle() -> Path:
    return served_bundle()


@pytest.fixture(scope="module")
def server(bundle: Path) -> Iterator[Server]:
    with serving(bundle, "--threads", "1") as server:
        yield server


def number_of(server: Server, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", server.ask("/metrics").body.decode(), re.M)
    assert found is not None
    return float(found[1])


def send_all_that_is_taken(connection: socket.socket, data: bytes) -> None:
    """Without waiting for the server to read."""
    connection.setblocking(False)
    try:
        while data:
            data = data[connection.send(data) :]
    except (BlockingIOError, ConnectionError):
        pass
    connection.settimeout(60)


def test_a_slow_reader_gets_all_of_its_answer(server: Server) -> None:
    wanted = server.ask("/openapi.json").body
    with server.connect(read_bytes=4096) as slow:
        slow.sendall(
            (GET % b"/openapi.json").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        )
        seen = b""
        while part := slow.recv(2048):
            seen += part
            time.sleep(0.2)
    assert seen.endswith(wanted)


def test_bodies_that_are_held_back_take_no_memory_and_no_place_of_others(bundle: Path) -> None:
    limits = Limits()
    held = post("/translate", b" " * 900_000)[:-1]
    with serving(bundle, "--threads", "1") as server, ExitStack() as stack:
        with HealthWatch(server) as health:
            connections = [
                stack.enter_context(server.connect(f"127.0.0.{2 + number // 40}"))
                for number in range(200)
            ]

            def send(connection: socket.socket) -> None:
                with suppress(ConnectionError):
                    connection.sendall(held)

            with ThreadPoolExecutor(8) as pool:
                list(pool.map(send, connections))
            statuses = set()
            for connection in connections:
                try:
                    statuses.add(connection.recv(1000)[9:12])
                except ConnectionError:  # refused while it was sending
                    statuses.add(b"429")
            assert b"429" in statuses
            assert statuses <= {b"408", b"429", b"503"}
        assert server.ask("/translate", {"text": "A man."}).status == 200
        assert (health.refused, health.worst_s < LATE_S) == (0, True)
        assert server.peak_memory_mb < MOST_MB
        assert limits.max_body_bytes_together < 100_000_000


def marks(count: int) -> str:
    """So many combining marks, in an order that normalisation must turn around."""
    return "a" + "\u0315\u0300" * (count // 2)


def costly() -> dict[str, tuple[str, bytes, str]]:
    """Path, body and content type of requests that once held the server up for seconds."""
    libre = "/libretranslate/translate"
    found = {}
    for what, text in {
        "marks": marks(99_998),
        "other marks": "a" + "\u0300\u0327\u0345\u0315" * 24_999,
        "sentences": ". " * 50_000,
        "tags": "<" * 100_000,
        "open tags": '<a b="' * 16_000,
        "comments": "<!--" * 25_000,
        "entities": "&#1;" * 25_000,
        "lines": "a.\n" * 33_000,
        "spaces": " " * 99_999 + "a",
    }.items():
        query = {"q": text, "source": "en", "target": "de"}
        part = '--x-y\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
        form = "".join(part.format(name, value) for name, value in query.items()) + "--x-y--\r\n"
        for layout in ("text", "html"):
            body = json.dumps({"text": text, "format": layout}, ensure_ascii=False).encode()
            found[f"{what}, {layout}"] = "/translate", body, "application/json"
            found[f"{what}, {layout}, streamed"] = "/translate/stream", body, "application/json"
        if "marks" in what:
            body = json.dumps(query, ensure_ascii=False).encode()
            found[f"{what}, LibreTranslate"] = libre, body, "application/json"
            found[f"{what}, a form"] = libre, urlencode(query).encode(), FORM
            found[f"{what}, a form of parts"] = libre, form.encode(), MULTIPART
    fields = ",".join(f'"{number:x}":0' for number in range(90_000)).encode()
    found |= {
        "90,000 fields": ("/translate", b"{" + fields + b"}", "application/json"),
        "90,000 fields, LibreTranslate": (libre, b"{" + fields + b"}", "application/json"),
        "lists": ("/translate", b'{"text":[' + b"[]," * 330_000 + b"1]}", "application/json"),
        "a long number": ("/translate", b'{"text":' + b"9" * 999_000 + b"}", "application/json"),
        "depth": ("/translate", b'{"text":' + b"[" * 999_000, "application/json"),
        "empty fields": (libre, b"&" * 1_000_000, FORM),
        "escapes": (libre, b"q=" + b"%41" * 333_000, FORM),
        "line ends": (
            libre,
            b'--x-y\r\nContent-Disposition: form-data; name="q"\r\n\r\n' + b"\r\n-" * 330_000,
            MULTIPART,
        ),
        "a charset": (
            libre,
            b'--x-y\r\nContent-Disposition: form-data; name="q"\r\n\r\n'
            + b"a-" + b"999999a" * 140_000 + b"\r\n--x-y--",
            MULTIPART + "; charset=punycode",
        ),
    }  # fmt: skip
    return found


COSTLY = costly()


SLOW = ("lines, text, streamed", "lines, html, streamed", "lines, text")
"""Costly requests that take half a minute each; their like stays in the quicker tests."""


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        pytest.param(*request, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name, request in COSTLY.items()
    ],
)
def test_one_request_does_not_stop_the_others(
    server: Server, path: str, body: bytes, kind: str
) -> None:
    with HealthWatch(server) as health:
        answer = server.ask(path, body, headers={"Content-Type": kind}, timeout=120)
        time.sleep(0.2)
    assert answer.status in (200, 400, 413, 422, 503, 504)
    assert (health.refused, health.worst_s < LATE_S) == (0, True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_costly_requests_at_once_do_not_stop_the_others(bundle: Path) -> None:
    with serving(bundle, "--threads", "1", "--timeout", "10") as server:
        asked = list(COSTLY.values()) * 3

        def ask(number: int) -> int:
            path, body, kind = asked[number]
            try:
                return server.ask(path, body, headers={"Content-Type": kind}, timeout=200).status
            except ConnectionError:  # refused while it was sending
                return 429

        with HealthWatch(server) as health, ThreadPoolExecutor(64) as pool:
            statuses = set(pool.map(ask, range(len(asked))))
        assert statuses <= {200, 400, 413, 422, 429, 503, 504}
        assert (health.refused, health.worst_s < LATE_S) == (0, True)
        assert server.peak_memory_mb < MOST_MB


WORK = {
    "/translate": (b'{"text": "A man."}', "application/json"),
    "/translate/stream": (b'{"text": "A man."}', "application/json"),
    "/libretranslate/translate": (b"q=A+man.&source=en&target=de", FORM),
    "/libretranslate/detect": (b"q=A+man.", FORM),
    "/models": (None, ""),
    "/metrics": (None, ""),
    "/openapi.json": (None, ""),
    "/pairs": (None, ""),
    "/languages": (None, ""),
    "/libretranslate/languages": (None, ""),
}
OPEN = ("/languages", "/libretranslate/languages")
"""What is told without a token."""


@pytest.mark.parametrize("path", WORK)
def test_pages_of_other_sites_are_refused(server: Server, path: str) -> None:
    body, kind = WORK[path]

    def status(**headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return server.ask(path, body, headers={"Content-Type": kind or "text/plain"} | named).status

    own = f"http://127.0.0.1:{server.port}"
    assert status() == 200
    assert status(Origin=own) == 200
    assert status(Origin=own, Sec_Fetch_Site="same-origin") == 200
    assert status(Sec_Fetch_Site="none") == 200
    foreign = ["https://elsewhere.example", "null", "", own + ".elsewhere.example", "http://["]
    for origin in [*foreign, "http://localhost:1", "file://", "chrome-extension://abc"]:
        assert status(Origin=origin) == 403, origin
    for site in ("cross-site", "same-site"):
        assert status(Origin=own, Sec_Fetch_Site=site) == 403
        # A link on another page may lead here: that is a GET without an Origin.
        assert status(Sec_Fetch_Site=site) == (200 if body is None else 403)
    for kind in ("text/plain", "multipart/form-data; boundary=x", FORM):  # sent without asking us
        if body is not None:
            assert status(Origin="https://elsewhere.example", Content_Type=kind) == 403
    assert server.ask("/health", headers={"Origin": "https://elsewhere.example"}).status == 200


def test_a_name_of_another_site_that_leads_here_is_refused(server: Server) -> None:
    for path, (body, _) in WORK.items():
        for name in ("elsewhere.example", f"elsewhere.example:{server.port}", "localhost.example",
                     "0.0.0.0", "10.0.0.1", "[::2]", "127.0.0.1.example"):  # fmt: skip
            headers = {"Host": name, "Origin": f"http://{name}"}
            assert server.ask(path, body, headers=headers).status == 421, (path, name)


def test_only_the_token_itself_opens(bundle: Path) -> None:
    def basic(text: str) -> str:
        return "Basic " + base64.b64encode(text.encode()).decode()

    with serving(bundle, "--threads", "1", token=TOKEN) as server:

        def ask(authorization: str, path: str = "/models") -> Answer:
            return server.ask(path, headers={"Authorization": authorization})

        right = [f"Bearer {TOKEN}", f"bearer  {TOKEN} ", basic(f"any:{TOKEN}"), basic(f":{TOKEN}")]
        for authorization in right:
            assert ask(authorization).status == 200, authorization
        near = [TOKEN[:-1], TOKEN + "x", f"{TOKEN} {TOKEN}", TOKEN.upper(), "", "*", "\xff" + TOKEN,
                TOKEN[:1], f"{TOKEN},{TOKEN}"]  # fmt: skip
        wrong = [f"Bearer {one}" for one in near] + [basic(f"any:{one}") for one in near]
        wrong += [TOKEN, f"Token {TOKEN}", f"Bearer{TOKEN}", basic(TOKEN), "Basic", "Bearer", ""]
        for authorization in wrong:
            refused = ask(authorization)
            assert refused.status == 401, authorization
            assert refused.headers["www-authenticate"].startswith("Basic ")
        for first, second in ((TOKEN, "x"), ("x", TOKEN), (TOKEN, TOKEN)):
            twice = f"Authorization: Bearer {first}\r\nAuthorization: Bearer {second}\r\n"
            request = f"GET /models HTTP/1.1\r\nHost: a\r\n{twice}Connection: close\r\n\r\n"
            assert server.exchange(request.encode()).startswith(b"HTTP/1.1 400 ")
        cookie = {"Cookie": f"token={TOKEN}", "X-Api-Key": TOKEN, "Api-Key": TOKEN}
        assert server.ask("/models", headers=cookie).status == 401
        own = {"Authorization": right[0], "Origin": "https://elsewhere.example"}
        assert server.ask("/translate", {"text": "a"}, headers=own).status == 403


def test_a_key_in_the_body_opens_the_paths_of_libretranslate_alone(bundle: Path) -> None:
    with serving(bundle, "--threads", "1", token=TOKEN) as server:
        key = {"api_key": TOKEN}
        sent: list[Callable[[str, dict[str, str]], Answer]] = [
            lambda path, fields: server.ask(path, fields),
            lambda path, fields: server.ask(
                path, urlencode(fields).encode(), headers={"Content-Type": FORM}
            ),
            lambda path, fields: server.ask(f"{path}?{urlencode(fields)}", b""),
            lambda path, fields: server.ask(f"{path}?{urlencode(fields)}"),
        ]
        for send in sent:
            guarded = [path for path in WORK if "libre" not in path and path not in OPEN]
            for path in [*guarded, "/ready", "/", "/libretranslate", "/x/libretranslate/translate"]:
                fields = {"text": "A man."} if path in ("/translate", "/detect") else {"q": "A"}
                assert send(path, fields | key).status == 401, path
            assert send("/libretranslate/../models", key).status == 401
        for send in sent[:3]:
            fields = {"q": "A man.", "source": "en", "target": "de"}
            for path in ("/translate", "/libretranslate/translate"):
                assert send(path, fields | key).status == 200
                for near in (TOKEN[:-1], TOKEN + "x", TOKEN[:1], "*", TOKEN.upper()):
                    assert send(path, fields | {"api_key": near}).status == 403
                assert send(path, fields | {"api_key": ""}).status == 400
                assert send(path, key).status == 400, "a request of LibreTranslate without q"
        fields = {"q": "A man.", "source": "en", "target": "de"}
        libre = "/libretranslate/translate"
        for in_query, in_body, status in ((TOKEN, "x", 403), ("x", TOKEN, 200)):
            query = urlencode({"api_key": in_query})
            assert server.ask(f"{libre}?{query}", fields | {"api_key": in_body}).status == status
        for last, status in ((TOKEN, 200), ("x", 403)):  # the last one counts in JSON
            twice = json.dumps(fields | {"api_key": "x" if last == TOKEN else TOKEN})
            twice = f'{twice[:-1]}, "api_key": "{last}"}}'
            assert server.ask(libre, twice.encode()).status == status
        nested = [{"api_key": [TOKEN]}, {"api_key": {TOKEN: TOKEN}}, [TOKEN], TOKEN]
        for body, status in zip(nested, (403, 403, 400, 400), strict=True):
            assert server.ask("/libretranslate/translate", body).status == status


def test_requests_with_other_settings_at_once_are_answered_as_each_alone(server: Server) -> None:
    """In one batch there is one width of search and one number of alternatives."""
    texts = [f"A man in a red shirt is standing on {n} chairs, and {n} dogs run." for n in range(8)]
    bodies = [
        {"text": text, "beam_size": beam, "alternatives": others}
        for text in texts
        for beam, others in ((1, 0), (4, 3), (5, 0), (5, 4))
    ]

    def ask(body: dict[str, object]) -> list[str]:
        (found,) = server.ask("/translate", body).json["translations"]
        return [found["text"], *(one["text"] for one in found["alternatives"])]

    alone = [ask(body) for body in bodies]
    assert [len(found) for found in alone] == [
        1 + int(str(body["alternatives"])) for body in bodies
    ]
    assert any(alone[4 * n][0] != alone[4 * n + 1][0] for n in range(8)), "the width must matter"
    with ThreadPoolExecutor(16) as pool:
        for _ in range(3):
            assert list(pool.map(ask, bodies)) == alone


@pytest.mark.parametrize("timeout", [1, 4])
def test_sigterm_ends_the_server_in_time_despite_busy_clients(bundle: Path, timeout: int) -> None:
    with serving(bundle, "--threads", "1", "--timeout", str(timeout)) as server:
        with ExitStack() as stack:
            deaf = [stack.enter_context(server.connect(read_bytes=4096)) for _ in range(20)]
            for _ in range(20):
                for connection in deaf:
                    send_all_that_is_taken(connection, GET % b"/openapi.json")
                time.sleep(0.2)
            head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
            begun = [b"", b"GET /hea", head, head + b"\r\n{", (GET % b"/health") * 100]
            document = json.dumps({"text": "A man.\n" * 5000, "beam_size": 10}).encode()
            begun.append(post("/translate/stream", document))
            begun.append(post("/translate", document))
            for some in begun:
                connection = stack.enter_context(server.connect(read_bytes=4096))
                send_all_that_is_taken(connection, some)
            wait_until(lambda: number_of(server, "dragoman_requests_under_way") > 3)
            server.process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            assert server.process.wait(timeout=60) == 0
            assert time.monotonic() - began < timeout + 20
        assert server.process.communicate()[1] == ""


ENDLESS = """
import sys, time
from dragoman.cli import main
from dragoman.formats.ctranslate2_engine import CTranslate2Engine
CTranslate2Engine.search_batch = lambda *_, **__: time.sleep(600)
sys.exit(main(sys.argv[1:]))
"""


def test_sigterm_ends_it_though_a_search_does_not(bundle: Path) -> None:
    """As with a stranger's model that never ends a translation."""
    command = ("-c", ENDLESS, "serve")
    with serving(bundle, "--threads", "1", "--timeout", "1", command=command) as server:
        assert server.ask("/translate", {"text": "A man."}).status == 504
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0
        assert server.process.communicate() == ("", "")
