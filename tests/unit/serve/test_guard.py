"""The guard lets through and refuses requests: each of its rules by itself; no server runs."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from bad_input import complaint
from dragoman.api.translation import serve
from dragoman.base.errors import ConfigError
from dragoman.cli import main
from dragoman.serve.guard import Guard, check_key, check_token, error_response
from dragoman.serve.limits import Limits, origin
from dragoman.serve.metrics import Metrics

TOKEN = "0123456789abcdef"
Header = tuple[bytes, bytes]


async def application(scope: Any, receive: Any, send: Any) -> None:
    """As ours: it reads the body, and asks for the token where LibreTranslate's key may be."""
    request = Request(scope, receive)
    try:
        body = await request.body()
        if scope["path"] == "/libretranslate/translate":
            check_key(request, request.query_params.get("api_key"), TOKEN)
        elif scope["path"] != "/health":
            check_token(request)
        await asyncio.sleep(0.05)
        answer = Response(body)
    except HTTPException as error:
        answer = error_response(error.status_code, error.detail, dict(error.headers or {}))
    await answer(scope, receive, send)


@dataclass
class Client:
    """One request: what it sends, and what it was answered. stalls: its body never ends."""

    headers: Sequence[Header] = ()
    parts: Sequence[bytes] = (b"",)
    path: str = "/models"
    method: str = "POST"
    query: bytes = b""
    address: str = "127.0.0.1"
    stalls: bool = False
    answer: list[Any] = field(default_factory=list)

    async def ask(self, guard: Guard) -> None:
        left = list(self.parts)

        async def receive() -> Any:
            if not left:
                await asyncio.Event().wait()
            part = left.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(left) or self.stalls}

        async def send(message: Any) -> None:
            self.answer.append(message)

        has_host = any(name == b"host" for name, _ in self.headers)
        own = [] if has_host else [(b"host", b"localhost:8320")]
        scope = {
            "type": "http",
            "method": self.method,
            "path": self.path,
            "query_string": self.query,
            "headers": [*own, *self.headers],
            "client": (self.address, 1),
        }
        async with asyncio.timeout(30):
            await guard(scope, receive, send)

    @property
    def status(self) -> int:
        status: int = self.answer[0]["status"]
        return status

    @property
    def answered_headers(self) -> dict[bytes, bytes]:
        return dict(self.answer[0]["headers"])


def asked(*clients: Client, limits: Limits | None = None, retry_s: float = 0.0) -> list[int]:
    """The statuses of clients that ask together; then all that they took is given back."""
    guard = Guard(application, limits or Limits(), Metrics(), lambda: retry_s)

    async def ask() -> None:
        await asyncio.gather(*(client.ask(guard) for client in clients))
        again = Client(parts=[b"x"], path="/health")
        await again.ask(guard)
        assert again.status == 200

    asyncio.run(ask())
    return [client.status for client in clients]


def bearer(token: str) -> Header:
    return b"authorization", f"Bearer {token}".encode()


@pytest.mark.parametrize(
    "end", ["\N{LATIN SMALL LETTER A WITH GRAVE}", "\N{CYRILLIC SMALL LETTER HA}"]
)
def test_no_byte_of_a_token_is_taken_for_a_space(end: str) -> None:
    """The last byte of this token, A0 or 85, is a space in Latin-1."""
    token = TOKEN + end
    assert asked(Client([bearer(token)]), limits=Limits(token=token)) == [200]


def basic(user: str, token: str) -> Header:
    return b"authorization", b"Basic " + base64.b64encode(f"{user}:{token}".encode())


@pytest.mark.parametrize("name", ["host", "origin", "sec-fetch-site", "authorization"])
def test_a_header_that_says_who_asks_is_there_once(name: str) -> None:
    header = (name.encode(), b"localhost")
    assert asked(Client([header, (b"x-other", b"1"), header])) == [400]
    assert asked(Client([(b"accept", b"a"), (b"accept", b"b")])) == [200]


def test_a_body_behind_an_offer_of_another_protocol_is_refused_in_words() -> None:
    """The parser of HTTP takes what follows for the other protocol."""
    offer = [(b"host", b"localhost"), (b"upgrade", b"h2c")]
    assert asked(Client([*offer, (b"content-length", b"2")])) == [400]
    assert asked(Client([*offer, (b"transfer-encoding", b"chunked")])) == [400]
    assert asked(Client(offer, method="GET")) == [200]


HOSTS = {
    200: ["localhost", "LocalHost:8320", "127.0.0.1:80", "127.255.0.9", "[::1]", "[::1]:8320", "",
          "localhost:"],
    421: ["[::2]", "[::1", "::1", "192.168.0.1", "localhost.example.org", "example.org:8320",
          "127.0.0.1.example.org", "localhost:1:2", "localhost:example.org", ":example.org",
          "localhost.", "127.1", "2130706433", "0x7f.0.0.1",
          "localhost, example.org", "localhost@example.org", "localhost/x", "\xff"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("host", "status"), [(host, status) for status, hosts in HOSTS.items() for host in hosts]
)
def test_without_a_token_only_names_of_loopback_are_answered(host: str, status: int) -> None:
    header = (b"host", host.encode("latin-1"))
    assert asked(Client([header])) == [status]
    assert asked(Client([header, bearer(TOKEN)]), limits=Limits(token=TOKEN)) == [200]


OWN = (b"origin", b"http://localhost:8320")
ELSEWHERE = (b"origin", b"http://evil.example")
SITES: dict[str, tuple[str, list[Header], bool]] = {
    "no browser": ("POST", [], True),
    "our page": ("POST", [OWN], True),
    "our page, behind TLS": ("POST", [(b"origin", b"https://LOCALHOST:8320")], True),
    "another port": ("POST", [(b"origin", b"http://localhost:1")], False),
    "another site": ("POST", [ELSEWHERE], False),
    "a file": ("POST", [(b"origin", b"null")], False),
    "an app": ("POST", [(b"origin", b"capacitor://localhost:8320")], False),
    "more than a site": ("POST", [(b"origin", b"http://localhost:8320#.evil.example")], False),
    "our page, new browser": ("POST", [(b"sec-fetch-site", b"same-origin")], True),
    "typed": ("POST", [(b"sec-fetch-site", b"none")], True),
    "another site, new browser": ("POST", [(b"sec-fetch-site", b"cross-site")], False),
    "a neighbour": ("POST", [(b"sec-fetch-site", b"same-site")], False),
    "it says so itself": ("POST", [(b"sec-fetch-site", b"cross-site"), OWN], False),
    "a proxy changed the host": ("POST", [(b"sec-fetch-site", b"same-origin"), ELSEWHERE], True),
    "a link": ("GET", [(b"sec-fetch-site", b"cross-site")], True),
    "a script that reads": ("GET", [ELSEWHERE], False),
    "a script that deletes": ("DELETE", [(b"sec-fetch-site", b"cross-site")], False),
}


@pytest.mark.parametrize(("method", "headers", "allowed"), SITES.values(), ids=SITES)
def test_pages_of_other_sites_are_not_answered(
    method: str, headers: list[Header], allowed: bool
) -> None:
    assert asked(Client(headers, method=method)) == [200 if allowed else 403]
    health = Client(headers, method=method, path="/health")
    assert asked(health) == [200], "everybody may ask whether it runs"


@pytest.mark.parametrize(
    ("allowed", "origin", "status"),
    [
        (("https://one.example",), b"https://one.example", 200),
        (("https://one.example",), b"https://one.example.org", 403),
        (("https://one.example",), b"http://one.example", 403),
        (("https://one.example",), b"https://one.example:444", 403),
        (("*",), b"https://any.example", 200),
        ((), b"https://one.example", 403),
    ],
)
def test_pages_of_named_sites_may_ask(allowed: tuple[str, ...], origin: bytes, status: int) -> None:
    client = Client([(b"origin", origin), (b"sec-fetch-site", b"cross-site")])
    assert asked(client, limits=Limits(allowed_origins=allowed)) == [status]


@pytest.mark.parametrize(
    ("named", "sent"),
    [
        ("https://ok.example:443", "https://ok.example"),
        ("http://ok.example:080", "http://ok.example"),
        ("https://ok.example:80", "https://ok.example:80"),
        ("HTTPS://OK.example:8443", "https://ok.example:8443"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("chrome-extension://abc", "chrome-extension://abc"),
        ("*", "*"),
    ],
)
def test_a_named_site_is_that_of_a_browser(named: str, sent: str) -> None:
    assert origin(named) == sent


@pytest.mark.parametrize(
    ("named", "remedy"),
    [
        ("https://*.ok.example", "name each site"),
        ("https://ok.example:*", "name each site"),
        ("https://ok.example/", "without a path"),
        ("https://ok.example:port", "write it as https://example.org"),
        ("https://ok.example:65536", "write it as https://example.org"),
        ("https://user@ok.example", "write it as https://example.org"),
        ("https://größe.example", "in ASCII"),
        ("ok.example", "write it as https://example.org"),
        ("null", "write it as https://example.org"),
    ],
)
def test_a_site_that_no_browser_names_is_refused(
    capsys: pytest.CaptureFixture[str], named: str, remedy: str
) -> None:
    assert main(["serve", "nothing", "--allow-origin", named]) != 0
    said = complaint(capsys)
    assert f"--allow-origin {named}: is " in said
    assert remedy in said


CREDENTIALS: dict[str, tuple[list[Header], bool]] = {
    "bearer": ([bearer(TOKEN)], True),
    "in small letters": ([(b"authorization", b"bearer  " + TOKEN.encode() + b" ")], True),
    "a user's password": ([basic("anybody", TOKEN)], True),
    "none": ([], False),
    "no kind": ([(b"authorization", TOKEN.encode())], False),
    "another kind": ([(b"authorization", b"Digest " + TOKEN.encode())], False),
    "the beginning": ([bearer(TOKEN[:-1])], False),
    "more": ([bearer(TOKEN + "0")], False),
    "capitals": ([bearer(TOKEN.upper())], False),
    "an empty one": ([bearer("")], False),
    "a user of that name": ([basic(TOKEN, "")], False),
    "user and password": ([basic("a", f"b:{TOKEN}")], False),
    "no base64": ([(b"authorization", b"Basic !" + TOKEN.encode())], False),
    "no text": ([(b"authorization", b"Bearer \xff")], False),
    "no ASCII": ([(b"authorization", b"Basic \xff\xfe")], False),
    "elsewhere": ([(b"x-api-key", TOKEN.encode())], False),
}


@pytest.mark.parametrize(("headers", "knows"), CREDENTIALS.values(), ids=CREDENTIALS)
def test_only_the_token_itself_opens(headers: list[Header], knows: bool) -> None:
    client = Client(headers)
    assert asked(client, limits=Limits(token=TOKEN)) == [200 if knows else 401]
    if not knows:
        assert client.answered_headers[b"www-authenticate"].startswith(b"Basic ")
    libre = Client(headers, path="/libretranslate/translate")
    tried = any(name == b"authorization" for name, _ in headers)
    assert asked(libre, limits=Limits(token=TOKEN)) == [200 if knows else 403 if tried else 400]


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [
        ("/libretranslate/translate", TOKEN, 200),
        ("/libretranslate/translate", TOKEN[1:], 403),
        ("/libretranslate/translate", "", 400),
        ("/translate", TOKEN, 401),  # of our interface, whose application has asked for the token
        ("/models", TOKEN, 401),
        ("/x/libretranslate/translate", TOKEN, 401),
    ],
)
def test_a_key_opens_the_paths_of_libretranslate_alone(path: str, key: str, status: int) -> None:
    client = Client(path=path, query=f"api_key={key}".encode())
    assert asked(client, limits=Limits(token=TOKEN)) == [status]


def test_a_body_is_bounded_in_size_and_in_time() -> None:
    limits = Limits(max_body_bytes=10, body_s=0.05)
    whole = Client(parts=[b"x" * 6, b"", b"y" * 4])
    assert asked(whole, limits=limits) == [200]
    assert whole.answer[1]["body"] == b"x" * 6 + b"y" * 4
    assert asked(Client(parts=[b"x" * 6, b"x" * 5]), limits=limits) == [413]
    assert asked(Client(parts=[b"x" * 11, *[b"x"] * 50]), limits=limits) == [413]
    assert asked(Client(parts=[b"x" * 11], stalls=True), limits=limits) == [408]
    late = Client(parts=[b"x"], stalls=True)
    assert asked(late, limits=limits) == [408]
    assert late.answered_headers[b"connection"] == b"close"


def test_clients_have_so_much_under_way_and_others_have_their_own() -> None:
    there = "127.0.0.2"
    clients = [*(Client() for _ in range(4)), Client(address=there), Client(path="/health")]
    found = asked(*clients, limits=Limits(max_requests_per_client=2))
    assert found == [200, 200, 429, 429, 200, 200]
    assert clients[2].answered_headers[b"retry-after"] == b"1"
    texts = [*(Client(parts=[b"x" * 20]) for _ in range(3)), Client(parts=[b"x"], address=there)]
    assert asked(*texts, limits=Limits(max_body_bytes_per_client=40)) == [200, 200, 429, 200]
    texts = [Client(parts=[b"x" * 20], address=f"127.0.0.{number}") for number in range(4)]
    assert asked(*texts, limits=Limits(max_body_bytes_together=60)) == [200, 200, 200, 503]
    assert json.loads(texts[3].answer[1]["body"])["error"].startswith("the server is busy")


def test_a_refused_body_takes_no_place_while_its_rest_is_on_the_way() -> None:
    limits = Limits(max_body_bytes_per_client=40, body_s=0.5)
    guard = Guard(application, limits, Metrics(), lambda: 0.0)
    refused = Client(parts=[b"x" * 20, b"x" * 30], stalls=True)
    later = Client(parts=[b"x" * 30])

    async def ask() -> None:
        async with asyncio.TaskGroup() as asking:
            asking.create_task(refused.ask(guard))
            await asyncio.sleep(0.1)
            asking.create_task(later.ask(guard))

    asyncio.run(ask())
    assert (refused.status, later.status) == (429, 200)


def test_a_translation_is_refused_before_its_body_is_read_if_the_queue_is_full() -> None:
    """Reading and checking the body took as long as all else of a refusal."""
    paths = ["/translate", "/translate/stream", "/libretranslate/translate", "/translate_file"]
    others = [Client(path="/detect"), Client(path="/translate", method="GET")]
    clients = [*(Client(path=path, parts=[b"not JSON"]) for path in paths), *others]
    assert asked(*clients, retry_s=2.2) == [503, 503, 503, 503, 200, 200]
    assert clients[0].answered_headers[b"retry-after"] == b"3"
    assert b"the server is busy" in clients[0].answer[1]["body"]
    assert asked(Client(path="/translate")) == [200]
    # Nobody learns without the token how busy it is.
    stranger = Client(path="/translate/stream")
    assert asked(stranger, limits=Limits(token=TOKEN), retry_s=2.2) == [401]


def test_one_network_is_one_client() -> None:
    clients = [Client(address=f"2001:db8::{number}") for number in (1, 2)]
    clients.append(Client(address="2001:db8:1::1"))
    assert asked(*clients, limits=Limits(max_requests_per_client=1)) == [200, 429, 200]


@pytest.mark.parametrize(
    "token", [b"\xff\xfe0123456789abcdef", b"short", b"0123456789\n0123456789"]
)
def test_a_token_that_no_header_can_carry_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], token: bytes
) -> None:
    (tmp_path / "token").write_bytes(token)
    assert main(["serve", "nothing", "--token-file", str(tmp_path / "token")]) != 0
    assert "the token" in complaint(capsys)


def test_a_proxy_that_is_no_address_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "nothing", "--trusted-proxy", "127.0.0.1/8"]) != 0
    assert "--trusted-proxy 127.0.0.1/8: is neither an address nor a network" in complaint(capsys)


@pytest.mark.parametrize("host", ["nonsense.invalid", "203.0.113.1"])
def test_a_host_that_is_no_address_of_ours_is_refused_before_the_models_are_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, host: str
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    options = ["--host", host, "--token-file", str(tmp_path / "token")]
    assert main(["serve", "no-model", *options]) != 0
    said = complaint(capsys)
    assert f"{host}:8320: cannot listen: " in said
    assert "Unknown error" not in said
    assert said.endswith("as the host an address of this machine such as 127.0.0.1")


def test_a_server_is_for_the_main_thread() -> None:
    """Python takes signals there alone."""
    with ThreadPoolExecutor(1) as other, pytest.raises(ConfigError, match="in the main thread"):
        other.submit(serve, ["no-model"]).result()


def test_a_wrong_argument_leads_to_help_that_there_is() -> None:
    with pytest.raises(ConfigError) as refused:
        serve(["no-model"], timeout=0)
    assert refused.value.remedy == "see help(dragoman.api.translation.serve)"
