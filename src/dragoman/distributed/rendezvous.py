"""How the processes of a run find each other. Free of torch, so that launchers need not import
it."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Final, Self

RENDEZVOUS_VARIABLE: Final = "DRAGOMAN_RENDEZVOUS"
"""Names the file through which the processes of one machine meet; `launch` sets it."""
STORE_VARIABLE: Final = "DRAGOMAN_STORE"
"""`address:port/token` of the store through which processes of several machines meet."""
ROUND_VARIABLE: Final = "DRAGOMAN_ROUND"
"""The name of the round in which the hosts of this process met; `elastic` sets it."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """The address of a run's store, and the token that keeps runs apart in it."""

    address: str
    port: int
    token: str

    @property
    def endpoint(self) -> str:
        """The endpoint in torchrun's form."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.port}"

    def __str__(self) -> str:
        return f"{self.endpoint}/{self.token}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of str."""
        endpoint, _, token = text.partition("/")
        address, _, port = endpoint.rpartition(":")
        return cls(address.strip("[]"), int(port), token)

    @classmethod
    def of_this_process(cls) -> Self | None:
        """The address from the environment; None if all processes of the run are on this
        machine."""
        text = os.environ.get(STORE_VARIABLE)
        return None if text is None else cls.parse(text)


def listen(address: str, port: int) -> socket.socket:
    """A socket that accepts connections at this address alone; port 0 chooses a free one.

    Raises OSError if it cannot listen there.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family)


def attempt() -> str:
    """The name of the round in which the hosts met: the workers of each meet in a new place."""
    return os.environ.get(ROUND_VARIABLE, "0")
