"""The controller's end of `join_host`: one program on each host over ssh, and its lines."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Self, TypeVar

from pydantic import ValidationError

from dragoman.base import units
from dragoman.base.errors import MachineError
from dragoman.base.settings import Section
from dragoman.cluster import ssh
from dragoman.cluster.files import code_place
from dragoman.cluster.hosts import Host
from dragoman.cluster.lines import Answer

_STAY_EVERY_S: Final = 1.0
_END_S: Final = 10.0
"""How long a program may take to end after its connection is closed, before ssh itself is ended."""

Part = TypeVar("Part")


class Message(NamedTuple):
    """A line of a host; `answer` is None if its connection ended."""

    host: str
    answer: Answer | None


def join_command(host: Host, *, code: str) -> list[str]:
    """The command that starts `join_host` on a host, from the code with this digest."""
    place = f"PYTHONPATH={host.folder}/{code_place(code)}"
    # Without -P a folder named like a package in the user's home could take its place. On a full
    # disk Python 3.11 would write half of a bytecode file, and every later start would fail.
    settings = [place, "PYTHONDONTWRITEBYTECODE=1"]
    return [
        *("env", *settings, host.python, "-P", "-m", "dragoman.cluster.join_host"),
        host.folder,
    ]


class HostJoin:
    """The program on one host; its lines arrive in the inbox.

    It gets signs of life from a thread of its own: the reader may be held up for long, by a stopped
    terminal (Ctrl-S) or a pager.
    """

    def __init__(self, host: Host, inbox: queue.Queue[Message], *, code: str) -> None:
        self.host = host
        self.inbox = inbox
        self._fault: MachineError | None = None
        self._over = threading.Event()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `close`
        command = join_command(host, code=code)
        self._process = ssh.start(host, command, stderr=self._errors.fileno())
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        threading.Thread(target=self._stay, daemon=True).start()

    def tell(self, line: str | Section) -> None:
        """Send a command or a request. If the host is gone, its silence will show it."""
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
        """Close the connection, upon which the host ends all that was started there."""
        self._over.set()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(Exception):
            self._process.wait(_END_S)
        self._process.kill()
        self._process.wait()
        self._listener.join()
        self._errors.close()

    def _stay(self) -> None:
        while not self._over.wait(_STAY_EVERY_S):
            self.tell("")

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
                self.inbox.put(Message(self.host.name, answer))
        self._over.set()
        self.inbox.put(Message(self.host.name, None))


class Joins:
    """The programs of several hosts, by the hosts' names; they end with the block."""

    def __init__(self, hosts: Sequence[Host], *, code: str) -> None:
        self.inbox: queue.Queue[Message] = queue.Queue()
        self.of: dict[str, HostJoin] = {}
        self._hosts = hosts
        self._code = code

    def __enter__(self) -> Self:
        try:
            for host in self._hosts:
                self.open(host)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def open(self, host: Host) -> None:
        """Start the program on a host, if it is not running."""
        if host.name not in self.of:
            self.of[host.name] = HostJoin(host, self.inbox, code=self._code)

    def _close(self) -> None:
        # All at once: each may take a while to end.
        closers = [threading.Thread(target=join.close) for join in self.of.values()]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()

    def tell_all(self, command: str) -> None:
        """Send the same command to every host."""
        for join in self.of.values():
            join.tell(command)

    def next(self, timeout_s: float) -> Message | None:
        """The next line of any host; None if none comes within `timeout_s`."""
        with contextlib.suppress(queue.Empty):
            return self.inbox.get(timeout=max(0.0, timeout_s))
        return None

    def each(
        self, part: Callable[[Answer], Part | None], *, timeout_s: float, of: str = ""
    ) -> dict[str, Part]:
        """This part of an answer of every host, by name, or of one of them; MachineError if one
        fails, is gone or does not answer in time."""
        heard: dict[str, Part] = {}
        asked = [of] if of else list(self.of)
        deadline = time.monotonic() + timeout_s
        while len(heard) < len(asked):
            message = self.next(deadline - time.monotonic())
            if message is None:
                missing = ", ".join(name for name in asked if name not in heard)
                raise MachineError(
                    f"no answer within {units.DURATION.text(timeout_s)}",
                    place=missing,
                    remedy="look at its load and its network",
                )
            if message.answer is None:  # even of one that has answered: more was to come
                raise self.of[message.host].failure()
            if message.answer.done:
                problem = message.answer.loss.problem if message.answer.loss else ""
                raise MachineError(problem, place=message.host)
            value = part(message.answer)
            if value is not None:
                heard[message.host] = value
        return heard

    def until_done(self) -> Iterator[Message | None]:
        """All lines until every host is done or gone; None if a second passed without one.

        The end of a connection whose work is done is not among them.
        """
        ended: set[str] = set()
        while len(ended) < len(self.of):
            message = self.next(_STAY_EVERY_S)
            if message is None or (message.answer is not None and message.answer.done is None):
                yield message
            elif message.host not in ended:
                ended.add(message.host)
                yield message
