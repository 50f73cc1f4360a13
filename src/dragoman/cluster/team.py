"""The controller's end of the agents: one ssh connection to each host, its messages, and the jobs
that all hosts do together: each gets its share, they meet, and all begin at once."""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self, TypeVar

from pydantic import ValidationError

from dragoman.base import units
from dragoman.base.errors import MachineError
from dragoman.cluster import ssh
from dragoman.cluster.facts import ClusterFacts
from dragoman.cluster.files import code_place
from dragoman.cluster.hosts import Host, Hosts
from dragoman.cluster.messages import (
    AGENT_MESSAGE,
    AgentCommand,
    AgentMessage,
    Done,
    Reached,
    Ready,
    WorkRequest,
)

_STAY_EVERY_S: Final = 1.0
_MEET_S: Final = 120.0
_END_S: Final = 10.0
"""How long an agent may take to end after its connection is closed, before ssh itself is ended."""


class Message(NamedTuple):
    """An answer of an agent; `said` is None if its connection ended."""

    host: str
    said: AgentMessage | None


AgentAnswer = TypeVar("AgentAnswer", bound=AgentMessage)


def agent_command(host: Host, *, code: str) -> list[str]:
    """The command that starts an agent on a host, from the code with this digest."""
    place = f"PYTHONPATH={host.folder}/{code_place(code)}"
    # Without -P a folder named like a package in the user's home could take its place. On a full
    # disk Python 3.11 would write half of a bytecode file, and every later start would fail.
    settings = [place, "PYTHONDONTWRITEBYTECODE=1"]
    return [
        *("env", *settings, host.python, "-P", "-m", "dragoman.cluster.agent"),
        host.folder,
    ]


class Agent:
    """One agent; its messages arrive in the inbox."""

    def __init__(self, host: Host, arguments: Sequence[str], inbox: queue.Queue[Message]) -> None:
        self.host = host
        self._inbox = inbox
        self._fault: MachineError | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `close`
        self._process = ssh.start(host, arguments, stderr=self._errors.fileno())
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def send(self, do: AgentCommand, **values: Any) -> None:
        """Send a message. If the agent is gone, its silence will show it."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps({"do": do, **values}).encode() + b"\n")
            self._process.stdin.flush()

    def failure(self) -> MachineError:
        """The error that ended the connection; kills ssh if it does not end within 10 s."""
        try:
            exit_code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            exit_code = self._process.wait()
        if self._fault is not None:
            return self._fault
        return ssh.failure(self.host, exit_code, ssh.read_errors(self._errors))

    def close(self) -> None:
        """Close the connection, upon which the agent ends all that it started."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(Exception):
            self._process.wait(_END_S)
        self._process.kill()
        self._process.wait()
        self._listener.join()
        self._errors.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines, contextlib.suppress(ValueError):  # closed meanwhile
            ssh.skip_greeting(self.host, lines)
            for line in lines:
                try:
                    said = AGENT_MESSAGE.validate_json(line, strict=True)
                except ValidationError:
                    self._fault = ssh.odd_answer(self.host, "its answer is not understood")
                    self._process.kill()
                    break
                self._inbox.put(Message(self.host.name, said))
        self._inbox.put(Message(self.host.name, None))


class Team:
    """The agents of all hosts; they end with the block."""

    def __init__(self, hosts: Sequence[Host], *, code: str) -> None:
        self.hosts = hosts
        self.inbox: queue.Queue[Message] = queue.Queue()
        self.agents: dict[str, Agent] = {}
        self._code = code
        self._over = threading.Event()

    def __enter__(self) -> Self:
        try:
            for host in self.hosts:
                command = agent_command(host, code=self._code)
                self.agents[host.name] = Agent(host, command, self.inbox)
        except BaseException:
            self._close()
            raise
        threading.Thread(target=self._stay, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._close()

    def _close(self) -> None:
        # All at once: each may take a while to end.
        closers = [threading.Thread(target=agent.close) for agent in self.agents.values()]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()

    def send_to_all(self, do: AgentCommand, **values: Any) -> None:
        """Send the same message to every agent."""
        for agent in self.agents.values():
            agent.send(do, **values)

    def next(self, timeout_s: float) -> Message | None:
        """The next message of any agent; None if none comes within `timeout_s`."""
        with contextlib.suppress(queue.Empty):
            return self.inbox.get(timeout=max(0.0, timeout_s))
        return None

    def _stay(self) -> None:
        """Send signs of life, from a thread of its own: the reader may be held up for long, by a
        stopped terminal (Ctrl-S) or a pager."""
        while not self._over.is_set():
            self.send_to_all("stay")
            self._over.wait(_STAY_EVERY_S)

    def each(self, kind: type[AgentAnswer], *, timeout_s: float) -> dict[str, AgentAnswer]:
        """One message of this kind from every agent, by host; MachineError if one fails, is gone or
        does not answer in time."""
        heard: dict[str, AgentAnswer] = {}
        deadline = time.monotonic() + timeout_s
        while len(heard) < len(self.agents):
            message = self.next(deadline - time.monotonic())
            if message is None:
                missing = ", ".join(name for name in self.agents if name not in heard)
                raise MachineError(
                    f"no answer within {units.DURATION.text(timeout_s)}",
                    place=missing,
                    remedy="look at its load and its network",
                )
            if isinstance(message.said, kind):
                heard[message.host] = message.said
            elif message.said is None:  # even of one that has answered: more was to come
                raise self.agents[message.host].failure()
            elif isinstance(message.said, Done) and message.said.exit_code:
                raise MachineError(message.said.problem, place=message.host)
        return heard

    def until_done(self, *, tick_s: float = _STAY_EVERY_S) -> Iterator[Message | None]:
        """All messages until every agent is done or gone; None if a tick passed without one.

        The end of a connection whose agent is done is not among them.
        """
        ended: set[str] = set()
        while len(ended) < len(self.agents):
            message = self.next(tick_s)
            if message is None:
                yield None
            elif not isinstance(message.said, Done | None):
                yield message
            elif message.host not in ended:
                ended.add(message.host)
                yield message


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
class Meeting:
    """A team whose hosts know their shares of a job and wait for the command to begin.

    store: where they will meet.
    closed: by host, the address:port of peers that it could not reach.
    """

    team: Team
    store: str
    closed: dict[str, tuple[str, ...]]

    @classmethod
    def gather(cls, team: Team, requests: Mapping[str, WorkRequest]) -> Self:
        """Send every host its share and let it try to reach the others.

        Raises MachineError if a host fails, is gone or takes longer than two minutes for an answer.
        """
        for name, request in requests.items():
            team.agents[name].send("work", request=request.model_dump(mode="json"))
        ready = team.each(Ready, timeout_s=_MEET_S)
        for name in requests:
            peers = [
                (requests[other].address, one.test_port)
                for other, one in ready.items()
                if other != name
            ]
            team.agents[name].send("reach", peers=peers)
        reached = team.each(Reached, timeout_s=_MEET_S)
        closed = {name: one.closed for name, one in reached.items()}
        return cls(team, ready[next(iter(requests))].store, closed)

    def begin(self) -> None:
        """Send the command to begin."""
        self.team.send_to_all("begin", store=self.store)
