"""The rendezvous of several hosts: torchrun's own, with the little that our workers need besides.

torchrun asks for a new round when a worker is lost or a host comes. Before each round the marks of
the earlier workers are removed, so that nobody waits for them. Each round has a name of its own, in
the environment of the workers, under which they meet: torchrun counts restarts on each host apart.
No round begins after a request to stop, or after an error that would only come again.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

from dragoman.distributed.launch import HOSTS_BACKEND, forget_workers, is_over
from dragoman.distributed.rendezvous import RENDEZVOUS_VARIABLE, ROUND_VARIABLE

_KEY: Final = "dragoman/round"


class HostsRendezvous(RendezvousHandler):
    """torchrun's c10d rendezvous, whose rounds have names."""

    def __init__(self, inner: RendezvousHandler, meeting: Path) -> None:
        self._inner = inner
        self._meeting = meeting

    def get_backend(self) -> str:
        """Its name for torchrun."""
        return HOSTS_BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet the other hosts. Raises RendezvousClosedError if training is over here."""
        forget_workers(self._meeting)
        if is_over(self._meeting):
            raise RendezvousClosedError("the work on this host is over")
        found = self._inner.next_rendezvous()
        if found.rank == 0:
            found.store.set(_KEY, secrets.token_hex(8))
        os.environ[ROUND_VARIABLE] = found.store.get(_KEY).decode()
        return found

    def is_closed(self) -> bool:
        """Whether no round begins any more."""
        return self._inner.is_closed()

    def set_closed(self) -> None:
        """Let no round begin any more."""
        self._inner.set_closed()  # type: ignore[no-untyped-call]

    def num_nodes_waiting(self) -> int:
        """How many hosts wait for the next round."""
        return self._inner.num_nodes_waiting()

    def get_run_id(self) -> str:
        """The token of the run."""
        return self._inner.get_run_id()

    def shutdown(self) -> bool:
        """Let no round begin any more; False if the store is out of reach."""
        return self._inner.shutdown()


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    backend, store = create_backend(parameters)
    inner = create_handler(store, backend, parameters)
    return HostsRendezvous(inner, Path(os.environ[RENDEZVOUS_VARIABLE]).parent)


def register() -> None:
    """Make this rendezvous known to torchrun."""
    rendezvous_handler_registry.register(HOSTS_BACKEND, _create)
