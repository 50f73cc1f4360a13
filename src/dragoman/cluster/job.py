"""A job of all hosts: each gets its share, they meet, and all begin at once."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from dragoman.base.errors import MachineError
from dragoman.cluster.agent.work import WorkRequest
from dragoman.cluster.facts import ClusterFacts
from dragoman.cluster.hosts import Hosts
from dragoman.cluster.messages import Reached, Ready
from dragoman.cluster.team import Team

_MEET_S: Final = 120.0
_PORT: Final = re.compile(r"[0-9]{1,5}")


def shares(hosts: Hosts, facts: ClusterFacts, **values: Any) -> dict[str, WorkRequest]:
    """Every host's share of a job, by name; `facts` say which interface each of them uses."""
    token = secrets.token_hex(8)
    cards = {one.host: one.interface for one in facts.hosts}
    requests = {}
    for number, host in enumerate(hosts.host):
        card = cards[host.name]
        assert card is not None
        requests[host.name] = WorkRequest(
            number=number,
            num_hosts=len(hosts.host),
            ranks=host.ranks,
            interface=card.name,
            address=card.address,
            token=token,
            on_processor=not host.gpus,
            **values,
        )
    return requests


@dataclass(frozen=True, slots=True)
class Job:
    """A team whose members know their shares and wait for the command to begin.

    store: where they will meet.
    closed: the address:port of peers that each could not reach.
    """

    team: Team
    store: str
    closed: dict[str, tuple[str, ...]]

    @classmethod
    def gather(cls, team: Team, requests: Mapping[str, WorkRequest]) -> Self:
        """Send every host its share and let it try to reach the others.

        Raises MachineError if a host is gone or takes longer than two minutes, or if the store is
        not on the first host.
        """
        for name, request in requests.items():
            team.agents[name].tell("work", request=request.model_dump(mode="json"))
        ready = team.each(Ready, timeout_s=_MEET_S)
        for name in requests:
            peers = [
                (requests[other].address, one.test_port)
                for other, one in ready.items()
                if other != name
            ]
            team.agents[name].tell("reach", peers=peers)
        reached = team.each(Reached, timeout_s=_MEET_S)
        first, request = next(iter(requests.items()))
        store = ready[first].store
        place = f"{request.address}:"
        port, _, token = store.removeprefix(place).partition("/")
        if not store.startswith(place) or not _PORT.fullmatch(port) or token != request.token:
            raise MachineError(
                "it names a store that is not its own",
                place=first,
                remedy="see whether the host can be trusted",
            )
        closed = {name: one.closed for name, one in reached.items()}
        return cls(team, store, closed)

    def begin(self) -> None:
        """Send the command to begin."""
        self.team.tell_all("begin", store=self.store)
