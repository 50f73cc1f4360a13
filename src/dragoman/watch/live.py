"""The events of a run, followed -> its present state."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from dragoman.base.errors import CheckpointError
from dragoman.recipe.run_directory import runs_in
from dragoman.reporting import measures
from dragoman.reporting.checks import BY_KEY, examine
from dragoman.reporting.configurations import newest_configuration
from dragoman.reporting.facts import Facts
from dragoman.reporting.log import RunLog
from dragoman.reporting.reading import Records, facts_of, how_it_ended
from dragoman.telemetry.events import (
    SAMPLES,
    Event,
    GpuSampled,
    HostSampled,
    event_file,
    read_line,
)
from dragoman.telemetry.follower import Follower
from dragoman.telemetry.host import HourlyPrice
from dragoman.telemetry.progress import Progress

_KEPT_SAMPLES: Final = 120
_RECENT_INTERVALS: Final = 5
_ALERTS_S: Final = 3600.0
_JUDGE_EVERY_S: Final = 30.0
_WORTH_TELLING: Final = 0.005
_PHASES: Final = {
    "data": ("data_wait_s",),
    "compute": ("forward_s", "backward_s"),
    "optimizer": ("optimizer_s",),
}


class Rate(NamedTuple):
    """The rate through an interface at one moment, bytes/s."""

    sent: float
    received: float


@dataclass(slots=True)
class HostNow:
    """The last samples of one host."""

    name: str
    machine: dict[str, Any] = field(default_factory=dict)
    gpus: dict[int, dict[str, Any]] = field(default_factory=dict)
    rates: deque[Rate] = field(default_factory=lambda: deque(maxlen=_KEPT_SAMPLES))

    def see(self, event: Event) -> None:
        """Add one sample."""
        sample = event.payload
        if event.kind == HostSampled.kind:
            self.machine = sample
        elif event.kind == GpuSampled.kind:
            self.gpus[sample["gpu"]] = sample
        elif seconds_s := sample["seconds_s"]:
            rates = (sample[f"{way}_bytes"] / seconds_s for way in ("sent", "received"))
            self.rates.append(Rate(*rates))

    @property
    def memory_share(self) -> float | None:
        """The share of the host's memory that is in use; None if it is not known."""
        used, limit = (self.machine.get(f"memory_{name}_bytes") for name in ("used", "limit"))
        return used / limit if used is not None and limit else None


@dataclass(frozen=True, slots=True)
class Now:
    """The state of a run at one moment."""

    facts: Facts
    progress: Progress
    hosts: tuple[HostNow, ...]
    alerts: tuple[str, ...]
    phases: dict[str, float]
    """Shares of a step: see `_phases`."""

    @property
    def configuration(self) -> Facts:
        """The facts of the newest configuration."""
        return newest_configuration(self.facts)

    def capacity_bytes_per_s(self, host: str) -> float | None:
        """The measured capacity of a host's link, or of the slowest link if its own was not
        measured."""
        rates = [link.bytes_per_s for link in self.configuration.links if link.host == host]
        return min(rates, default=measures.capacity_bytes_per_s(self.configuration))


class LiveRun:
    """A run that may not have started yet, may be running or over; call `look` again and again."""

    may_turn = False
    """Whether it may turn to another run."""

    def __init__(
        self,
        directory: Path,
        *,
        price: HourlyPrice | None = None,
        troubles: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """troubles: present problems with getting the record."""
        self.directory = directory
        self._price = price
        self._troubles = troubles
        self._records: Records | None = None
        self._follower = Follower(event_file(directory / "events"))
        self._log = RunLog()
        self._lines = 0
        self._sampled: dict[str, HostNow] = {}
        self._judged: tuple[Now, float] | None = None
        """The state as it was last judged, and when, by the monotonic clock."""
        self._has_news = True

    def look(self) -> bool:
        """Read the lines and records that were added; returns whether there were any."""
        changed = self._find_records()
        for line in self._follower.lines():
            changed = True
            self._lines += 1
            event = read_line(line, place=f"{self.directory}, line {self._lines} of its log")
            if event is not None:
                self._see(event)
            elif line.strip():
                self._log.damaged.append(self._lines)
        return changed

    def now(self) -> Now:
        """The state of the run, from the events so far.

        Samples alone are judged twice a minute, not at each redraw. After any other event the whole
        record is judged again.
        """
        if self._has_news or self._judged is None or _is_old(self._judged[1]):
            self._judged, self._has_news = (self._judge(), time.monotonic()), False
        judged, _ = self._judged
        ended = how_it_ended(self.directory)
        alerts = tuple(self._troubles())
        # Before the first event they say why there is none.
        if self._lines or not alerts:
            problem = ended.problem if ended is not None else ""
            # What ended it may be an alert, too.
            alerts = tuple(dict.fromkeys((*alerts, *filter(None, (problem,)), *judged.alerts)))
        names = judged.facts.lives[-1].hosts if judged.facts.lives else ()
        hosts = tuple(self._sampled[name] for name in dict.fromkeys(names) if name in self._sampled)
        facts = replace(judged.facts, read_at=time.time(), exit=ended)
        return replace(judged, facts=facts, hosts=hosts, alerts=alerts)

    def _judge(self) -> Now:
        """All that is computed from the whole record."""
        records = self._records or Records()
        facts = facts_of(self.directory, self._log, records, price=self._price, now=time.time())
        phases = _phases(newest_configuration(facts))
        return Now(facts, self._log.progress, (), tuple(_alerts(facts)), phases)

    def close(self) -> None:
        """Close the file."""
        self._follower.close()

    def _find_records(self) -> bool:
        """Read recipe and manifest once, as soon as they are there; returns whether it did."""
        if self._records is not None or not (self.directory / "recipe.toml").is_file():
            return False
        self._records, self._has_news = Records.read(self.directory), True
        return True

    def _see(self, event: Event) -> None:
        self._log.see(event)
        if event.kind in SAMPLES:
            self._sampled.setdefault(event.host, HostNow(event.host)).see(event)
        else:
            self._has_news = True


class NewestRun(LiveRun):
    """The newest run of a folder, which may have none yet: the run that begins is followed."""

    may_turn = True

    def __init__(self, runs: Path, *, price: HourlyPrice | None = None) -> None:
        self._runs = runs
        super().__init__(self._newest() or runs, price=price, troubles=self._missing)

    def look(self) -> bool:
        """Read what was added, or turn to a run that began since."""
        newest = self._newest()
        if newest is None or newest == self.directory:
            return super().look()
        self.close()
        super().__init__(newest, price=self._price, troubles=self._missing)
        super().look()
        return True

    def _newest(self) -> Path | None:
        return next(iter(runs_in(self._runs)), None)

    def _missing(self) -> Iterable[str]:
        if self.directory == self._runs:
            yield "there is no run here yet; the one that begins will be shown"


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


def some_runs(folder: Path) -> list[Path]:
    """The runs in a folder, the newest first; raises CheckpointError if there is none."""
    if found := runs_in(folder):
        return found
    raise CheckpointError(
        "there is no run here yet",
        place=folder,
        remedy="start one, name the folder of all runs, or name a run",
    )


def _is_old(judged_at: float) -> bool:
    return time.monotonic() - judged_at > _JUDGE_EVERY_S


def _phases(part: Facts) -> dict[str, float]:
    """Shares of a step over the last intervals, the mean over ranks; empty if not measured.

    Between hosts, a rank waits in all-reduces for the "network", and the rest of it for later
    "ranks". On one host, or if the two were not measured apart, the whole wait is for "ranks".
    """
    phases = {}
    for phase, fields in _PHASES.items():
        if shares := _shares(part, fields):
            phases[phase] = sum(shares) / len(shares)
    if part.world_size == 1:
        return phases
    if waits := _shares(part, ("sync_s",)):
        wire = measures.share(_recent(part).intervals, "wire_s")
        if wire is not None and not part.is_one_host:
            phases["network"] = wire
        ranks = sum(waits) / len(waits) - phases.get("network", 0.0)
        if ranks >= _WORTH_TELLING or "network" not in phases:
            phases["ranks"] = ranks
    return phases


def _shares(part: Facts, fields: tuple[str, ...]) -> list[float]:
    """The share of a step that some fields took lately, for each rank that records them."""
    return [share for share, _ in measures.shares(_recent(part), *fields)]


def _recent(part: Facts) -> Facts:
    """The facts of the last intervals."""
    return replace(part, intervals=part.intervals.where(slice(-_RECENT_INTERVALS, None)))


def _alerts(facts: Facts) -> Iterator[str]:
    """Messages for the user: alerts of the last hour without mere information, the newest first,
    and of those about one state only the last; the report's findings; problems of its records."""
    since = facts.lives[-1].ended - _ALERTS_S if facts.lives else 0.0
    told = set()
    for alert in reversed(facts.alerts):
        replaced = alert.about in told
        told |= {alert.about} - {""}
        if alert.time >= since and alert.severity != "info" and not replaced:
            yield alert.text
    for verdict in (BY_KEY["network"].of(facts), *examine(facts)):
        if verdict.answer == "yes":
            yield f"{verdict.question} {verdict.says} {verdict.remedy}".replace("\n", " ").strip()
    yield from facts.problems
