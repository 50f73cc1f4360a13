"""Limits of a request, checked before any other code sees it.

400   more than one Host, Origin, Sec-Fetch-Site or Authorization, or a field of a query or form
      that is there twice: another program may check the one that we do not; no Host with HTTP/1.1
      (RFC 9112, section 3.2)
401   no token or a wrong one; only /health needs none
403   sent by another site's page, without the knowledge of its reader
408   a body that does not arrive in time
413   a body that is too large
421   a name that is not this machine's (DNS rebinding: another site's name that leads here)
429   one client has too many requests under way, or too long bodies
503   the bodies of all clients together are too long
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.serve.bodies import RepeatedFieldError, by_name, fields_of
from dragoman.serve.metrics import AnswerStatus, Metrics
from dragoman.serve.protocol import client_of

_OPEN_PATHS: Final = ("/health",)
_ONCE: Final = (b"host", b"origin", b"sec-fetch-site", b"authorization")
_READ_ONLY: Final = ("GET", "HEAD", "OPTIONS")
_LOOPBACK_NAMES: Final = ("", "localhost", "[::1]")
_PORT: Final = re.compile(r":[0-9]*\Z")
_FORGIVEN: Final = 20
"""A body of up to this multiple of the limit is read to its end, so that its sender sees the
answer."""
_KEY_IN_BODY: Final = "/libretranslate/"
_TOKEN_NEEDED: Final = "a token is needed: Authorization: Bearer TOKEN"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Limits:
    """token: None if none is needed, which is allowed on loopback only."""

    token: str | None = None
    max_body_bytes: int = 1_000_000
    body_s: float = 10.0
    request_s: float = 30.0
    max_waiting_pieces: int = 65_536
    max_requests_per_client: int = 256
    max_body_bytes_per_client: int = 16_000_000
    max_body_bytes_together: int = 64_000_000


class _RefusedError(Exception):
    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


@dataclass(slots=True)
class Guard:
    """ASGI middleware: bounds every request, and counts it."""

    app: ASGIApp
    limits: Limits
    metrics: Metrics
    _under_way: Counter[str] = field(default_factory=Counter)
    _body_bytes: Counter[str] = field(default_factory=Counter)
    """Bytes of the requests under way, by client."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its whole body, or refuse it; HEAD is handled as GET."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # uvicorn sends only the head of the answer
            scope = {**scope, "method": "GET"}
        client = client_of((scope.get("client") or ("",))[0])
        with self.metrics.request(scope["path"]) as status:

            async def send_counted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status.code = message["status"]
                elif not message.get("more_body"):
                    status.answered = True
                await send(message)

            self._under_way[client] += 1
            body = bytearray()
            try:
                named = self._check(scope, client)
                await self._read_body(scope, receive, client, body)
                whole = bytes(body)
                if not named and not await _key_in(whole, scope, self.limits.token or ""):
                    raise _RefusedError(401, _TOKEN_NEEDED)
                async with _while_connected(receive, status):
                    await self.app(scope, _replay(whole, receive), send_counted)
            except _RefusedError as refused:
                await _answer(send_counted, refused.status, str(refused))
            finally:
                self._under_way[client] -= 1
                self._body_bytes[client] -= len(body)
                if not self._under_way[client]:
                    del self._under_way[client], self._body_bytes[client]

    def _check(self, scope: Scope, client: str) -> bool:
        """Refuse by the head alone. Returns False if the token may still be in the body."""
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in headers and name in _ONCE:
                raise _RefusedError(400, f"more than one {name.decode().title()}")
            headers[name] = value
        if b"host" not in headers and scope["http_version"] == "1.1":
            raise _RefusedError(400, "no Host")
        if scope["path"] in _OPEN_PATHS:
            return True
        if self.limits.token is None and not _is_loopback_name(_text(headers, b"host")):
            raise _RefusedError(421, "this server answers to the names of loopback alone")
        if _is_of_another_site(scope["method"], headers):
            raise _RefusedError(403, "this server does not answer the pages of other sites")
        if self._under_way[client] > self.limits.max_requests_per_client:
            raise _RefusedError(429, "you have too many open requests")
        if self.limits.token is None or _knows(self.limits.token, headers):
            return True
        if not scope["path"].startswith(_KEY_IN_BODY):
            raise _RefusedError(401, _TOKEN_NEEDED)
        return False

    async def _read_body(
        self, scope: Scope, receive: Receive, client: str, body: bytearray
    ) -> None:
        """Read the whole body in time; only small ones, so reading ahead costs little memory."""
        headers = dict(scope["headers"])
        if b"content-length" not in headers and b"transfer-encoding" not in headers:
            return
        declared = headers.get(b"content-length", b"0")
        try:
            async with asyncio.timeout(self.limits.body_s):
                await self._read(receive, int(declared) if declared.isdigit() else 0, client, body)
        except TimeoutError:
            raise _RefusedError(408, "the body did not arrive in time") from None

    async def _read(self, receive: Receive, declared: int, client: str, body: bytearray) -> None:
        """Read a body into one piece. The rest of a body that is too large is read for a while and
        dropped, because a client that is still sending would not see the answer."""
        limit = self.limits.max_body_bytes
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _RefusedError(408, "the client has gone")
            part = message.get("body", b"")
            size += len(part)
            ended = not message.get("more_body")
            if max(size, declared) <= limit:
                body += part
                self._body_bytes[client] += len(part)
                if self._body_bytes[client] > self.limits.max_body_bytes_per_client:
                    raise _RefusedError(429, "your open requests hold too much text")
                if self._body_bytes.total() > self.limits.max_body_bytes_together:
                    raise _RefusedError(503, "the server is busy; try again in a second")
            elif ended or max(size, declared) > _FORGIVEN * limit:
                raise _RefusedError(413, f"the body has more than {limit} bytes")
            elif body:
                self._body_bytes[client] -= len(body)
                body.clear()
            if ended:
                return


@asynccontextmanager
async def _while_connected(receive: Receive, status: AnswerStatus) -> AsyncIterator[None]:
    """Leave the block, and so the queue, if the client disconnects before it was answered."""
    task = asyncio.current_task()
    assert task is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = not status.answered
        if gone:
            task.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not gone or task.uncancel():
            raise
    finally:
        watching.cancel()


def _replay(body: bytes, receive: Receive) -> Receive:
    """A receive that gives the body that was read."""
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _knows(token: str, headers: dict[bytes, bytes]) -> bool:
    """Whether the request has the token, as a bearer or as the password of any user."""
    kind, _, value = headers.get(b"authorization", b"").partition(b" ")
    given = [value.strip()] if kind.lower() == b"bearer" else []
    if kind.lower() == b"basic":
        try:
            given.append(base64.b64decode(value, validate=True).partition(b":")[2])
        except binascii.Error:
            return False
    return any(hmac.compare_digest(one, token.encode()) for one in given)


async def _key_in(body: bytes, scope: Scope, token: str) -> bool:
    """Whether the token is in api_key, where clients of LibreTranslate send it."""
    query = scope.get("query_string", b"").decode("latin-1")
    try:
        in_query = by_name(parse_qsl(query, keep_blank_values=True))
        in_body = await fields_of(body, Headers(scope=scope).get("content-type", ""))
    except RepeatedFieldError as error:
        raise _RefusedError(400, str(error)) from None
    except ValueError:
        return False
    given = [str(fields.get("api_key", "")) for fields in (in_query, in_body)]
    expected = token.encode()
    return any(hmac.compare_digest(one.encode("utf-8", "replace"), expected) for one in given)


def _is_of_another_site(method: str, headers: dict[bytes, bytes]) -> bool:
    """Whether a page of another site made a browser send this request.

    The browser names the site of the page itself, and no page can change that: in Sec-Fetch-Site,
    or only in Origin if the browser is old. Other programs send neither. A link from another site
    to our page is allowed: that is a GET without an Origin.
    """
    origin = headers.get(b"origin")
    if method in _READ_ONLY and origin is None:
        return False
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site not in (b"same-origin", b"none")
    if origin is None:
        return False
    host = _text(headers, b"host").lower()
    return origin.decode("latin-1").lower() not in (f"http://{host}", f"https://{host}")


def _text(headers: dict[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")


def _is_loopback_name(host: str) -> bool:
    """Whether a request's host, with a port or without, is a loopback name or is empty."""
    name = _PORT.sub("", host)
    if name.lower() in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.IPv4Address(name).is_loopback
    except ValueError:
        return False


async def _answer(send: Send, status: int, problem: str) -> None:
    body = json.dumps({"error": problem}).encode()
    headers: list[Any] = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    if status == 401:
        headers.append((b"www-authenticate", b'Basic realm="dragoman", charset="UTF-8"'))
    if status in (408, 413):
        headers.append((b"connection", b"close"))
    if status in (429, 503):
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
