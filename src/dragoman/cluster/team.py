"""The controller's end of the agents: one program on each host over ssh, and their lines."""

from __future__ import annotations

import contextlib
import queue
import secrets
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Self, TypeVar

from pydantic import ValidationError

from dragoman.base import units
from dragoman.base.errors import MachineError
from dragoman.base.settings import Section
from dragoman.cluster import ssh
from dragoman.cluster.facts import ClusterFacts
from dragoman.cluster.files import code_place
from dragoman.cluster.hosts import Host, Hosts
from dragoman.cluster.messages import Answer, Command, WorkRequest

_STAY_EVERY_S: Final = 1.0
_END_S: Final = 10.0
"""How long an agent may take to end after its connection is closed, before ssh itself is ended."""

Part = TypeVar("Part")


class Message(NamedTuple):
    """A line of an agent; `answer` is None if its connection ended."""

    host: str
    answer: Answer | None


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
    """One agent; its lines arrive in the inbox."""

    def __init__(self, host: Host, arguments: Sequence[str], inbox: queue.Queue[Message]) -> None:
        self.host = host
        self._inbox = inbox
        self._fault: MachineError | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `close`
        self._process = ssh.start(host, arguments, stderr=self._errors.fileno())
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def tell(self, line: Command | Section) -> None:
        """Send a command or a request. If the agent is gone, its silence will show it."""
        text = line if isinstance(line, str) else line.model_dump_json()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(text.encode() + b"\n")
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
                    answer = Answer.model_validate_json(line, strict=True)
                except ValidationError:
                    self._fault = ssh.odd_answer(self.host, "its answer is not understood")
                    self._process.kill()
                    break
                self._inbox.put(Message(self.host.name, answer))
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

    def tell_all(self, command: Command) -> None:
        """Send the same command to every agent."""
        for agent in self.agents.values():
            agent.tell(command)

    def next(self, timeout_s: float) -> Message | None:
        """The next line of any agent; None if none comes within `timeout_s`."""
        with contextlib.suppress(queue.Empty):
            return self.inbox.get(timeout=max(0.0, timeout_s))
        return None

    def _stay(self) -> None:
        """Send signs of life, from a thread of its own: the reader may be held up for long, by a
        stopped terminal (Ctrl-S) or a pager."""
        while not self._over.is_set():
            self.tell_all("")
            self._over.wait(_STAY_EVERY_S)

    def each(self, part: Callable[[Answer], Part | None], *, timeout_s: float) -> dict[str, Part]:
        """This part of an answer of every agent, by host; MachineError if one fails, is gone or
        does not answer in time."""
        heard: dict[str, Part] = {}
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
            if message.answer is None:  # even of one that has answered: more was to come
                raise self.agents[message.host].failure()
            if message.answer.done is not None and message.answer.done.exit_code:
                raise MachineError(message.answer.done.problem, place=message.host)
            value = part(message.answer)
            if value is not None:
                heard[message.host] = value
        return heard

    def until_done(self, *, tick_s: float = _STAY_EVERY_S) -> Iterator[Message | None]:
        """All lines until every agent is done or gone; None if a tick passed without one.

        The end of a connection whose agent is done is not among them.
        """
        ended: set[str] = set()
        while len(ended) < len(self.agents):
            message = self.next(tick_s)
            if message is None or (message.answer is not None and message.answer.done is None):
                yield message
            elif message.host not in ended:
                ended.add(message.host)
                yield message


def shares(hosts: Hosts, facts: ClusterFacts, **values: Any) -> dict[str, WorkRequest]:
    """Every host's share of the work, by name; `facts` say where each of them listens."""
    token = secrets.token_hex(8)
    endpoints = {
        one.host: (one.interface.address, one.port)
        for one in facts.hosts
        if one.interface is not None and one.port is not None
    }
    return {
        host.name: WorkRequest(
            number=number,
            endpoints=tuple(endpoints[one.name] for one in hosts.host),
            ranks=host.ranks,
            token=token,
            on_processor=not host.gpus,
            **values,
        )
        for number, host in enumerate(hosts.host)
    }
