"""Who may ask the server, and how much: one middleware before every route.

400   more than one Host, Origin, Sec-Fetch-Site or Authorization: which one counts? or a body
      behind an Upgrade to another protocol
401   no token, or a wrong one
403   sent by a page of another site, without the knowledge of its reader
408   the body did not arrive in time
413   the body is too long
421   not a name of this machine (DNS rebinding: a name of another site that leads here)
429   one client has too many requests under way, or too much text
503   all clients together have too much text, or a translation would wait too long

Clients of LibreTranslate send the token in the body or the query; there its routes look for it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hmac
import ipaddress
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.base import units
from dragoman.serve.limits import Limits
from dragoman.serve.metrics import Metrics

LIBRETRANSLATE: Final = "/libretranslate"
"""LibreTranslate's interface is under this path, and at the root."""
_HEALTH: Final = "/health"
_OPEN_PATHS: Final = (_HEALTH, "/languages", "/frontend/settings", "/suggest")
"""What LibreTranslate tells without a key."""
_DOWNLOADS: Final = "/download_file/"
"""Nobody but its sender knows the address of a file."""
_KEYED_PATHS: Final = ("/translate", "/detect", "/translate_file")
"""Whose routes look for the token themselves, by `check_key`."""
_QUEUED_PATHS: Final = ("/translate", "/translate/stream", "/translate_file")
"""Whose texts wait for a worker."""
_ONCE: Final = (b"host", b"origin", b"sec-fetch-site", b"authorization")
_READ_ONLY: Final = ("GET", "HEAD", "OPTIONS")
_PORT: Final = re.compile(r":[0-9]*\Z")
_TOKEN_NEEDED: Final = "a token is needed: Authorization: Bearer TOKEN"  # noqa: S105


class Guard:
    """ASGI middleware: refuses requests, bounds their bodies, and counts them.

    retry_s: when to try again, if no model has room for a single piece; else 0. It is asked before
        a body is parsed, which took as long as all else of a refusal.
    """

    def __init__(
        self, app: ASGIApp, limits: Limits, metrics: Metrics, retry_s: Callable[[], float]
    ) -> None:
        self._app, self._limits, self._metrics, self._retry_s = app, limits, metrics, retry_s
        self._under_way: Counter[str] = Counter()
        self._body_bytes: Counter[str] = Counter()
        """Bytes of the requests under way, by client."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        last: list[Message] = []
        """The end of an answer that was given before the body was there."""
        with self._metrics.request(scope["path"]) as answer:

            async def send_seen(message: Message) -> None:
                if message["type"] == "http.response.start":
                    answer.status = message["status"]
                elif not message.get("more_body") and not body.is_whole:
                    last.append(message)
                    return
                await send(message)

            client = client_of((scope.get("client") or ("",))[0])
            body = _Body(self._limits, receive, self._body_bytes, client)
            body.waits_for_leave = any(name == b"expect" for name, _ in scope["headers"])
            self._under_way[client] += 1
            try:
                refusal = self._refusal(scope, client)
                if refusal is None:
                    await self._app(scope, body.receive, send_seen)
                else:
                    await refusal(scope, receive, send_seen)
                # What came of a refused body is free by now, so it takes no place of others.
                body.release()
                if last:
                    await body.drop_rest()
                    await send(last[0])
            finally:
                self._under_way[client] -= 1
                body.release()
                if not self._under_way[client]:
                    del self._under_way[client], self._body_bytes[client]

    def _refusal(self, scope: Scope, client: str) -> Response | None:
        names = [name for name, _ in scope["headers"] if name in _ONCE]
        if len(set(names)) < len(names):
            return error_response(400, "a header is there twice; send each header once")
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        path = scope["path"]
        if "upgrade" in headers and ("content-length" in headers or "transfer-encoding" in headers):
            # The parser takes what follows for another protocol: the body never comes.
            problem = "no other protocol is spoken here; send the body without an Upgrade header"
            return error_response(400, f"{problem}, by HTTP/1.1 alone")
        if path == _HEALTH:
            return None
        host = _PORT.sub("", headers.get("host", ""))
        if self._limits.token is None and host and not is_loopback(host):
            return error_response(421, "this server answers to the names of loopback alone")
        if _is_of_another_site(scope["method"], headers, self._limits.allowed_origins):
            return error_response(403, "this server does not answer the pages of other sites")
        if self._under_way[client] > self._limits.max_requests_per_client:
            return error_response(429, "you have too many open requests")
        scope["knows_token"] = self._limits.token is None or _knows(self._limits.token, headers)
        own, posts = path.removeprefix(LIBRETRANSLATE), scope["method"] == "POST"
        if not (
            scope["knows_token"]
            or own in _OPEN_PATHS
            or own.startswith(_DOWNLOADS)
            or (own in _KEYED_PATHS and posts)
        ):
            return error_response(401, _TOKEN_NEEDED)
        if posts and own in _QUEUED_PATHS and (retry_s := self._retry_s()):
            return busy_response(math.ceil(retry_s))
        return None


class _Body:
    """A body on its way: bounded in size and time, also together with those of others."""

    def __init__(
        self, limits: Limits, receive: Receive, held_bytes: Counter[str], client: str
    ) -> None:
        self.size = 0
        self.waits_for_leave = False
        """Whether the client sends its body only when it is told to go on (Expect)."""
        self._limits, self._receive, self._held, self._client = limits, receive, held_bytes, client
        self._deadline = asyncio.get_running_loop().time() + limits.body_s
        self.is_whole = False

    async def receive(self) -> Message:
        """The next part; raises the answers 408, 413, 429 and 503."""
        if self.is_whole:
            return await self._receive()
        self.waits_for_leave = False
        most_bytes = self._limits.max_body_bytes
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
                length = len(message.get("body", b""))
                # The rest of a body that is too long is dropped: its sender reads no answer before.
                while self.size + length > most_bytes and message.get("more_body"):
                    message = await self._receive()
        except TimeoutError:
            closes = {"Connection": "close"}
            raise HTTPException(408, "the body did not arrive in time", closes) from None
        self.is_whole = not message.get("more_body")
        if self.size + length > most_bytes:
            raise HTTPException(413, f"the body has more than {most_bytes} bytes")
        self.size += length
        self._held[self._client] += length
        if self._held[self._client] > self._limits.max_body_bytes_per_client:
            raise HTTPException(429, "your open requests hold too much text")
        if self._held.total() > self._limits.max_body_bytes_together:
            raise HTTPException(503, "the server is busy; try again in a second")
        return message

    def release(self) -> None:
        """Count the bytes no longer as held."""
        self._held[self._client] -= self.size
        self.size = 0

    async def drop_rest(self) -> None:
        """Read what is still on its way.

        The server closes a connection after its last answer. If a client is still sending then, it
        sees a broken connection in place of the answer.
        """
        if self.waits_for_leave:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._deadline):
                while not self.is_whole:
                    self.is_whole = not (await self._receive()).get("more_body")


def check_token(request: Request) -> None:
    """Raises the answer 401 if the request came without the token."""
    if not request.scope["knows_token"]:
        raise HTTPException(401, _TOKEN_NEEDED)


def check_key(request: Request, key: object, token: str | None) -> None:
    """Raises the answers of LibreTranslate if neither header nor key is the token."""
    given = str(key or "").encode("utf-8", "replace")
    if token is None or request.scope["knows_token"] or _is_token(given, token):
        return
    if key or "authorization" in request.headers:
        raise HTTPException(403, "the API key is wrong; send the server's token as api_key")
    raise HTTPException(400, "an API key is needed; send the server's token as api_key")


def error_response(status: int, problem: str, headers: dict[str, str] | None = None) -> Response:
    """An error as JSON, with the headers that belong to its status."""
    headers = dict(headers or {})
    if status == 401:
        headers["WWW-Authenticate"] = 'Basic realm="dragoman", charset="UTF-8"'
    if status in (429, 503):
        headers.setdefault("Retry-After", "1")
    return JSONResponse({"error": problem}, status, headers)


@lru_cache(maxsize=64)
def busy_response(retry_s: int) -> Response:
    """The answer to a text that would wait too long."""
    after = units.DURATION.text(retry_s)
    problem = f"the server is busy; try again in {after}"
    return error_response(503, problem, {"Retry-After": str(retry_s)})


@lru_cache(maxsize=4096)
def client_of(address: str) -> str:
    """The client behind an address: of IPv6 its /64 network, because one host has all of it."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))


def _knows(token: str, headers: Mapping[str, str]) -> bool:
    """Whether the request has the token, as a bearer or as the password of any user."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    given = value.strip(" \t").encode("latin-1")
    if kind.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    return kind.lower() in ("bearer", "basic") and _is_token(given, token)


def _is_token(given: bytes, token: str) -> bool:
    return hmac.compare_digest(given, token.encode())  # in constant time


def _is_of_another_site(method: str, headers: Mapping[str, str], allowed: Sequence[str]) -> bool:
    """Whether a page of another site, not of an allowed one, made a browser send this request.

    The browser names the site of the page itself, and no page can change that: in Sec-Fetch-Site,
    or only in Origin if the browser is old. Other programs send neither. A link from another site
    to our page is allowed: that is a GET without an Origin.
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is None and (method in _READ_ONLY or site is None):
        return False
    if origin is not None and ("*" in allowed or origin in allowed):
        return False
    if site is not None:
        return site not in ("same-origin", "none")
    host = headers.get("host", "").lower()
    return str(origin).lower() not in (f"http://{host}", f"https://{host}")


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether a host is a name of loopback; an address of IPv6 may stand in brackets."""
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
