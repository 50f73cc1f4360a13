"""The guard lets through and refuses requests: each of its rules by itself; no server runs."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from dragoman.serve.limits import Guard, Limits
from dragoman.serve.metrics import Metrics

TOKEN = "0123456789abcdef"
JSON = (b"content-type", b"application/json")
LIBRE = "/libretranslate/translate"
Header = tuple[bytes, bytes]


@dataclass
class Behind:
    """The application behind the guard: keeps the bodies that reach it, and waits to be let go."""

    bodies: list[bytes] = field(default_factory=list)
    scopes: list[Any] = field(default_factory=list)
    held: asyncio.Event | None = None
    cancelled: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        self.bodies.append((await receive()).get("body", b""))
        try:
            if self.held is not None:
                await self.held.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"well"})


@dataclass
class Client:
    """One request: what it sends, when it goes away, and what it was answered."""

    headers: Sequence[Header] = ()
    parts: Sequence[bytes] = (b"",)
    path: str = "/translate"
    method: str = "POST"
    query: bytes = b""
    version: str = "1.1"
    address: str = "127.0.0.1"
    stalls: bool = False
    leaves: bool = False
    unasked_host: bool = False
    answer: list[Any] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    received: int = 0

    async def receive(self) -> Any:
        if self.received < len(self.parts):
            part = self.parts[self.received]
            self.received += 1
            more = self.received < len(self.parts) or self.stalls or self.leaves
            return {"type": "http.request", "body": part, "more_body": more}
        if not self.leaves:
            await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.answer.append(message)

    @property
    def status(self) -> int | None:
        return self.answer[0]["status"] if self.answer else None

    @property
    def problem(self) -> str:
        said = json.loads(self.answer[1]["body"])["error"]
        assert isinstance(said, str)
        return said

    @property
    def answered_headers(self) -> dict[bytes, bytes]:
        return dict(self.answer[0]["headers"])

    @property
    def scope(self) -> dict[str, Any]:
        given = {name for name, _ in self.headers}
        length = sum(map(len, self.parts))
        own = [] if self.unasked_host or b"host" in given else [(b"host", b"localhost:8320")]
        if length and not {b"content-length", b"transfer-encoding"} & given:
            own.append((b"content-length", str(length).encode()))
        return {
            "type": "http",
            "method": self.method,
            "path": self.path,
            "query_string": self.query,
            "http_version": self.version,
            "headers": [*own, *self.headers],
            "client": (self.address, 1),
        }


def guarded(limits: Limits | None = None, behind: Behind | None = None) -> Guard:
    return Guard(behind or Behind(), limits or Limits(), Metrics())


def asked(client: Client, limits: Limits | None = None, behind: Behind | None = None) -> Client:
    """The same client, answered; the guard keeps nothing of it."""
    guard = guarded(limits, behind)

    async def ask() -> None:
        async with asyncio.timeout(30):
            await guard(client.scope, client.receive, client.send)

    asyncio.run(ask())
    assert not guard._under_way
    assert not guard._body_bytes
    return client


def bearer(token: str) -> Header:
    return b"authorization", f"Bearer {token}".encode()


def basic(user: str, token: str) -> Header:
    return b"authorization", b"Basic " + base64.b64encode(f"{user}:{token}".encode())


def test_a_body_arrives_whole_and_once() -> None:
    behind = Behind()
    assert asked(Client(parts=[b"a", b"", b"bc"]), behind=behind).status == 200
    assert behind.bodies == [b"abc"]
    chunked = Client(headers=[(b"transfer-encoding", b"chunked")], parts=[b"x", b"y"])
    assert asked(chunked, behind=behind).status == 200
    silent = Client(stalls=True, parts=(), headers=())  # no length: no body is waited for
    assert asked(silent, behind=behind).status == 200
    assert behind.bodies == [b"abc", b"xy", b""]


def test_the_body_is_followed_only_by_the_disconnect() -> None:
    seen = []

    async def reads_twice(_scope: Any, receive: Any, send: Any) -> None:
        seen.append(await receive())
        seen.append(await receive())

    guard = Guard(reads_twice, Limits(), Metrics())
    client = Client(parts=[b"abc"])

    async def ask() -> None:
        async with asyncio.timeout(30):
            task = asyncio.create_task(guard(client.scope, client.receive, client.send))
            await asyncio.sleep(0.05)
            client.left.set()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(ask())
    assert seen[0] == {"type": "http.request", "body": b"abc", "more_body": False}
    assert seen[1:] in ([], [{"type": "http.disconnect"}])


def test_a_head_alone_is_asked_for_as_the_whole() -> None:
    behind = Behind()
    asked(Client(method="HEAD", path="/models"), behind=behind)
    asked(Client(method="POST"), behind=behind)
    assert [scope["method"] for scope in behind.scopes] == ["GET", "POST"]
    assert [scope["path"] for scope in behind.scopes] == ["/models", "/translate"]


def test_scopes_other_than_requests_are_passed_on() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, receive, send))

    client = Client()
    asyncio.run(Guard(app, Limits(), Metrics())({"type": "lifespan"}, client.receive, client.send))
    assert seen == [({"type": "lifespan"}, client.receive, client.send)]


@pytest.mark.parametrize("name", ["host", "origin", "sec-fetch-site", "authorization"])
def test_a_header_that_says_who_asks_is_there_once(name: str) -> None:
    header = (name.encode(), b"localhost")
    client = asked(Client(headers=[header, (b"x-other", b"1"), header]))
    assert (client.status, client.problem) == (400, f"more than one {name.title()}")
    assert client.answered_headers[b"content-type"] == b"application/json"
    assert client.answered_headers[b"content-length"] == str(len(client.answer[1]["body"])).encode()
    assert client.answer[0]["type"] == "http.response.start"
    assert client.answer[1]["type"] == "http.response.body"
    assert set(client.answered_headers) == {b"content-type", b"content-length"}


def test_other_headers_may_be_there_twice() -> None:
    assert asked(Client(headers=[(b"accept", b"a"), (b"accept", b"b")])).status == 200


def test_a_host_is_named_as_http_1_1_wants_it() -> None:
    client = asked(Client(unasked_host=True))
    assert (client.status, client.problem) == (400, "no Host")
    assert asked(Client(unasked_host=True, version="1.0")).status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"localhost", 200),
        (b"LocalHost:8320", 200),
        (b"127.0.0.1:80", 200),
        (b"127.255.0.9", 200),
        (b"[::1]", 200),
        (b"[::1]:8320", 200),
        (b"", 200),
        (b"[::2]", 421),
        (b"[::1", 421),
        (b"::1", 421),
        (b"192.168.0.1", 421),
        (b"localhost.example.org", 421),
        (b"example.org:8320", 421),
        (b"127.0.0.1.example.org", 421),
        (b"localhost:1:2", 421),
        (b"localhost:", 200),
        (b"localhost:example.org", 421),
        (b":example.org", 421),
        (b"localhost.", 421),
        (b"127.0.0.1.", 421),
        (b"127.1", 421),
        (b"2130706433", 421),
        (b"0x7f.0.0.1", 421),
        (b"0177.0.0.1", 421),
        (b"[::ffff:127.0.0.1]", 421),
        (b"[0:0:0:0:0:0:0:1]", 421),
        (b"localhost, example.org", 421),
        (b"localhost@example.org", 421),
        (b"example.org#localhost", 421),
        (b"localhost/x", 421),
        (b"\xff", 421),
    ],
)
def test_without_a_token_only_loopback_s_names_are_answered(host: bytes, status: int) -> None:
    client = asked(Client(headers=[(b"host", host)]))
    assert client.status == status
    if status == 421:
        assert client.problem == "this server answers to the names of loopback alone"
    with_token = Client(headers=[(b"host", host), bearer(TOKEN)])
    assert asked(with_token, Limits(token=TOKEN)).status == 200


@pytest.mark.parametrize("limits", [Limits(), Limits(token=TOKEN)])
def test_everybody_may_ask_whether_it_runs(limits: Limits) -> None:
    other = [(b"host", b"example.org"), (b"origin", b"http://evil.example")]
    assert asked(Client(path="/health", method="GET", headers=other), limits).status == 200
    assert asked(Client(path="/healthy", method="GET", headers=other), limits).status != 200
    assert asked(Client(path="/health", unasked_host=True), limits).status == 400


SITES: dict[str, tuple[str, list[Header], bool]] = {
    "no browser": ("POST", [], True),
    "our page": ("POST", [(b"origin", b"http://localhost:8320")], True),
    "our page, in capitals": ("POST", [(b"origin", b"http://LOCALHOST:8320")], True),
    "another port": ("POST", [(b"origin", b"http://localhost:1")], False),
    "another site": ("POST", [(b"origin", b"http://evil.example")], False),
    "a file": ("POST", [(b"origin", b"null")], False),
    "no address": ("POST", [(b"origin", b"http://[")], False),
    "an app": ("POST", [(b"origin", b"capacitor://localhost:8320")], False),
    "a script's address": ("POST", [(b"origin", b"javascript://localhost:8320")], False),
    "more than a site": ("POST", [(b"origin", b"http://localhost:8320#.evil.example")], False),
    "a name and our page": ("POST", [(b"origin", b"http://evil@localhost:8320")], False),
    "our page, behind TLS": ("POST", [(b"origin", b"https://localhost:8320")], True),
    "our page, new browser": ("POST", [(b"sec-fetch-site", b"same-origin")], True),
    "typed": ("POST", [(b"sec-fetch-site", b"none")], True),
    "another site, new browser": ("POST", [(b"sec-fetch-site", b"cross-site")], False),
    "a neighbour": ("POST", [(b"sec-fetch-site", b"same-site")], False),
    "it says so itself": (
        "POST",
        [(b"sec-fetch-site", b"cross-site"), (b"origin", b"http://localhost:8320")],
        False,
    ),
    "a proxy changed the host": (
        "POST",
        [(b"sec-fetch-site", b"same-origin"), (b"origin", b"http://elsewhere")],
        True,
    ),
    "a link": ("GET", [(b"sec-fetch-site", b"cross-site")], True),
    "a link's head": ("HEAD", [(b"sec-fetch-site", b"cross-site")], True),
    "asked first": ("OPTIONS", [(b"sec-fetch-site", b"cross-site")], True),
    "a script that reads": ("GET", [(b"origin", b"http://evil.example")], False),
    "a script that deletes": ("DELETE", [(b"sec-fetch-site", b"cross-site")], False),
}


@pytest.mark.parametrize(("method", "headers", "allowed"), SITES.values(), ids=SITES)
def test_pages_of_other_sites_are_not_answered(
    method: str, headers: list[Header], allowed: bool
) -> None:
    client = asked(Client(method=method, headers=headers))
    assert client.status == (200 if allowed else 403)
    if not allowed:
        assert client.problem == "this server does not answer the pages of other sites"


CREDENTIALS: dict[str, tuple[list[Header], bool]] = {
    "bearer": ([bearer(TOKEN)], True),
    "in small letters": ([(b"authorization", b"bearer " + TOKEN.encode())], True),
    "with spaces": ([(b"authorization", b"Bearer   " + TOKEN.encode() + b" ")], True),
    "a user's password": ([basic("anybody", TOKEN)], True),
    "basic, in capitals": ([(b"authorization", basic("", TOKEN)[1].replace(b"B", b"b", 1))], True),
    "none": ([], False),
    "empty": ([(b"authorization", b"")], False),
    "no kind": ([(b"authorization", TOKEN.encode())], False),
    "another kind": ([(b"authorization", b"Digest " + TOKEN.encode())], False),
    "the beginning": ([bearer(TOKEN[:-1])], False),
    "more": ([bearer(TOKEN + "0")], False),
    "two": ([bearer(f"{TOKEN} {TOKEN}")], False),
    "capitals": ([bearer(TOKEN.upper())], False),
    "an empty one": ([bearer("")], False),
    "a user of that name": ([basic(TOKEN, "")], False),
    "user and password": ([basic("a", f"b:{TOKEN}")], False),
    "no base64": ([(b"authorization", b"Basic !" + TOKEN.encode())], False),
    "basic as it is": ([(b"authorization", b"Basic " + TOKEN.encode())], False),
    "no text": ([(b"authorization", b"Bearer \xff")], False),
    "elsewhere": ([(b"x-api-key", TOKEN.encode())], False),
}


@pytest.mark.parametrize(("headers", "knows"), CREDENTIALS.values(), ids=CREDENTIALS)
def test_only_the_token_itself_opens(headers: list[Header], knows: bool) -> None:
    limits, behind = Limits(token=TOKEN), Behind()
    for path in ("/translate", LIBRE):
        client = asked(Client(headers=headers, path=path), limits, behind)
        assert client.status == (200 if knows else 401)
        if not knows:
            assert client.problem == "a token is needed: Authorization: Bearer TOKEN"
            challenge = b'Basic realm="dragoman", charset="UTF-8"'
            assert client.answered_headers[b"www-authenticate"] == challenge
    assert len(behind.bodies) == 2 * knows


FORM = (b"content-type", b"application/x-www-form-urlencoded")
KEYS: dict[str, tuple[str, bytes, bytes, Header, int]] = {
    "in JSON": (LIBRE, b"", json.dumps({"api_key": TOKEN}).encode(), JSON, 200),
    "in a form": (LIBRE, b"", f"q=a&api_key={TOKEN}".encode(), FORM, 200),
    "in the address": (LIBRE, f"q=a&api_key={TOKEN}".encode(), b"", JSON, 200),
    "in the address, with a body": (LIBRE, f"api_key={TOKEN}".encode(), b"{}", JSON, 200),
    "another one": (LIBRE, b"", json.dumps({"api_key": TOKEN[1:]}).encode(), JSON, 401),
    "another name": (LIBRE, b"", json.dumps({"key": TOKEN}).encode(), JSON, 401),
    "no text": (LIBRE, b"", b'{"api_key": "\\ud800"}', JSON, 401),
    "a list": (LIBRE, b"", json.dumps({"api_key": [TOKEN]}).encode(), JSON, 401),
    "nothing": (LIBRE, b"", b"{}", JSON, 401),
    "an empty one": (LIBRE, b"api_key=", b'{"api_key": ""}', JSON, 401),
    "no JSON": (LIBRE, b"", b'{"api_key"', JSON, 401),
    "of another type": (LIBRE, b"", json.dumps({"api_key": TOKEN}).encode(), FORM, 401),
    "on another path": ("/translate", b"", json.dumps({"api_key": TOKEN}).encode(), JSON, 401),
    "in another address": ("/translate", f"api_key={TOKEN}".encode(), b"{}", JSON, 401),
    "on a path like it": (
        "/x/libretranslate/",
        b"",
        json.dumps({"api_key": TOKEN}).encode(),
        JSON,
        401,
    ),
}


@pytest.mark.parametrize("keys", [f"api_key={TOKEN}&api_key=x", f"api_key=x&api_key={TOKEN}"])
def test_a_key_that_is_there_twice_is_refused(keys: str) -> None:
    text = keys.encode()
    for query, body, kind in ((text, b"", JSON), (text, b"{}", JSON), (b"", text, FORM)):
        client = Client(path=LIBRE, query=query, parts=[body], headers=[kind])
        behind = Behind()
        assert asked(client, Limits(token=TOKEN), behind).status == 400
        assert client.problem == "a field is given more than once; send each field once"
        assert not behind.bodies


@pytest.mark.parametrize(("path", "query", "body", "kind", "status"), KEYS.values(), ids=KEYS)
def test_a_key_in_the_body_opens_libretranslate_s_paths_alone(
    path: str, query: bytes, body: bytes, kind: Header, status: int
) -> None:
    behind = Behind()
    client = Client(path=path, query=query, parts=[body], headers=[kind])
    assert asked(client, Limits(token=TOKEN), behind).status == status
    assert behind.bodies == ([body] if status == 200 else [])
    if status == 401:
        assert client.problem == "a token is needed: Authorization: Bearer TOKEN"


def test_a_body_of_the_limit_is_taken_and_a_longer_one_refused() -> None:
    limits, behind = Limits(max_body_bytes=10), Behind()
    assert asked(Client(parts=[b"x" * 6, b"y" * 4]), limits, behind).status == 200
    assert behind.bodies == [b"x" * 6 + b"y" * 4]
    for parts in ([b"x" * 11], [b"x" * 10, b"x"], [b"x"] * 11):
        for headers in ([], [(b"transfer-encoding", b"chunked")]):
            client = asked(Client(parts=parts, headers=headers), limits, behind)
            assert (client.status, client.problem) == (413, "the body has more than 10 bytes")
            assert client.answered_headers[b"connection"] == b"close"
            assert client.received == len(parts)  # its sender sees the answer
    assert len(behind.bodies) == 1
    # A body that is refused is not read to its end.
    endless = asked(Client(parts=[b"x" * 100] * 50), limits)
    assert (endless.status, endless.received) == (413, 1)
    chunked = asked(
        Client(parts=[b"x" * 100] * 50, headers=[(b"transfer-encoding", b"chunked")]), limits
    )
    assert (chunked.status, chunked.received) == (413, 3)
    declared = asked(Client(parts=[b"x"] * 9, headers=[(b"content-length", b"200")]), limits)
    assert (declared.status, declared.received) == (413, 9)
    declared = asked(Client(parts=[b"x"] * 9, headers=[(b"content-length", b"201")]), limits)
    assert (declared.status, declared.received) == (413, 1)
    assert asked(Client(parts=[b"x"], headers=[(b"content-length", b"-1")]), limits).status == 200
    assert asked(Client(parts=[b"x"], headers=[(b"content-length", b"\xb2")]), limits).status == 200


def test_a_body_that_is_held_back_is_not_waited_for() -> None:
    behind = Behind()
    client = asked(Client(parts=[b"x"], stalls=True), Limits(body_s=0.05), behind)
    assert (client.status, client.problem) == (408, "the body did not arrive in time")
    assert client.answered_headers[b"connection"] == b"close"
    gone = asked(Client(parts=[b"x"], leaves=True), behind=behind)
    assert (gone.status, gone.problem) == (408, "the client has gone")
    assert behind.bodies == []


async def _together(guard: Guard, clients: Sequence[Client], behind: Behind) -> None:
    """The clients ask one after the other, all before any is answered."""
    behind.held = asyncio.Event()
    tasks = []
    async with asyncio.timeout(30):
        for client in clients:
            tasks.append(asyncio.create_task(guard(client.scope, client.receive, client.send)))
            for _ in range(5):
                await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        behind.held.set()
        await asyncio.gather(*tasks)
    assert not guard._under_way
    assert not guard._body_bytes


def statuses(limits: Limits, clients: Sequence[Client]) -> list[int | None]:
    behind = Behind()
    guard = guarded(limits, behind)
    asyncio.run(_together(guard, clients, behind))
    found = [client.status for client in clients]
    again = Client(parts=[b"x"])
    asyncio.run(_together(guard, [again], behind))  # what they took is given back
    assert again.status == 200
    return found


def test_one_client_has_so_many_requests_under_way() -> None:
    clients = [Client() for _ in range(4)] + [Client(address="127.0.0.2"), Client(path="/health")]
    assert statuses(Limits(max_requests_per_client=2), clients) == [200, 200, 429, 429, 200, 200]
    assert clients[2].problem == "you have too many open requests"
    assert clients[2].answered_headers[b"retry-after"] == b"1"


def test_one_client_has_so_much_text_under_way() -> None:
    clients = [
        Client(parts=[b"x" * 10, b"x" * 10]),
        Client(parts=[b"x" * 20]),
        Client(parts=[b"x"]),
        Client(parts=[b"x" * 20], address="127.0.0.2"),
    ]
    assert statuses(Limits(max_body_bytes_per_client=40), clients) == [200, 200, 429, 200]
    assert clients[2].problem == "your open requests hold too much text"
    assert clients[2].answered_headers[b"retry-after"] == b"1"


def test_all_clients_have_so_much_text_under_way() -> None:
    clients = [Client(parts=[b"x" * 20], address=f"127.0.0.{number}") for number in range(4)]
    assert statuses(Limits(max_body_bytes_together=60), clients) == [200, 200, 200, 503]
    assert clients[3].problem == "the server is busy; try again in a second"
    assert clients[3].answered_headers[b"retry-after"] == b"1"


def test_a_body_that_is_dropped_takes_no_place() -> None:
    """It grew beyond the limit, and its rest is still read."""
    limits = Limits(max_body_bytes=10, max_body_bytes_per_client=15)
    large = Client(
        parts=[b"x" * 8, b"x" * 8], stalls=True, headers=[(b"transfer-encoding", b"chunked")]
    )
    behind = Behind()
    guard = guarded(limits, behind)

    async def ask() -> Client:
        async with asyncio.timeout(30):
            task = asyncio.create_task(guard(large.scope, large.receive, large.send))
            await asyncio.sleep(0.02)
            other = Client(parts=[b"x" * 10])
            await guard(other.scope, other.receive, other.send)
            large.left.set()
            await task
        return other

    assert asyncio.run(ask()).status == 200
    assert not guard._body_bytes


def test_an_answered_request_frees_its_bytes_while_others_run() -> None:
    behind = Behind()
    guard = guarded(Limits(max_body_bytes_per_client=50), behind)
    held = Client(parts=[b"x" * 20])

    async def ask() -> list[int | None]:
        behind.held = asyncio.Event()
        async with asyncio.timeout(30):
            first = asyncio.create_task(guard(held.scope, held.receive, held.send))
            await asyncio.sleep(0.02)
            found = []
            for size in (60, 30, 20, 30, 31, 30):
                client = Client(parts=[b"x" * size], path="/health")
                behind.held, waited = None, behind.held
                await guard(client.scope, client.receive, client.send)
                behind.held = waited
                found.append(client.status)
            assert behind.held is not None
            behind.held.set()
            await first
        return found

    assert asyncio.run(ask()) == [429, 200, 200, 200, 429, 200]
    assert not guard._body_bytes


def test_an_answer_is_broken_off_if_its_client_leaves() -> None:
    client, seen = Client(parts=[b"x"]), []

    async def streams(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        client.left.set()
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            seen.append("broken off")
            raise

    guard = Guard(streams, Limits(), Metrics())
    asyncio.run(guard(client.scope, client.receive, client.send))
    assert seen == ["broken off"]


def test_a_client_that_leaves_gives_up_its_place_in_the_queue() -> None:
    behind, client = Behind(), Client(parts=[b"x"])
    metrics = Metrics()
    guard = Guard(behind, Limits(), metrics)

    async def leave() -> None:
        behind.held = asyncio.Event()
        async with asyncio.timeout(30):
            task = asyncio.create_task(guard(client.scope, client.receive, client.send))
            await asyncio.sleep(0.02)
            client.left.set()
            await task  # and no error of it

    asyncio.run(leave())
    assert (behind.cancelled, client.answer) == (1, [])
    assert not guard._under_way
    assert 'dragoman_requests_total{path="other",status="499"} 1.0' in metrics.text().decode()


def test_a_client_that_leaves_after_the_answer_cancels_nothing() -> None:
    ended = []
    client = Client(parts=[b"x"])

    async def goes_on(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b"b"})
        client.left.set()
        await asyncio.sleep(0.02)
        ended.append(True)

    metrics = Metrics()
    metrics.known_paths.add("/translate")
    guard = Guard(goes_on, Limits(), metrics)
    asyncio.run(guard(client.scope, client.receive, client.send))
    assert ended == [True]
    assert [message.get("body") for message in client.answer] == [None, b"a", b"b"]
    assert 'dragoman_requests_total{path="/translate",status="201"}' in metrics.text().decode()


def test_an_end_of_the_server_is_no_client_that_leaves() -> None:
    behind, client = Behind(), Client()
    guard = guarded(behind=behind)

    async def end() -> None:
        behind.held = asyncio.Event()
        task = asyncio.create_task(guard(client.scope, client.receive, client.send))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(end())
    assert behind.cancelled == 1
    assert not guard._under_way


def test_one_network_is_one_client() -> None:
    clients = [Client(address=f"2001:db8::{number}") for number in (1, 2)]
    clients.append(Client(address="2001:db8:1::1"))
    assert statuses(Limits(max_requests_per_client=1), clients) == [200, 429, 200]
