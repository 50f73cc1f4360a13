"""The limits of a server, and the readers of its token, origins and networks."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dragoman.base.errors import ConfigError

TOKEN_VARIABLE: Final = "DRAGOMAN_TOKEN"  # noqa: S105
_SHORTEST_TOKEN: Final = 16
_ORIGIN: Final = re.compile(
    r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?"
)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_HIGHEST_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class Limits:
    """token: None if none is needed, which is allowed on loopback only.

    allowed_origins: of sites whose pages may ask this server; "*" stands for all.
    trusted_proxies: addresses and networks whose X-Forwarded-For and X-Forwarded-Proto are taken.
    request_s: the time of a request, also after a signal.
    """

    token: str | None = None
    allowed_origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    max_body_bytes: int = 1_000_000
    body_s: float = 10.0
    request_s: float = 30.0
    max_waiting_pieces: int = 65_536
    max_requests_per_client: int = 256
    max_body_bytes_per_client: int = 16_000_000
    max_body_bytes_together: int = 64_000_000


def token_of(file: Path | None) -> str | None:
    """The token, from a file or the environment: every user of a machine can read a command line.

    None if there is none. Raises ConfigError if it cannot be read or is not fit.
    """
    if file is None:
        given = os.fsencode(os.environ.get(TOKEN_VARIABLE, ""))
    else:
        try:
            given = file.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"cannot be read: {error.strerror}", place=file, remedy="check its name"
            ) from error
    place = str(file or TOKEN_VARIABLE)
    remedy = "make one, for example with: openssl rand -hex 16"
    try:
        token = given.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise ConfigError("the token is not UTF-8", place=place, remedy=remedy) from error
    if not token and file is None:
        return None
    if not token.isprintable():  # no header can carry it, so no client could send it
        raise ConfigError(
            "the token has a line break or another character that cannot be printed",
            place=place,
            remedy=remedy,
        )
    if len(token) < _SHORTEST_TOKEN:
        raise ConfigError(
            f"the token has fewer than {_SHORTEST_TOKEN} characters", place=place, remedy=remedy
        )
    return token


def origin(text: str) -> str:
    """An origin as browsers write it; raises ConfigError if it is none."""
    if text == "*":
        return text
    if "*" in text:
        raise ConfigError(
            "is a pattern, which matches no site",
            place=f"allowed_origins {text}",
            remedy="name each site, or allow all of them: *",
        )
    found = _ORIGIN.fullmatch(text.lower())
    if found is None or int(found[3] or 0) > _HIGHEST_PORT:
        raise ConfigError(
            "is not the origin of a site",
            place=f"allowed_origins {text}",
            remedy="write it as https://example.org, in ASCII (xn--...), with a port if it has one "
            "and without a path",
        )
    scheme, host, port = found.groups()
    if port is None or int(port) == _DEFAULT_PORTS.get(scheme):
        return f"{scheme}://{host}"
    return f"{scheme}://{host}:{int(port)}"


def network(text: str) -> str:
    """An address or a network; raises ConfigError if it is none."""
    try:
        ipaddress.ip_network(text)
    except ValueError as error:
        raise ConfigError(
            f"is neither an address nor a network: {error}",
            place=f"trusted_proxies {text}",
            remedy="write it as 127.0.0.1 or as 10.0.0.0/8",
        ) from error
    return text
