"""Copies a run's checkpoints between its hosts and this machine, verified by their own digests.

The first host writes the state that all ranks share (step-0004000); every host writes the state of
its own ranks (rank-0002/step-0004000). All of it is collected here, and a resume copies the missing
parts to each host.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, Self

from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import CheckpointError, DragomanError
from dragoman.base.files import file_sha256
from dragoman.cluster import ssh
from dragoman.cluster.files import directories_with, discard_unless, fetch, files_below, send
from dragoman.cluster.hosts import Host, Hosts
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
_PART: Final = ".part"
"""The end of the name of a checkpoint that is not all here yet."""
_REST: Final = 9
"""A pause after a copy lasts this many times as long as the copy: ranks exchange gradients over the
same network port, and copies alone would fill a slow one."""
_HUNG_UP_S: Final = 0.1
"""Seconds between calls of `ssh.hang_up`: a transfer may have gone on to its next copy."""


def newest_checkpoint(run: Path) -> str:
    """The name of the newest intact checkpoint in a run's directory; "" if there is none."""
    for path in reversed(step_directories(run / CHECKPOINTS)):
        if _is_intact(path):
            return path.name
    return ""


@dataclass(frozen=True, slots=True)
class RunOnHosts:
    """A run's directory here, and its copies on hosts."""

    path: Path
    hosts: Hosts

    @property
    def place(self) -> str:
        """The run's directory below the folder of each host."""
        return f"runs/{self.path.name}"

    def ranks_of(self, host: Host) -> range:
        """The ranks that a host runs."""
        first = sum(one.ranks for one in self.hosts.host[: self.hosts.host.index(host)])
        return range(first, first + host.ranks)

    def on_host(self, host: Host) -> list[str]:
        """Names of the checkpoints that a host has written itself. Raises MachineError."""
        names = directories_with(host, f"{self.place}/{CHECKPOINTS}", DIGESTS_FILE)
        own = {f"rank-{rank:04d}" for rank in self.ranks_of(host)}
        if host == self.hosts.host[0]:
            own.add(".")
        paths = map(PurePosixPath, names)
        return [
            str(path) for path in paths if str(path.parent) in own and step_number(path.name) >= 0
        ]

    def fetch(self, host: Host, name: str) -> None:
        """Copy one checkpoint here, whole. Raises MachineError, or CheckpointError that names the
        host and the file if what arrived is damaged."""
        target = self.path / CHECKPOINTS / name
        draft = target.with_name(f".{target.name}{_PART}")
        place = f"{self.place}/{CHECKPOINTS}/{name}"
        with disk_errors_named(target.parent):
            draft.mkdir(parents=True, exist_ok=True)
            try:
                fetch(host, place, draft)
                verify(draft)
            except CheckpointError as error:
                shutil.rmtree(draft)
                raise CheckpointError(
                    error.problem,
                    place=f"{host.name}: {host.folder}/{place}/{Path(error.place).name}",
                    remedy="use another checkpoint, and check the disk of this host",
                ) from error
            finally:
                with suppress(OSError):
                    draft.rmdir()  # unless a part has come
            if target.exists():
                discard(target)
            draft.rename(target)

    def fetch_logs(self, host: Host) -> None:
        """Copy the logs of a host's launcher and workers here. Raises MachineError."""
        logs = self.path / _LOGS / host.name
        with disk_errors_named(logs.parent):
            logs.mkdir(parents=True, exist_ok=True)
            fetch(host, f"{self.place}/{_LOGS}", logs)

    def collect(self, *, trained: bool = False) -> None:
        """Copy checkpoints here that any host has written and this machine lacks.

        trained: whether training has begun since the hosts got their missing checkpoints. Then logs
        are copied too, and shared checkpoints that the first host no longer keeps are removed here.
        Before that, the first host may lack the best checkpoint, which an earlier first host wrote.

        If a host fails or a checkpoint there is damaged, all others are still copied; then the
        first error is raised: MachineError if a host failed, otherwise CheckpointError.
        """
        remove_drafts(self.path / CHECKPOINTS)
        damage: list[DragomanError] = []
        failures: list[DragomanError] = []
        for host in self.hosts.host:
            try:
                names = self.on_host(host)
                for name in names:
                    if not _is_intact(self.path / CHECKPOINTS / name):
                        try:
                            self.fetch(host, name)
                        except CheckpointError as error:
                            damage.append(error)
                if trained:
                    if host == self.hosts.host[0]:
                        self._forget_what_lacks_in(names)
                    self.fetch_logs(host)
            except DragomanError as error:
                failures.append(error)
        if failures or damage:
            raise (failures + damage)[0]
        self._remove_parts()

    def collect_best(self, name: str) -> None:
        """Copy one checkpoint of the first host here, and the logs of all hosts.

        For a run that has ended and will not be resumed: the other checkpoints and the states of
        single ranks stay on the hosts. If the first host does not have this checkpoint intact, all
        others are copied. Raises MachineError or CheckpointError.
        """
        first = self.hosts.host[0]
        names, here = self.on_host(first), self.path / CHECKPOINTS / name
        if name in names and not _is_intact(here):
            with suppress(CheckpointError):
                self.fetch(first, name)
        if not _is_intact(here):
            self.collect(trained=True)
            return
        self._forget_what_lacks_in(names)
        self._remove_parts()
        for host in self.hosts.host:
            self.fetch_logs(host)

    def _remove_parts(self) -> None:
        """Remove parts of checkpoints that are no longer wanted."""
        for part in (self.path / CHECKPOINTS).rglob(f".*{_PART}"):
            shutil.rmtree(part)

    def _forget_what_lacks_in(self, names: Sequence[str]) -> None:
        """Remove the shared checkpoints that are not among these and older than the newest one."""
        newest = max(map(step_number, names), default=-1)
        for path in step_directories(self.path / CHECKPOINTS):
            if path.name not in names and step_number(path.name) < newest:
                discard(path)

    def spread(self, host: Host) -> None:
        """Give a host the newest intact checkpoint that is here, and its ranks' own parts of it.

        The first host gets all checkpoints, including the best ones, because it decides which to
        keep.
        """
        newest = newest_checkpoint(self.path)
        if not newest:
            return
        names = [newest, *(f"rank-{rank:04d}/{newest}" for rank in self.ranks_of(host))]
        if host == self.hosts.host[0]:
            found = step_directories(self.path / CHECKPOINTS)
            names += [path.name for path in found if step_number(path.name) < step_number(newest)]
        for name in names:
            source = self.path / CHECKPOINTS / name
            if name != newest and not _is_intact(source):
                continue
            # The host's checkpoint of this name may be damaged, or another that it saved while it
            # was away. One command for each name, as a host may not be silent for long.
            place = f"{self.place}/{CHECKPOINTS}/{name}"
            digests = {file: entry["sha256"] for file, entry in read_digests(source).items()}
            digests[DIGESTS_FILE] = file_sha256(source / DIGESTS_FILE)
            discard_unless(host, place, digests)
            send(host, place, files_below(source))


@dataclass(slots=True)
class CheckpointTransfer:
    """Copies checkpoints of the first host here while training goes on, the newest first.

    Copies take at most a tenth of the time, except for the first. A checkpoint that is deleted
    there before its turn is skipped; `finish` copies all that is still missing.
    """

    run: RunOnHosts
    newest: str = ""
    """The name of the last checkpoint that the first host has reported."""
    best: str = ""
    """The name of the best one, which the first host reports when training is over."""
    _wanted: str = ""
    _copied: str = ""
    """The name of the checkpoint that is being copied."""
    _over: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _ended: threading.Event = field(default_factory=threading.Event)
    """Whether the thread that copies has ended: `Thread.join` forgets it if a signal interrupts."""

    def want(self, name: str) -> None:
        """Ask for a checkpoint that is complete on the first host."""
        with self._changed:
            self._wanted = self.newest = name
            self._changed.notify()

    def finish(self, *, best_alone: bool = False) -> None:
        """Return when all checkpoints and logs are here; raises DragomanError if some are not.

        best_alone: copy only the best checkpoint and the logs, and break off any other copy.
        An exception raised by a signal handler ends the copy under way.
        """
        if best_alone and self.best:
            self._end(but=self.best)
            self.run.collect_best(self.best)
        else:
            self._end(but=self._copied)
            self.run.collect(trained=True)

    def __enter__(self) -> Self:
        threading.Thread(target=self._carry, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the copy under way; the next copy of this checkpoint goes on where it ended."""
        self._end()

    def _end(self, *, but: str = "") -> None:
        """End the copying; break off every copy but that of this checkpoint."""
        with self._changed:
            self._over = True
            self._changed.notify()
        while not self._ended.wait(_HUNG_UP_S):
            with self._changed:
                if self._copied not in ("", but):
                    ssh.hang_up()

    def _carry(self) -> None:
        first, rest_s = self.run.hosts.host[0], 0.0
        try:
            while name := self._next(rest_s):
                began = time.monotonic()
                with suppress(DragomanError):  # `finish` tries it again
                    self.run.fetch(first, name)
                with self._changed:
                    self._copied = ""
                rest_s = _REST * (time.monotonic() - began)
        finally:
            self._ended.set()

    def _next(self, rest_s: float) -> str:
        """The name of the checkpoint to copy now, after a rest; "" when training is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._over, timeout=rest_s)
            self._changed.wait_for(lambda: self._over or self._wanted)
            name, self._wanted = self._wanted, ""
            self._copied = "" if self._over else name
            return self._copied


def _is_intact(path: Path) -> bool:
    try:
        verify(path)
    except CheckpointError:
        return False
    return True
