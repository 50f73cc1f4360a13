"""A run's checkpoints between its hosts and this machine, each verified by its own digests.

The first host writes what all ranks share (step-0004000), every host what its ranks have of their
own (rank-0002/step-0004000). Here all of it comes together; a resume brings each host
what it lacks.

Names of checkpoints and of their files come from the hosts. Each is checked here as a whole before
it becomes a path: nothing that a host sends is written outside of the run.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pydantic import TypeAdapter, ValidationError

from dragoman.base.errors import CheckpointError, DragomanError, MachineError
from dragoman.base.files import disk_errors_named, file_sha256
from dragoman.cluster import ssh
from dragoman.cluster.copying import directory_parcel
from dragoman.cluster.hosts import Host, Hosts
from dragoman.cluster.team import agent_command
from dragoman.cluster.unpack import unpack
from dragoman.training.durable import (
    DIGESTS_FILE,
    discard,
    read_digests,
    remove_drafts,
    step_directories,
    step_number,
    verify,
)

CHECKPOINTS: Final = "checkpoints"
_LOGS: Final = "logs"
_NAME: Final = re.compile(r"(?:(rank-[0-9]{4,6})/)?step-[0-9]{7,12}")
"""Name of a checkpoint: what all ranks share, or what one rank has of its own."""
_NAMES: Final = TypeAdapter(list[str])
_HUNG_UP_S: Final = 0.1
"""How long after it was hung up on, who brings something may begin with the next."""


def newest_checkpoint(run: Path) -> str:
    """The newest intact checkpoint in a run's directory, by name; "" where there is none."""
    for path in reversed(step_directories(run / CHECKPOINTS)):
        if _is_intact(path):
            return path.name
    return ""


@dataclass(frozen=True, slots=True)
class RunOnHosts:
    """A run's directory here and its copies on hosts. code: the digest of what runs there."""

    path: Path
    hosts: Hosts
    code: str

    @property
    def place(self) -> str:
        """Below the folder of each host."""
        return f"runs/{self.path.name}"

    def ranks_of(self, host: Host) -> range:
        """Those that a host runs."""
        first = sum(one.ranks for one in self.hosts.host[: self.hosts.host.index(host)])
        return range(first, first + host.ranks)

    def on_host(self, host: Host) -> list[str]:
        """Names of the checkpoints on a host that it has written itself; others are passed over.

        Raises MachineError if the host fails or its answer is no list of names.
        """
        command = agent_command(host, code=self.code, verb="list", more=[self.place])
        try:
            names = _NAMES.validate_json(ssh.run(host, command), strict=True)
        except ValidationError as error:
            raise MachineError(
                "its list of checkpoints is not understood",
                place=host.name,
                remedy="see what its login shell prints, and whether the host can be trusted",
            ) from error
        own = {f"rank-{rank:04d}" for rank in self.ranks_of(host)}
        if host == self.hosts.host[0]:
            own.add("")
        matches = map(_NAME.fullmatch, names)
        return [match[0] for match in matches if match and (match[1] or "") in own]

    def fetch(self, host: Host, name: str) -> None:
        """Bring one checkpoint here, whole. Raises MachineError or CheckpointError."""
        assert _NAME.fullmatch(name)
        self._fetch(host, f"{CHECKPOINTS}/{name}", self.path / CHECKPOINTS / name)

    def fetch_logs(self, host: Host) -> None:
        """Bring what a host's launcher and workers have written. Raises MachineError."""
        self._fetch(host, _LOGS, self.path / _LOGS / host.name)

    def _fetch(self, host: Host, place: str, target: Path) -> None:
        """Bring a directory of the run here; a checkpoint is checked against its digests."""
        draft = target.with_name(f".{target.name}.draft")
        with disk_errors_named(target.parent):
            try:
                shutil.rmtree(draft, ignore_errors=True)
                draft.mkdir(parents=True)
                self._receive(host, place, draft)
                if place != _LOGS:
                    verify(draft)
                _check_names(host, place, draft)
                if target.exists():
                    discard(target)
                draft.rename(target)
            finally:
                shutil.rmtree(draft, ignore_errors=True)

    def _receive(self, host: Host, place: str, draft: Path) -> None:
        """Raises MachineError of the host, OSError of this machine's disk."""
        more = [f"{self.place}/{place}"]
        command = agent_command(host, code=self.code, verb="send", more=more)
        try:
            with ssh.transfer(host, command) as transfer:
                transfer.skip_greeting()
                unpack(transfer.output, draft)
        except (ValueError, EOFError) as error:
            raise MachineError(
                f"{place} did not arrive: {error}", place=host.name, remedy="try again"
            ) from error

    def collect(self, *, trained: bool = False) -> None:
        """Bring here what any host has written and this machine lacks.

        trained: since the hosts were given what they lacked. Logs come here then, too, and what
        the first host no longer keeps goes here. Before that it may be one that never had the best
        checkpoint, because another host was the first.
        A host that fails keeps no other from being asked; then raises what the first of them said.
        """
        remove_drafts(self.path / CHECKPOINTS)
        failures = []
        for host in self.hosts.host:
            try:
                names = self._collect_from(host)
                if trained:
                    if host == self.hosts.host[0]:
                        self._forget_what_lacks_in(names)
                    self.fetch_logs(host)
            except DragomanError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _collect_from(self, host: Host) -> list[str]:
        """The names of all that it has, which is here now."""
        names = self.on_host(host)
        for name in names:
            if not _is_intact(self.path / CHECKPOINTS / name):
                self.fetch(host, name)
        return names

    def _forget_what_lacks_in(self, names: Sequence[str]) -> None:
        """Remove shared checkpoints that it lacks; newer ones were trained while it was away."""
        newest = max(map(step_number, names), default=-1)
        for path in step_directories(self.path / CHECKPOINTS):
            if path.name not in names and step_number(path.name) < newest:
                discard(path)

    def spread(self, host: Host) -> None:
        """Give a host the newest checkpoint that is here, and its ranks' own parts of it.

        The first host gets all of them: it decides which to keep, the best ones too.
        """
        newest = newest_checkpoint(self.path)
        if not newest:
            return
        names = [newest, *(f"rank-{rank:04d}/{newest}" for rank in self.ranks_of(host))]
        if host == self.hosts.host[0]:
            found = step_directories(self.path / CHECKPOINTS)
            names += [path.name for path in found if step_number(path.name) < step_number(newest)]
        here = [name for name in names if (self.path / CHECKPOINTS / name).is_dir()]
        # A host that was away may have saved another one under the same name.
        kept = [
            f"{name}={file_sha256(self.path / CHECKPOINTS / name / DIGESTS_FILE)}" for name in here
        ]
        more = [self.place, *kept]
        ssh.run(host, agent_command(host, code=self.code, verb="forget", more=more))
        for name in here:
            source = self.path / CHECKPOINTS / name
            directory_parcel(f"{self.place}/{CHECKPOINTS}/{name}", source).send(host)


@dataclass(slots=True)
class CheckpointTransfer:
    """Brings checkpoints of the first host here while training goes on, the newest first.

    One that is pruned there before it got its turn is passed over; what is missing in the end,
    `finish` brings. All is written by a thread of its own, which no signal breaks off halfway.
    """

    run: RunOnHosts
    newest: str = ""
    """The last checkpoint that the first host has told of, by name."""
    _wanted: str = ""
    _over: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _work: Future[None] = field(default_factory=Future)

    def want(self, name: str) -> None:
        """A checkpoint of this name is complete on the first host; other names are passed over."""
        if step_number(name) < 0 or not _NAME.fullmatch(name):
            return
        with self._changed:
            self._wanted = self.newest = name
            self._changed.notify()

    def finish(self) -> None:
        """Return when all checkpoints and logs are here; raises DragomanError if some are not.

        An exception of a signal's handler ends the waiting, but not what is under way.
        """
        self._end()
        self._work.result()

    def give_up(self) -> None:
        """End what is under way. What has not arrived whole is not here."""
        self._end()
        while not self._work.done():
            ssh.hang_up()
            wait([self._work], _HUNG_UP_S)

    def __enter__(self) -> Self:
        self._work = self._pool.submit(self._carry)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.give_up()
        self._pool.shutdown()

    def _end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify()

    def _carry(self) -> None:
        first = self.run.hosts.host[0]
        while name := self._next():
            with suppress(DragomanError):  # it is asked for again in the end
                self.run.fetch(first, name)
        self.run.collect(trained=True)

    def _next(self) -> str:
        """The checkpoint to bring now; "" when training is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._wanted)
            name, self._wanted = self._wanted, ""
            return "" if self._over else name


def _check_names(host: Host, place: str, draft: Path) -> None:
    """Raises MachineError if the host sent what the directory does not have by our own rules:
    folders, names that would steer a terminal, or files that the digests do not name.
    """
    names = {path.name for path in draft.iterdir()}
    expected = names if place == _LOGS else {*read_digests(draft), DIGESTS_FILE}
    for path in draft.iterdir():
        if path.name not in expected or not path.name.isprintable() or not path.is_file():
            raise MachineError(
                f"{place} holds {path.name!r}, which is no file of ours",
                place=host.name,
                remedy="remove it there, and see whether the host can be trusted",
            )


def _is_intact(path: Path) -> bool:
    try:
        verify(path)
    except CheckpointError:
        return False
    return True
