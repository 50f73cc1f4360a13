"""The events of a run, followed -> its present state. Nothing here trusts a file."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from dragoman.base.errors import CheckpointError
from dragoman.recipe.run_directory import runs_in
from dragoman.reporting import measures
from dragoman.reporting.facts import Facts
from dragoman.reporting.health import examine
from dragoman.reporting.network import is_network, network
from dragoman.reporting.rank_file import RankFile
from dragoman.reporting.reading import Records, combine
from dragoman.telemetry.events import (
    Event,
    GpuSampled,
    HostSampled,
    NetworkSampled,
    event_files,
    number,
    read_line,
)
from dragoman.telemetry.follower import Follower
from dragoman.telemetry.host import HourlyPrice
from dragoman.telemetry.progress import Progress

_KEPT_SAMPLES: Final = 120
_RECENT_INTERVALS: Final = 5
_ALERTS_S: Final = 3600.0
_WORTH_TELLING: Final = 0.005
_PHASES: Final = {
    "data": ("data_wait_s",),
    "compute": ("forward_s", "backward_s"),
    "optimizer": ("optimizer_s",),
}


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate through an interface at one moment, bytes/s."""

    time: float
    sent: float
    received: float


@dataclass(slots=True)
class HostNow:
    """The last samples of one host."""

    name: str
    machine: dict[str, Any] = field(default_factory=dict)
    network: dict[str, Any] = field(default_factory=dict)
    gpus: dict[int, dict[str, Any]] = field(default_factory=dict)
    rates: deque[Rate] = field(default_factory=lambda: deque(maxlen=_KEPT_SAMPLES))

    def see(self, event: Event) -> None:
        """Add one sample."""
        seen = event.payload
        if event.kind == HostSampled.kind:
            self.machine = seen
        elif event.kind == GpuSampled.kind:
            self.gpus[int(number(seen.get("gpu")) or 0)] = seen
        elif event.kind == NetworkSampled.kind:
            self.network = seen
            sent, received = (number(seen.get(f"{way}_bytes")) for way in ("sent", "received"))
            seconds_s = number(seen.get("seconds_s"))
            if sent is not None and received is not None and seconds_s:
                self.rates.append(Rate(event.time, sent / seconds_s, received / seconds_s))

    @property
    def memory_share(self) -> float | None:
        """The share of the host's memory that is in use; None if it is not known."""
        used, limit = (
            number(self.machine.get(f"memory_{name}_bytes")) for name in ("used", "limit")
        )
        return used / limit if used is not None and limit else None


@dataclass(frozen=True, slots=True)
class Now:
    """The state of a run at one moment."""

    facts: Facts
    progress: Progress
    hosts: tuple[HostNow, ...]
    alerts: tuple[str, ...]

    @property
    def life(self) -> Facts:
        """The facts of the last life with intervals; all facts if the run counts as one life."""
        return self.facts.lives[-1] if self.facts.lives else self.facts

    @property
    def phases(self) -> dict[str, float]:
        """Shares of a step over the last intervals, the mean over ranks; empty if not measured.

        The wait in all-reduces of the rank that waits least is called "network" if question 5 of
        the report says so (`is_network`), otherwise "all-reduce": the network, or ranks that are
        late in turn. The other ranks also wait for "ranks". The two causes cannot be distinguished
        on one host, or if a rank is missing: then the whole wait is called "ranks".
        """
        found = {}
        for phase, fields in _PHASES.items():
            if known := self._shares(fields):
                found[phase] = sum(known) / len(known)
        life = self.life
        if life.world_size == 1:
            return found
        if waits := self._shares(("sync_s",)):
            together = life.is_one_host or life.lacks_ranks
            least = 0.0 if together else min(waits)
            ranks = sum(waits) / len(waits) - least
            if not together:
                since_change = measures.by_link_changes(life)[-1][1]
                found["network" if is_network(since_change) else "all-reduce"] = least
            if together or ranks >= _WORTH_TELLING:
                found["ranks"] = ranks
        return found

    def _shares(self, fields: tuple[str, ...]) -> list[float]:
        """The share of a step that some fields took lately, for each rank that records them."""
        shares = (
            measures.share(rank.intervals[-_RECENT_INTERVALS:], *fields) for rank in self.life.ranks
        )
        return [share for share in shares if share is not None]

    def capacity_bytes_per_s(self, host: str) -> float | None:
        """The measured capacity of a host's link, or of the slowest link if its own was not
        measured."""
        known = [link.bytes_per_s for link in self.life.links if link.host == host]
        return min(known, default=measures.capacity_bytes_per_s(self.life))


@dataclass(slots=True)
class _Followed:
    """A file of events, as far as it was read."""

    follower: Follower
    record: RankFile
    lines: int = 0
    first: bytes = b""
    """Its first event; the times in it make it unique."""
    sampled: HostNow | None = None
    """The host that its rank sampled last."""


class LiveRun:
    """A run that may not have started yet, may be running or over; call `look` again and again."""

    def __init__(
        self,
        directory: Path,
        *,
        price: HourlyPrice | None = None,
        troubles: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """troubles: present problems with getting the records."""
        self._directory = directory
        self._price = price
        self._troubles = troubles
        self._records: Records | None = None
        self._files: dict[Path, _Followed] = {}
        self._progress = Progress()

    def look(self) -> bool:
        """Read the lines and records that were added; returns whether there were any."""
        changed = self._find_records()
        for path in event_files(self._directory / "events"):
            if path not in self._files:
                self._files[path] = _Followed(Follower(path), RankFile.empty(path))
        for path, file in self._files.items():
            for line in file.follower.lines():
                self._see(path, file, line)
                changed = True
        return changed

    def now(self) -> Now:
        """The state of the run, from the events so far."""
        files = [file.record for _, file in sorted(self._files.items())]
        records = self._records or Records()
        facts = combine(self._directory, files, records, price=self._price, now=time.time())
        alerts = (*self._troubles(), *_alerts(facts))
        now = Now(facts, self._progress, (), alerts)
        return replace(now, hosts=tuple(self._hosts({rank.rank for rank in now.life.ranks})))

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.follower.close()

    def _hosts(self, ranks: Container[int]) -> Iterator[HostNow]:
        """The hosts of these ranks, with the samples that the ranks took."""
        for _, file in sorted(self._files.items()):
            host, record = file.sampled, file.record
            if host is not None and host.name == record.host and record.rank in ranks:
                yield host

    def _find_records(self) -> bool:
        """Read recipe and manifest once, as soon as they are there; returns whether it did."""
        if self._records is not None or not (self._directory / "recipe.toml").is_file():
            return False
        self._records = Records.read(self._directory)
        recipe = self._records.recipe
        if recipe is not None and not self._progress.run:
            known = {"run_name": self._directory.name, "max_steps": recipe.train.max_steps}
            self._progress.run = known
        return True

    def _see(self, path: Path, file: _Followed, line: bytes) -> None:
        if line == file.first:  # the whole file was copied again, as rsync does
            file.record, file.lines = RankFile.empty(path), 0
        file.lines += 1
        event = read_line(line)
        if event is None:
            if line.strip():
                file.record.damaged.append(file.lines)
            return
        file.first = file.first or line
        file.record.see(event)
        if event.kind in (HostSampled.kind, NetworkSampled.kind, GpuSampled.kind):
            if file.sampled is None or file.sampled.name != event.host:
                file.sampled = HostNow(event.host)
            file.sampled.see(event)
        elif path == min(self._files):
            self._progress.see(event)


def open_run(directory: Path, *, price: HourlyPrice | None = None) -> LiveRun:
    """The run of a directory, which may still be empty.

    Raises CheckpointError if there is no such directory.
    """
    if not directory.is_dir():
        raise CheckpointError(
            "there is no such run directory",
            place=directory,
            remedy="name a directory that dragoman run or dragoman train made",
        )
    return LiveRun(directory, price=price)


def newest_run(runs: Path) -> Path:
    """The run that was started last; raises CheckpointError if there is none."""
    found = runs_in(runs)
    if not found:
        raise CheckpointError(
            "there is no run here yet", place=runs, remedy="start one, or name a run directory"
        )
    return found[0]


def _alerts(facts: Facts) -> Iterator[str]:
    """Messages for the user: the error that ended the run; its alerts of the last hour without
    mere information, the newest first; the report's findings; problems of its records."""
    if facts.exit is not None and facts.exit.problem:
        yield facts.exit.problem
    since = facts.segments[-1].ended - _ALERTS_S if facts.segments else 0.0
    for alert in reversed(facts.alerts):
        if alert.time >= since and alert.severity != "info":
            yield alert.text
    for verdict in (network(facts), *examine(facts)):
        if verdict.answer == "yes":
            yield f"{verdict.question} {verdict.says} {verdict.remedy}".strip()
    yield from facts.problems
