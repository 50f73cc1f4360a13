"""Read the events of one rank, on one clock.

Nothing here trusts a file: a field that is missing or of another type is "not measured".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from dragoman.base.errors import MachineError
from dragoman.reporting import facts
from dragoman.reporting.imported import ImportedRun, ImportedScore
from dragoman.reporting.sampling import Sample, Samples
from dragoman.telemetry import events
from dragoman.telemetry.events import (
    PHASE_FIELDS,
    SCHEMA_VERSION,
    Event,
    StrategyChosen,
    TestScored,
    from_payload,
    number,
    read_events,
)
from dragoman.telemetry.host import HourlyPrice

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
    events.LengthFitted.kind,
    events.RankPaused.kind,
    events.LinkMeasured.kind,
    events.LinkChanged.kind,
    events.DeviceMeasured.kind,
    events.GpuSampled.kind,
    events.NetworkSampled.kind,
    events.HostSampled.kind,
}
"""Kinds that only a process that trains writes. Others may come after its end, as from the next
process before it starts, from an evaluation, or from the controller on another machine."""
_TOOK = {
    events.TrainInterval.kind: ("interval_s",),
    events.Validated.kind: ("loss_s", "decode_s"),
    events.CheckpointWritten.kind: ("seconds_s",),
}
"""The fields that hold the time they took."""
_MOST_OF_INTERVAL = 1.02
"""Phases do not overlap: together they take at most the interval, up to rounding."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """The values of a run_started event; None if it lacks one."""

    run_name: str | None = None
    world_size: int | None = None
    device: str | None = None
    precision: str | None = None
    num_parameters: int | None = None
    max_steps: int | None = None
    resumed_from_step: int | None = None
    price_per_hour: float | None = None
    currency: str | None = None

    @property
    def price(self) -> HourlyPrice | None:
        """The price of all machines together."""
        if self.price_per_hour is None or self.currency is None:
            return None
        return HourlyPrice(amount=self.price_per_hour, currency=self.currency)


_NO_START: Final = RunStart()


@dataclass(slots=True)
class HostRecord:
    """Links, devices and samples of the host during one life of a rank.

    boot: when the machine was started, by its own clock.
    """

    boot: float | None = None
    links: list[facts.RecordedLink] = field(default_factory=list)
    link_changes: list[events.LinkChanged] = field(default_factory=list)
    devices: list[facts.RecordedDevice] = field(default_factory=list)
    samples: Samples = field(default_factory=Samples)


@dataclass(slots=True)
class RankFile:
    """The events of one file, read once."""

    rank: int
    host: str = "unknown"
    start: RunStart | None = None
    """The last start of the run."""
    environment: dict[str, Any] = field(default_factory=dict)
    imported: ImportedRun | None = None
    """The last life's; each segment has its own."""
    imported_scores: list[tuple[int, float]] = field(default_factory=list)
    host_records: list[HostRecord] = field(default_factory=list)
    """One for each segment."""
    intervals: list[facts.Interval] = field(default_factory=list)
    repeated: list[facts.Interval] = field(default_factory=list)
    validations: list[facts.RecordedValidation] = field(default_factory=list)
    lost_validations: list[facts.RecordedValidation] = field(default_factory=list)
    test_scores: list[facts.TestScore] = field(default_factory=list)
    direction_scores: list[facts.RecordedDirection] = field(default_factory=list)
    comparisons: list[facts.RecordedComparison] = field(default_factory=list)
    compared_groups: list[facts.RecordedGroup] = field(default_factory=list)
    compared_sentences: list[facts.RecordedSentence] = field(default_factory=list)
    distillations: list[facts.RecordedDistillation] = field(default_factory=list)
    checkpoints: list[facts.CheckpointWrite] = field(default_factory=list)
    chosen: list[facts.Chosen] = field(default_factory=list)
    lengths: list[tuple[int, int]] = field(default_factory=list)
    """The fitted length of a run with a budget: from which step on, and the number of steps."""
    alerts: list[facts.RecordedAlert] = field(default_factory=list)
    pauses: list[facts.Pause] = field(default_factory=list)
    samples: Samples = field(default_factory=Samples)
    """Those of all lives; `host_records` has those of each."""
    prepare_s: float | None = None
    unreadable: str = ""
    """Why the file could not be read to its end."""
    damaged: list[int] = field(default_factory=list)
    versions: set[int] = field(default_factory=set)
    incomplete: int = 0
    overfull: int = 0
    """Intervals whose phases are longer than the interval."""
    clock_jumps: list[tuple[float, str]] = field(default_factory=list)
    """(seconds, host)"""
    _next: HostRecord = field(default_factory=HostRecord)
    """The measurements for the life that is about to begin."""
    _base: tuple[float, float] | None = None
    _base_host: str = ""
    _boot: float | None = None
    _ahead_s: float = 0.0
    """How far UTC is ahead of the moments of this life; never above 0."""
    _alive: bool = False
    _lives: list[facts.Segment] = field(default_factory=list)
    """Lives as they began; the next three fields hold the changes to the last one."""
    _ended: float = 0.0
    _last_step: int = 0
    _accounted: float = 0.0

    @classmethod
    def empty(cls, path: Path) -> RankFile:
        """The facts of `rank-NNNN.jsonl` before its first event is read."""
        digits = path.stem.removeprefix("rank-")
        return cls(rank=int(digits) if digits.isdecimal() else 0)

    @classmethod
    def read(cls, path: Path) -> RankFile:
        """The events of `rank-NNNN.jsonl`."""
        found = cls.empty(path)
        try:
            for event in read_events(path, on_damaged=found.damaged.append):
                found.see(event)
        except MachineError as error:
            found.unreadable = str(error)
        return found

    @property
    def segments(self) -> list[facts.Segment]:
        """The lives of this rank."""
        if not self._lives:
            return []
        last = replace(
            self._lives[-1],
            ended=self._ended,
            last_step=self._last_step,
            accounted=self._accounted,
        )
        return [*self._lives[:-1], last]

    def problems(self) -> list[str]:
        """The faults of the file, in words."""
        name = f"events of rank {self.rank}"
        found = [self.unreadable] if self.unreadable else []
        if self.damaged:
            lines = ", ".join(map(str, self.damaged[:5]))
            found.append(f"{name}: {len(self.damaged)} damaged lines were skipped (line {lines})")
        if self.incomplete:
            found.append(f"{name}: {self.incomplete} events lack values that their kind needs")
        if self.overfull:
            said = f"{self.overfull} intervals are shorter than their phases, which are not used"
            found.append(f"{name}: {said}")
        if other := sorted(self.versions - {SCHEMA_VERSION}):
            found.append(f"{name}: written with schema {other[0]}, this is {SCHEMA_VERSION}")
        if self.clock_jumps:
            largest, host = max(self.clock_jumps, key=lambda jump: abs(jump[0]))
            said = f"{name}: the clock of {host} was set by {largest:+.0f} s meanwhile"
            said += ", or it was asleep; this counts as time of the run" if largest > 0 else ""
            found.append(said)
        return found

    def see(self, event: Event) -> None:
        """Read one event; events come in the order of the file."""
        self.versions.add(event.v)
        self.host = event.host
        moment = self._moment(event)
        if not self._alive:
            self._begin_before(event, moment)
        reader = _READERS.get(event.kind)
        if reader is not None:
            reader(self, event, moment)
        if self._alive and event.kind in _SIGNS_OF_LIFE:
            self._extend(moment, event.step, is_account=event.kind in _ACCOUNTS)

    def _moment(self, event: Event) -> float:
        """The time of an event by the monotonic clock of its life, which is never set.

        That clock stands still while a machine is asleep, so UTC counts when it goes ahead. An
        event of another machine, or after another start of this one, has its own UTC.
        """
        is_of_life = event.kind in _SIGNS_OF_LIFE
        fresh = event.kind == events.RunStarted.kind or not self._alive
        other = self._base is None or event.host != self._base_host or event.mono_s < self._base[1]
        if self._base is None or fresh or (other and is_of_life):
            self._base, self._ahead_s = (event.time, event.mono_s), 0.0
            self._base_host, self._boot = event.host, event.time - event.mono_s
        moment = self._base[0] + event.mono_s - self._base[1]
        jump_s = event.time - moment - self._ahead_s
        if not is_of_life and (other or abs(jump_s) > _CLOCK_JUMP_S):
            return event.time
        if abs(jump_s) > _CLOCK_JUMP_S:
            self.clock_jumps.append((jump_s, event.host))
            self._ahead_s += jump_s
            if self._ahead_s > 0:
                self._base = (self._base[0] + self._ahead_s, self._base[1])
                moment, self._ahead_s = event.time, 0.0
        return moment

    def _begin(self, moment: float, first_step: int, start: RunStart) -> None:
        self._alive = True
        self._next.boot = self._boot
        self.host_records.append(self._next)
        self._next = HostRecord()
        self._lives = self.segments
        self._ended, self._last_step, self._accounted = moment, first_step, moment
        self._lives.append(
            facts.Segment(
                host=self.host,
                world_size=start.world_size,
                price=start.price,
                device=start.device,
                started=moment,
                ended=moment,
                first_step=first_step,
                last_step=first_step,
                reason=None,
                accounted=moment,
            )
        )

    def _extend(self, moment: float, step: int | None, *, is_account: bool) -> None:
        self._ended = max(self._ended, moment)
        self._last_step = max(self._last_step, step or 0)
        if is_account:
            self._accounted = max(self._accounted, moment)

    def _run_started(self, event: Event, moment: float) -> None:
        self.start = start = from_payload(RunStart, event.payload) or _NO_START
        last_kept = -1 if start.resumed_from_step is None else start.resumed_from_step
        self.repeated += [interval for interval in self.intervals if interval.step > last_kept]
        self.intervals = [interval for interval in self.intervals if interval.step <= last_kept]
        self.lost_validations += [seen for seen in self.validations if seen.step > last_kept]
        self.validations = [seen for seen in self.validations if seen.step <= last_kept]
        self._begin(moment, max(last_kept, 0), start)
        self._note_length(max(last_kept, 0), start.max_steps)

    def _length_fitted(self, event: Event, _moment: float) -> None:
        steps = number(event.payload.get("max_steps"))
        self._note_length(event.step or 0, None if steps is None else int(steps))

    def _note_length(self, step: int, steps: int | None) -> None:
        self.lengths = [one for one in self.lengths if one[0] < step]
        if steps is not None and (not self.lengths or self.lengths[-1][1] != steps):
            self.lengths.append((step, steps))

    def _run_finished(self, event: Event, moment: float) -> None:
        if self._alive:
            self._extend(moment, event.step, is_account=True)
            reason = str(event.payload.get("reason"))
            self._lives[-1] = replace(self._lives[-1], reason=reason)
            self._alive = False

    def _train_interval(self, event: Event, moment: float) -> None:
        interval_s = number(event.payload.get("interval_s"))
        phases_s = facts.summed(number(event.payload.get(name)) for name in PHASE_FIELDS)
        if interval_s is not None and (phases_s or 0.0) > _MOST_OF_INTERVAL * interval_s:
            self.overfull += 1
            payload = {key: one for key, one in event.payload.items() if key not in PHASE_FIELDS}
            event = replace(event, payload=payload)
        self._keep(facts.Interval, self.intervals, event, moment)

    def _begin_before(self, event: Event, moment: float) -> None:
        """Begin a life whose start is not in the record, before the time that this event covers."""
        took = _TOOK.get(event.kind)
        if took is not None:
            recorded_s = facts.summed(number(event.payload.get(name)) for name in took)
            self._begin(moment - max(recorded_s or 0.0, 0.0), 0, _NO_START)

    def _environment(self, event: Event, _moment: float) -> None:
        self.environment = event.payload

    def _rank_paused(self, event: Event, moment: float) -> None:
        """The pause ended when its event was written, by the monotonic clock."""
        seconds_s = number(event.payload.get("seconds_s"))
        rank, host = number(event.payload.get("paused_rank")), event.payload.get("paused_host")
        if seconds_s is None or rank is None or seconds_s < 0:
            self.incomplete += 1
            return
        pause = facts.Pause(
            rank=int(rank),
            host=str(host),
            began=moment - seconds_s,
            seconds_s=seconds_s,
            step=event.step or 0,
            during=str(event.payload.get("during")),
            own=event.payload.get("own") is True,
        )
        self.pauses.append(pause)

    def _corpus_stage(self, event: Event, _moment: float) -> None:
        seconds_s = number(event.payload.get("seconds_s"))
        if seconds_s is not None:
            self.prepare_s = (self.prepare_s or 0.0) + seconds_s

    def _sample(self, event: Event, moment: float) -> None:
        if (sample := Sample.of(event, moment)) is not None:
            self._host_record.samples.add(sample)
            self.samples.add(sample)

    @property
    def _host_record(self) -> HostRecord:
        return self.host_records[-1] if self._alive else self._next

    def _strategy_chosen(self, event: Event, moment: float) -> None:
        """The measurements of `auto` before it chose, which is before its life begins."""
        rate = number(event.payload.get("link_bytes_per_s"))
        if rate is not None:
            self._next.links.append(facts.RecordedLink(host=event.host, bytes_per_s=rate))
        self._keep(facts.Chosen, self.chosen, event, moment)

    def _imported_run(self, event: Event, _moment: float) -> None:
        self.imported = from_payload(ImportedRun, event.payload)
        if self._alive:
            self._lives[-1] = replace(self._lives[-1], imported=self.imported)

    def _imported_score(self, event: Event, _moment: float) -> None:
        value = number(event.payload.get("value"))
        if value is not None and event.step is not None:
            self.imported_scores.append((event.step, value))

    def _keep(self, kind: type[T], kept: list[T], event: Event, moment: float) -> None:
        """Keep the event as a fact, or count it as incomplete if it lacks a value."""
        envelope = {"step": event.step, "host": event.host, "rank": event.rank}
        made = from_payload(kind, envelope | event.payload | {"time": moment})
        if made is None:
            self.incomplete += 1
        else:
            kept.append(made)


_Reader = Callable[[RankFile, Event, float], None]


def _kept(kind: type[T], where: Callable[[RankFile], list[T]]) -> _Reader:
    def read(file: RankFile, event: Event, moment: float) -> None:
        file._keep(kind, where(file), event, moment)

    return read


_READERS: dict[str, _Reader] = {
    events.RunStarted.kind: RankFile._run_started,
    events.RunFinished.kind: RankFile._run_finished,
    events.LengthFitted.kind: RankFile._length_fitted,
    events.TrainInterval.kind: RankFile._train_interval,
    events.Validated.kind: _kept(facts.RecordedValidation, lambda file: file.validations),
    TestScored.kind: _kept(facts.TestScore, lambda file: file.test_scores),
    events.DirectionScored.kind: _kept(facts.RecordedDirection, lambda file: file.direction_scores),
    events.Compared.kind: _kept(facts.RecordedComparison, lambda file: file.comparisons),
    events.ComparedGroup.kind: _kept(facts.RecordedGroup, lambda file: file.compared_groups),
    events.ComparedSentence.kind: _kept(
        facts.RecordedSentence, lambda file: file.compared_sentences
    ),
    events.StudentMeasured.kind: _kept(facts.RecordedDistillation, lambda file: file.distillations),
    events.CheckpointWritten.kind: _kept(facts.CheckpointWrite, lambda file: file.checkpoints),
    events.Environment.kind: RankFile._environment,
    events.Alert.kind: _kept(facts.RecordedAlert, lambda file: file.alerts),
    events.RankPaused.kind: RankFile._rank_paused,
    events.CorpusStage.kind: RankFile._corpus_stage,
    events.LinkMeasured.kind: _kept(facts.RecordedLink, lambda file: file._host_record.links),
    events.LinkChanged.kind: _kept(events.LinkChanged, lambda file: file._host_record.link_changes),
    events.DeviceMeasured.kind: _kept(facts.RecordedDevice, lambda file: file._host_record.devices),
    events.GpuSampled.kind: RankFile._sample,
    events.NetworkSampled.kind: RankFile._sample,
    events.HostSampled.kind: RankFile._sample,
    StrategyChosen.kind: RankFile._strategy_chosen,
    ImportedRun.kind: RankFile._imported_run,
    ImportedScore.kind: RankFile._imported_score,
}
