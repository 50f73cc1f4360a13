"""What a request may take, checked before anything else sees it.

400   a request with more than one Host: which of them was checked would be anybody's guess;
      one of HTTP/1.1 without any (RFC 9112, section 3.2)
401   without the token nothing answers but /health
408   a body that does not arrive in time
413   a body that is too large
421   a name this machine was not asked for by: another page's way into a local server
429   one client has too many requests under way
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.serve.form import fields_of
from dragoman.serve.metrics import Metrics, Status

_OPEN_PATHS: Final = ("/health",)
_LOOPBACK_NAMES: Final = ("", "localhost", "[::1]")
_FORGIVEN: Final = 20
"""Times the limit that a body may have for its sender to be told in good order."""
_KEY_IN_BODY: Final = "/libretranslate/"
_TOKEN_NEEDED: Final = "a token is needed: Authorization: Bearer TOKEN"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Limits:
    """token: None where none is asked for, which only loopback may do."""

    token: str | None = None
    max_body_bytes: int = 1_000_000
    body_s: float = 10.0
    request_s: float = 30.0
    max_waiting_pieces: int = 65_536
    max_requests_per_client: int = 256


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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its whole body, or refuse it; one to HEAD is one to GET."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # uvicorn sends the head of the answer alone
            scope = {**scope, "method": "GET"}
        client = (scope.get("client") or ("",))[0]
        with self.metrics.request(scope["path"]) as status:

            async def send_counted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status.code = message["status"]
                elif not message.get("more_body"):
                    status.answered = True
                await send(message)

            self._under_way[client] += 1
            try:
                named = self._check(scope, client)
                body = await self._body(scope, receive)
                if not named and not _key_in(body, scope, self.limits.token or ""):
                    raise _RefusedError(401, _TOKEN_NEEDED)
                async with _while_connected(receive, status):
                    await self.app(scope, _replay(body, receive), send_counted)
            except _RefusedError as refused:
                await _answer(send_counted, refused.status, str(refused))
            finally:
                self._under_way[client] -= 1
                if not self._under_way[client]:
                    del self._under_way[client]

    def _check(self, scope: Scope, client: str) -> bool:
        """Refuse what needs no body to be refused; whether no token is missing so far."""
        headers = dict(scope["headers"])
        num_hosts = sum(name == b"host" for name, _ in scope["headers"])
        if num_hosts > 1:
            raise _RefusedError(400, "more than one Host")
        if not num_hosts and scope["http_version"] == "1.1":
            raise _RefusedError(400, "no Host")
        if scope["path"] in _OPEN_PATHS:
            return True
        if self._under_way[client] > self.limits.max_requests_per_client:
            raise _RefusedError(429, "too many requests of yours are under way")
        if self.limits.token is None:
            if not _is_loopback_name(headers.get(b"host", b"").decode("latin-1")):
                raise _RefusedError(421, "this server answers to the names of loopback alone")
            return True
        if _knows(self.limits.token, headers):
            return True
        if not scope["path"].startswith(_KEY_IN_BODY):
            raise _RefusedError(401, _TOKEN_NEEDED)
        return False

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body; small ones only, so that reading ahead costs no memory."""
        headers = dict(scope["headers"])
        if b"content-length" not in headers and b"transfer-encoding" not in headers:
            return b""
        declared = headers.get(b"content-length", b"0")
        try:
            async with asyncio.timeout(self.limits.body_s):
                return await self._read(receive, int(declared) if declared.isdigit() else 0)
        except TimeoutError:
            raise _RefusedError(408, "the body did not arrive in time") from None

    async def _read(self, receive: Receive, declared: int) -> bytes:
        """A body in one piece. One that is too large is read on for a while, and forgotten: a
        client that is still sending would not see the answer."""
        limit = self.limits.max_body_bytes
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _RefusedError(408, "the client has gone")
            size += len(message.get("body", b""))
            ended = not message.get("more_body")
            if max(size, declared) <= limit:
                parts.append(message.get("body", b""))
            elif ended or max(size, declared) > _FORGIVEN * limit:
                raise _RefusedError(413, f"the body has more than {limit} bytes")
            else:
                parts.clear()
            if ended:
                return b"".join(parts)


@asynccontextmanager
async def _while_connected(receive: Receive, status: Status) -> AsyncIterator[None]:
    """Leave the block where the client goes away before it was answered: so do its rows."""
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


def _key_in(body: bytes, scope: Scope, token: str) -> bool:
    """Whether a client of LibreTranslate has put the token where its own key goes."""
    query = scope.get("query_string", b"").decode("latin-1")
    given = [parse_qs(query).get("api_key", [""])[0]]
    content_type = Headers(scope=scope).get("content-type", "")
    try:
        given.append(str(fields_of(body, content_type).get("api_key", "")))
    except (ValueError, RecursionError):
        return False
    expected = token.encode()
    return any(hmac.compare_digest(one.encode("utf-8", "replace"), expected) for one in given)


def _is_loopback_name(host: str) -> bool:
    """The host of a request, with a port or without."""
    name = host if host.endswith("]") else host.rsplit(":", 1)[0]
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
    if status == 429:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
