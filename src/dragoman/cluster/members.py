"""The hosts that train now: lost ones are left out, and taken in again once they answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from dragoman.cluster import ssh
from dragoman.cluster.examine import on_each
from dragoman.cluster.hosts import Host, Hosts

_LOOK_AFTER_S: Final = 15.0
"""Seconds until a lost host is tried again; doubled each time the same host is lost again."""
_LOOK_AT_MOST_S: Final = 900.0
_NOBODY_S: Final = 300.0
"""How long all hosts may be unreachable: this machine's own line may be down."""
_AGAIN_S: Final = 5.0
_ANSWER_S: Final = 20.0

Tell = Callable[[str], None]


class Members:
    """The hosts of a run: those that are present, and those that must not come back.

    present: in the order of hosts.toml, in which ranks are counted.
    """

    def __init__(self, hosts: Hosts) -> None:
        self.present = hosts
        self._all = hosts
        self._unfit: set[str] = set()
        self._pause_s = _LOOK_AFTER_S

    @property
    def absent(self) -> list[Host]:
        """Hosts that may come back."""
        there = {host.name for host in self.present.host} | self._unfit
        return [host for host in self._all.host if host.name not in there]

    def exclude(self, names: set[str]) -> bool:
        """Go on without hosts of these names for good; False if no host would be left."""
        self._unfit |= names
        return any(host.name not in self._unfit for host in self._all.host)

    def find_present(self, *, tell: Tell) -> None:
        """Hosts that accept a login become present. Raises MachineError if none does for long."""
        deadline = time.monotonic() + _NOBODY_S
        while True:
            asked = [host for host in self._all.host if host.name not in self._unfit]
            troubles = on_each(asked, _log_in)
            if len(troubles) < len(asked):
                break
            if time.monotonic() > deadline:
                raise next(iter(troubles.values()))
            tell(f"no host answers: {next(iter(troubles.values())).problem}")
            time.sleep(_AGAIN_S)
        for name, error in troubles.items():
            tell(f"{name} is left out until it answers: {error.problem}")
        left = tuple(host for host in asked if host.name not in troubles)
        self.present = self._all.model_copy(update={"host": left})

    @contextmanager
    def looked_for(self) -> Iterator[Callable[[], Sequence[str]]]:
        """Inside the block a thread tries the absent hosts over ssh until one round finds some that
        answer. Yields a function that returns their names."""
        absent, back, over = self.absent, list[str](), threading.Event()
        if not absent:
            yield tuple
            return
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _LOOK_AT_MOST_S)

        def look() -> None:
            while not back and not over.wait(pause_s):
                back.extend(
                    host.name
                    for host in absent
                    if not over.is_set() and not on_each([host], _log_in)
                )

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield lambda: back
        finally:
            over.set()
            thread.join()


def _log_in(host: Host) -> None:
    ssh.run(host, ["true"], timeout_s=_ANSWER_S)
