"""The log of a run, read once: its lives, and what was recorded in each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from dragoman.base.errors import MachineError
from dragoman.reporting import facts
from dragoman.reporting.imported import ImportedRun, ImportedScore
from dragoman.reporting.record import IntervalRows, Intervals
from dragoman.reporting.sampling import Samples
from dragoman.telemetry import events
from dragoman.telemetry.events import Event, read_events
from dragoman.telemetry.host import HourlyPrice
from dragoman.telemetry.progress import Progress

_CLOCK_JUMP_S = 5.0
_ACCOUNTS = {
    events.TrainInterval.kind,
    events.Validated.kind,
    events.CheckpointWritten.kind,
    events.RunFinished.kind,
}
"""Kinds of events that account for the time before them."""
_SIGNS_OF_LIFE = _ACCOUNTS | {
    events.RunStarted.kind,
    events.ClockRead.kind,
    events.RankPaused.kind,
    events.LinkMeasured.kind,
    events.LinkChanged.kind,
    events.DeviceMeasured.kind,
    *events.SAMPLES,
}
"""Kinds that only a run that trains writes. Others may come after its end, as from the next
process before it starts, from an evaluation, or from the controller on another machine."""

T = TypeVar("T")
_NOT_STARTED: Final = events.RunStarted(run_name="", world_size=None)
_OF_RUN: Final[dict[str, type[events.Payload]]] = {
    fact.kind: fact
    for fact in (
        *(facts.RecordedValidation, facts.RecordedDirection, facts.TestScore),
        events.Compared,
        *(facts.RecordedCheckpoint, facts.RecordedAlert),
        *(facts.RecordedSample, events.StudentMeasured, events.StrategyChosen),
        *(events.ExamMarked, facts.RecordedChange, facts.RecordedDevice, events.Environment),
    )
} | {events.LinkMeasured.kind: facts.RecordedLink}
"""Facts of a run, by the kind of the event that tells them."""


@dataclass(slots=True)
class RunLog:
    """Collects the facts of a run; `see` takes its events one by one, in their order."""

    start: events.RunStarted = _NOT_STARTED
    """The last start of the run."""
    imported: ImportedRun | None = None
    """The last life's; each life has its own."""
    imported_scores: list[tuple[int, float]] = field(default_factory=list)
    resumed_from: list[int] = field(default_factory=list)
    """The step after which each life trained; -1 if it began the run."""
    progress: Progress = field(default_factory=Progress)
    clock: list[tuple[int, float]] = field(default_factory=list)
    """Readings of the clock, if the run has a budget: (step, share of its time that had gone)."""
    samples: Samples = field(default_factory=Samples)
    unreadable: str = ""
    """Why the file could not be read to its end."""
    damaged: list[int] = field(default_factory=list)
    """The numbers of the lines that are no events."""
    clock_jumps: list[tuple[float, str]] = field(default_factory=list)
    """(seconds, host)"""
    _facts: dict[type, list[Any]] = field(default_factory=dict)
    """By their type, each in the order of the log."""
    _base: tuple[float, float] = (0.0, 0.0)
    _base_host: str = ""
    _set_s: float = 0.0
    """How far the clock was set since the start of this life."""
    _intervals: IntervalRows = field(default_factory=IntervalRows)
    _alive: bool = False
    _lives: list[facts.Life] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> RunLog:
        """The events of a file; empty if there is none.

        Raises CheckpointError if another version of dragoman wrote it.
        """
        log = cls()
        try:
            for event in read_events(path, on_damaged=log.damaged.append) if path.exists() else ():
                log.see(event)
        except MachineError as error:
            log.unreadable = str(error)
        return log

    @property
    def lives(self) -> list[facts.Life]:
        """The lives of the run."""
        return [replace(life) for life in self._lives]

    @property
    def intervals(self) -> Intervals:
        """All intervals, also those that were made again."""
        return self._intervals.intervals()

    def of(self, kind: type[T]) -> tuple[T, ...]:
        """All facts of a type, in the order of the log."""
        return tuple(self._facts.get(kind, ()))

    def problems(self) -> list[str]:
        """The faults of the record, in words."""
        problems = [self.unreadable] if self.unreadable else []
        if self.damaged:
            lines = ", ".join(map(str, self.damaged[:5]))
            problems.append(
                f"{len(self.damaged)} damaged lines of events were skipped (line {lines})"
            )
        if self.clock_jumps:
            largest, host = max(self.clock_jumps, key=lambda jump: abs(jump[0]))
            problems.append(f"the clock of {host} was set by {largest:+.0f} s meanwhile")
        return problems

    def see(self, event: Event) -> None:
        """Read one event. Without its start, nothing is known of a training."""
        if event.kind in _ACCOUNTS and not self._lives:
            return
        moment = self._moment(event)
        self.progress.see(event)
        if (reader := _READERS.get(event.kind)) is not None:
            reader(self, event, moment)
        if (fact := _OF_RUN.get(event.kind)) is not None:
            self._keep(self._made(fact, event, moment))
        if self._alive and event.kind in _SIGNS_OF_LIFE:
            self._extend(event, moment)

    def _keep(self, fact: events.Payload | facts.Pause) -> None:
        self._facts.setdefault(type(fact), []).append(fact)

    def _moment(self, event: Event) -> float:
        """The time of an event by the steady clock of the machine of rank 0, which is never set.

        An event of another machine, or after another start of this one, has its own UTC.
        """
        if event.kind == events.RunStarted.kind:
            self._base, self._base_host, self._set_s = (event.time, event.mono_s), event.host, 0.0
        is_other = event.host != self._base_host or event.mono_s < self._base[1]
        if is_other or not self._alive:
            return event.time
        moment = self._base[0] + event.mono_s - self._base[1]
        jump_s = event.time - moment - self._set_s
        if abs(jump_s) > _CLOCK_JUMP_S:
            if event.kind not in _SIGNS_OF_LIFE:
                return event.time
            self.clock_jumps.append((jump_s, event.host))
            self._set_s += jump_s
        return moment

    def _extend(self, event: Event, moment: float) -> None:
        life = self._lives[-1]
        life.ended, life.heard_at = max(life.ended, moment), event.time
        life.last_step = max(life.last_step, event.step or 0)
        if event.kind in _ACCOUNTS:
            life.accounted = max(life.accounted, moment)

    def _run_started(self, event: Event, moment: float) -> None:
        self.start = start = events.RunStarted(**event.payload)
        last_kept = -1 if start.resumed_from_step is None else start.resumed_from_step
        self.resumed_from.append(last_kept)
        self._alive = True
        first_step, price = max(last_kept, 0), None
        if start.price_per_hour is not None and start.currency is not None:
            price = HourlyPrice(amount=start.price_per_hour, currency=start.currency)
        self._lives.append(
            facts.Life(
                hosts=start.hosts,
                world_size=start.world_size,
                price=price,
                device=start.device,
                started=moment,
                ended=moment,
                heard_at=event.time,
                first_step=first_step,
                last_step=first_step,
                reason=None,
                accounted=moment,
            )
        )
        self.clock = [read for read in self.clock if read[0] <= last_kept]

    def _clock_read(self, event: Event, _moment: float) -> None:
        if event.step:
            self.clock.append((event.step, event.payload["progress"]))

    @property
    def max_steps(self) -> int | None:
        """The steps of the run: as it says; with a budget, those made or those at this speed."""
        if self.clock and self._lives[-1].reason == "max_steps":
            return self._lives[-1].last_step
        return self.progress.max_steps

    def _run_finished(self, event: Event, moment: float) -> None:
        if self._alive:
            self._extend(event, moment)
            self._lives[-1].reason = event.payload["reason"]
            self._alive = False

    def _train_interval(self, event: Event, moment: float) -> None:
        self._intervals.add(
            event.payload,
            step=event.step or 0,
            time=moment,
            life=len(self._lives) - 1,
        )

    def _rank_paused(self, event: Event, moment: float) -> None:
        """The pause ended when its event was written."""
        if not self._lives:
            return
        values, hosts = event.payload, self._lives[-1].hosts
        rank = values["paused_rank"]
        pause = facts.Pause(
            rank=rank,
            host=hosts[rank] if rank < len(hosts) else "unknown",
            began=moment - values["seconds_s"],
            seconds_s=values["seconds_s"],
            step=event.step or 0,
            during=values["during"],
            own=values["own"],
            life=len(self._lives) - 1,
        )
        self._keep(pause)

    def _sample(self, event: Event, moment: float) -> None:
        if event.payload["seconds_s"] > 0:
            self.samples.add(event, moment)

    def _strategy_chosen(self, event: Event, _moment: float) -> None:
        """The link that `auto` measured before it chose, which is before its life begins."""
        rate = event.payload["link_bytes_per_s"]
        link = facts.RecordedLink(host=event.host, bytes_per_s=rate, life=len(self._lives))
        self._keep(link)

    def _imported_run(self, event: Event, _moment: float) -> None:
        self.imported = ImportedRun(**event.payload)
        if self._alive:
            self._lives[-1].imported = self.imported

    def _imported_score(self, event: Event, _moment: float) -> None:
        self.imported_scores.append((event.step or 0, event.payload["value"]))

    def _made(self, fact: type[events.Payload], event: Event, moment: float) -> events.Payload:
        """A fact of the values of an event; it takes those that it has a field for."""
        place = {"host": event.host, "rank": event.rank, "time": moment, "step": event.step}
        # A measurement before a start belongs to the life that begins.
        life = len(self._lives) - (self._alive or event.kind in _ACCOUNTS)
        return fact(**{**place, "life": life, **event.payload})


_Reader = Callable[[RunLog, Event, float], None]
_READERS: dict[str, _Reader] = {
    events.RunStarted.kind: RunLog._run_started,
    events.RunFinished.kind: RunLog._run_finished,
    events.ClockRead.kind: RunLog._clock_read,
    events.TrainInterval.kind: RunLog._train_interval,
    events.RankPaused.kind: RunLog._rank_paused,
    **dict.fromkeys(events.SAMPLES, RunLog._sample),
    events.StrategyChosen.kind: RunLog._strategy_chosen,
    ImportedRun.kind: RunLog._imported_run,
    ImportedScore.kind: RunLog._imported_score,
}
