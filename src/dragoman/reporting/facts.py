"""The measurements of a run, typed. None is "not measured", never a guess.

Times are seconds; `time` is seconds since 1970 on the clock of rank 0. Losses are nats per
target token. Shares are of 1.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from dragoman.base import units
from dragoman.base.printable import first_of
from dragoman.corpus.manifest import Manifest
from dragoman.recipe.recipe import Recipe
from dragoman.reporting.imported import ImportedRun
from dragoman.telemetry.events import (
    Compared,
    ComparedGroup,
    ComparedSentence,
    DeviceMeasured,
    LinkChanged,
    NetworkSampled,
    StudentMeasured,
)
from dragoman.telemetry.host import HourlyPrice
from dragoman.telemetry.session import Session
from dragoman.training.pace import Budget

_ENDINGS = {
    "max_steps": "finished",
    "early_stop": "stopped early",
    "signal": "stopped by a signal",
}
"""The states of runs that recorded their end; others are named by the reason itself."""
_SILENCE_S = 600.0
_MOST_LOST = 1
"""Intervals that a rank may lack: a kill tears at most the last line of its file."""
_LATE_S = 60.0
"""While a run goes on, events of another host may arrive this much later than those of this one."""
_SILENT_GAPS = 5
"""A run that writes nothing for this many times the longest gap in a life is no longer running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The life of one process: from its start to its end, or to its last sign of life."""

    started: float
    ended: float
    first_step: int
    last_step: int
    reason: str | None
    """Why it ended; None if that is not recorded (it runs, crashed or was killed)."""
    accounted: float
    """The end of the work that its events account for; samples of the host may come later."""
    world_size: int | None = None
    """Ranks that trained together then; None if the start is not in the record."""
    price: HourlyPrice | None = None
    """The price of all machines together, as known when this life began."""
    clock_ahead_s: float = 0.0
    """How far the clock of its host was ahead of rank 0's; the times are on rank 0's."""
    host: str = "unknown"
    """The host of this process."""
    device: str | None = None
    """The device that it trained on; None if the start is not in the record."""
    imported: ImportedRun | None = None
    """The record of this life in another tool's log."""

    @property
    def imported_hosts(self) -> tuple[str, ...]:
        """The hosts named in another tool's log; empty if the log does not say on which host each
        rank ran."""
        return tuple(filter(None, self.imported.hosts.split(","))) if self.imported else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Some updates of one rank up to `step`; sums over them, as in the train_interval event.

    Not that event's class: any value may be None here, because records of older versions and logs
    of other tools lack some, and because a reader does not trust a record.
    """

    step: int
    steps: int
    time: float
    epoch: int | None = None
    train_loss: float | None = None
    learning_rate: float | None = None
    gradient_norm: float | None = None
    gradient_signal: float | None = None
    gradient_noise: float | None = None
    pairs: int | None = None
    source_tokens: int | None = None
    target_tokens: int | None = None
    padding_share: float | None = None
    interval_s: float | None = None
    step_median_s: float | None = None
    step_p95_s: float | None = None
    compute_median_s: float | None = None
    data_wait_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    sync_s: float | None = None
    optimizer_s: float | None = None
    sync_bytes: int | None = None
    skipped_steps: int | None = None
    peak_memory_bytes: int | None = None

    @property
    def compute_s(self) -> float | None:
        """Forward, backward and optimizer."""
        return total(self.forward_s, self.backward_s, self.optimizer_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """The record of one rank, with its times on the clock of rank 0."""

    rank: int
    host: str
    """The host of its last life."""
    intervals: tuple[Interval, ...]
    segments: tuple[Segment, ...] = ()
    repeated: tuple[Interval, ...] = ()
    """Intervals that were made again after a resume, because they came after the checkpoint."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of its lives, each once."""
        return tuple(dict.fromkeys(life.host for life in self.segments)) or (self.host,)

    @property
    def name(self) -> str:
        """The rank and its hosts."""
        return f"rank {self.rank} on {', later '.join(self.hosts)}"

    def life_at(self, moment: float) -> Segment | None:
        """The last life that had begun at a moment of rank 0's clock."""
        begun = [life for life in self.segments if life.started <= moment]
        return begun[-1] if begun else None

    def life_beside(self, other: Segment) -> Segment | None:
        """The first life of this rank that overlaps with one of the run's `segments`."""
        meanwhile = (
            life
            for life in self.segments
            if life.started <= other.ended and other.started <= life.ended
        )
        return next(meanwhile, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBleu:
    """BLEU with its confidence interval."""

    bleu: float | None = None
    bleu_low: float | None = None
    bleu_high: float | None = None

    @property
    def bleu_text(self) -> str:
        """BLEU with its interval, in words."""
        return units.SCORE.optional_text(self.bleu) + units.SCORE.interval(
            self.bleu_low, self.bleu_high
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedValidation(MeasuredBleu):
    """One validation, as in the validated event."""

    step: int
    time: float
    dev_loss: float | None = None
    train_slice_loss: float | None = None
    bleu_signature: str | None = None
    loss_s: float | None = None
    decode_s: float | None = None
    dev_pairs: int | None = None

    @property
    def seconds_s(self) -> float | None:
        """Seconds of its loss and its decoding, if they were timed."""
        return summed((self.loss_s, self.decode_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class TestScore(MeasuredBleu):
    """A test set, decoded and scored."""

    name: str
    bleu: float
    decode_s: float | None = None
    settings: str = ""
    checkpoint: str = "best"
    target: str | None = None

    @property
    def label(self) -> str:
        """The test set, with the language, checkpoint and settings that were asked for."""
        checkpoint = "" if self.checkpoint == "best" else f"checkpoint {self.checkpoint}"
        said = ", ".join(one for one in (self.target, checkpoint, self.settings) if one)
        return f"{self.name} ({said})" if said else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDirection(MeasuredBleu):
    """One direction of a validation or of a test set, of a model of several languages."""

    text: str
    source: str
    target: str
    zero_shot: bool
    step: int | None = None


class RecordedComparison(Compared):
    """A model of the run beside another on a test set, by one metric, and when."""

    time: float


class RecordedGroup(ComparedGroup):
    """Scores of both models on a part of the test set, and when."""

    time: float


class RecordedSentence(ComparedSentence):
    """A sentence in which one model is furthest ahead, and when."""

    time: float


class RecordedDistillation(StudentMeasured):
    """Size and speed of a student and its teacher, and when."""

    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWrite:
    """A checkpoint that was written."""

    step: int
    size_bytes: int | None
    seconds_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFile:
    """A file of the newest checkpoint on disk."""

    name: str
    purpose: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """The time from the first to the last sign of a condition; with steps, if intervals show it."""

    since: float
    until: float
    since_step: int | None = None
    until_step: int | None = None
    from_start: bool
    to_end: bool
    """Whether it was still so at the end of the record."""
    share: float
    """The share of the records between the two that show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Means over the samples of one GPU while training; of memory and errors, the most.

    throttled_share: the share of the time in which its clock was lowered; being at the power limit
        is not counted.
    """

    host: str
    gpu: int
    name: str
    samples: int
    seconds_s: float
    utilisation_share: float | None
    sm_activity_share: float | None
    power_w: float | None
    power_limit_w: float | None
    memory_bytes: float | None
    throttled_share: float
    throttle_reasons: tuple[str, ...]
    ecc_errors: int | None
    throttled: Period | None = None
    weak: Period | None = None
    """When it drew so little power that it waited."""

    @property
    def label(self) -> str:
        """The GPU and its host."""
        return f"GPU {self.gpu} of {self.host}"

    @property
    def power_share(self) -> float | None:
        """The part of the power limit that the board draws."""
        if self.power_w is None or not self.power_limit_w:
            return None
        return self.power_w / self.power_limit_w


class Traffic(NetworkSampled):
    """All samples of the interface of one host together."""

    host: str
    carrier_changes: int
    faulty: Period | None = None
    """When there were errors, or its link was lost or found."""

    @property
    def sent_bytes_per_s(self) -> float | None:
        """Mean over all samples."""
        return self.sent_bytes / self.seconds_s if self.seconds_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineUse:
    """Means over the samples of one host while training."""

    host: str
    seconds_s: float
    cpu_share: float | None
    others_cpu_share: float | None
    """The part of its processors that other programs used."""
    memory_share: float | None
    disk_free_bytes: float | None
    """At the last sample, which was taken at `last_seen`."""
    last_seen: float
    queued_batches: float | None
    crowded: Period | None = None
    """When others used its processors."""
    idle: Period | None = None
    """When its processors were not all busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLink:
    """A link's measured capacity in one direction."""

    host: str
    bytes_per_s: float
    interface: str = ""


class RecordedDevice(DeviceMeasured):
    """The speed of one device alone."""

    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAlert:
    """A message of the run to people; severity is info, warning or error."""

    time: float
    step: int | None
    severity: str = "warning"
    cause: str
    remedy: str = ""
    host: str = ""
    rank: int | None = None

    @property
    def text(self) -> str:
        """The message, with its step if it has one."""
        return self.cause if self.step is None else f"step {self.step:,}: {self.cause}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A rank stood still for a while.

    own: whether the rank recorded it itself; if not, a rank that waited for it did.
    step: updates that were complete.
    during: the phase of a step ("sync": an all-reduce), or one of `OUTSIDE_STEPS`.
    """

    rank: int
    host: str
    began: float
    seconds_s: float
    step: int
    during: str
    own: bool

    @property
    def ended(self) -> float:
        """When the rank went on."""
        return self.began + self.seconds_s

    @property
    def name(self) -> str:
        """The rank and its host."""
        return f"rank {self.rank} on {self.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The strategy that `auto` chose: its name, its name with numbers, and the reason."""

    strategy: str
    label: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that was measured of one run."""

    name: str
    read_at: float
    world_size: int | None = None
    device: str | None = None
    precision: str | None = None
    num_parameters: int | None = None
    max_steps: int | None = None
    lengths: tuple[tuple[int, int], ...] = ()
    """(step, the number of steps that the run was to have from then on), as fitted to a budget."""
    segments: tuple[Segment, ...] = ()
    exit: Session | None = None
    """How the training command ended; None if it still trains, or if its end is not known."""
    ranks: tuple[Rank, ...] = ()
    validations: tuple[RecordedValidation, ...] = ()
    lost_validations: tuple[RecordedValidation, ...] = ()
    """Those after the checkpoint from which a run went on."""
    test_scores: tuple[TestScore, ...] = ()
    direction_scores: tuple[RecordedDirection, ...] = ()
    comparisons: tuple[RecordedComparison, ...] = ()
    compared_groups: tuple[RecordedGroup, ...] = ()
    compared_sentences: tuple[RecordedSentence, ...] = ()
    distillations: tuple[RecordedDistillation, ...] = ()
    checkpoints: tuple[CheckpointWrite, ...] = ()
    checkpoint_files: tuple[CheckpointFile, ...] = ()
    prepare_s: float | None = None
    environment: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    alerts: tuple[RecordedAlert, ...] = ()
    pauses: tuple[Pause, ...] = ()
    """The times of intervals do not include them."""
    gpus: tuple[Gpu, ...] = ()
    traffic: tuple[Traffic, ...] = ()
    machines: tuple[MachineUse, ...] = ()
    links: tuple[RecordedLink, ...] = ()
    link_changes: tuple[LinkChanged, ...] = ()
    chosen: Chosen | None = None
    devices: tuple[RecordedDevice, ...] = ()
    manifest: Manifest | None = None
    recipe: Recipe | None = None
    imported: ImportedRun | None = None
    imported_scores: tuple[tuple[int, float], ...] = ()
    """(step, the score that the other tool calls BLEU)."""
    price: HourlyPrice | None = None
    """The price of one machine, if it was given; it counts for all lives."""
    host_prices: Mapping[str, HourlyPrice] = field(default_factory=dict)
    """The price of each machine by its name, from hosts.json."""
    recorded_hosts: int | None = None
    """How many hosts `train --hosts` wrote down, if their slots are as many as there are ranks."""
    budget: Budget | None = None
    """The budget of the whole run, including preparation, scores and export."""
    problems: tuple[str, ...] = ()
    """Faults of the evidence itself: torn lines, missing ranks, clocks that differ."""
    lives: tuple[Facts, ...] = ()
    """The facts of each life that has intervals, if ranks moved to other hosts between lives, or if
    links or devices were measured again and differ. Otherwise empty: the run counts as one."""

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """Intervals of the rank with the fullest record: see `fullest`."""
        return fullest(self.ranks).intervals if self.ranks else ()

    @property
    def repeated_steps(self) -> int:
        """Updates that were made again after a resume, because they came after the checkpoint."""
        return sum(one.steps for one in fullest(self.ranks).repeated) if self.ranks else 0

    @property
    def repeated_s(self) -> float:
        """Seconds that the repeated steps took the first time."""
        again = fullest(self.ranks).repeated if self.ranks else ()
        return summed(one.interval_s for one in again) or 0.0

    @property
    def last_step(self) -> int:
        """The last update of the last life that any rank is known to have made.

        An earlier life may have gone further: what came after its checkpoint was lost.
        """
        last = self.segments[-1:]
        beside = (rank.life_beside(life) for life in last for rank in self.ranks)
        lives = (*last, *(life for life in beside if life is not None))
        return max(
            [*(one.last_step for one in lives), *(one.step for one in self.intervals[-1:])],
            default=0,
        )

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the machines of all lives, each once."""
        if self.imported is not None:
            named = (host for life in self.segments for host in life.imported_hosts)
            return tuple(dict.fromkeys(named))
        return tuple(dict.fromkeys(host for rank in self.ranks for host in rank.hosts))

    def hosts_of(self, segment: Segment) -> list[str]:
        """The host of each rank in one of `segments`, by rank, if its events are there.

        For an imported run: each host once, or none.
        """
        if self.imported is not None:
            return list(segment.imported_hosts)
        lives = (rank.life_beside(segment) for rank in self.ranks)
        return [life.host for life in lives if life is not None]

    def machines_of(self, segment: Segment) -> int | None:
        """How many machines took part in one life; None if a rank left no events
        and hosts.json does not tell.

        segment: one of `segments`. A restart may use fewer machines, or others.
        """
        if self.imported is not None:
            return len(segment.imported_hosts) or None
        there = self.hosts_of(segment)
        seen = set(there)
        if segment.world_size is not None and len(there) >= segment.world_size:
            return len(seen)
        recorded = self.recorded_hosts or 0  # those of the last life
        same = segment.world_size == self.world_size and seen <= set(
            self.hosts_of(self.segments[-1])
        )
        return recorded if same and recorded >= max(len(seen), 1) else None

    @property
    def is_one_host(self) -> bool:
        """Whether every rank recorded the same host, at the same time."""
        if len(self.hosts) != 1 or len(self.ranks) != self.world_size or not self.segments:
            return False
        return self.machines_of(self.segments[-1]) == 1

    def ranks_at(self, step: int) -> int:
        """How many ranks made a step together; 0 if no start records it."""
        lives = [life for life in self.segments if life.first_step < step]
        return (lives[-1].world_size if lives else None) or self.world_size or 0

    @property
    def side_by_side(self) -> list[list[Interval]]:
        """Intervals that every rank recorded: one of each rank, by step and rank."""
        found = []
        for step, by_rank in self._by_step().items():
            ranks = self.ranks_at(step)
            together = [by_rank[rank] for rank in sorted(by_rank) if rank < ranks]
            if self.imported is not None or len(together) == ranks:
                found.append(together)
        return found

    @property
    def missing_intervals(self) -> dict[int, int]:
        """How many intervals each rank lacks that another rank recorded."""
        counts = {rank.rank: 0 for rank in self.ranks}
        is_running = self.is_running
        newest = max((rank.intervals[-1].time for rank in self.ranks if rank.intervals), default=0)
        for step, by_rank in self._by_step().items():
            age_s = newest - max(one.time for one in by_rank.values())
            ranks = self.ranks_at(step)
            if not (is_running and age_s < _LATE_S):
                for rank in counts:
                    counts[rank] += rank not in by_rank and rank < ranks
        return counts

    def _by_step(self) -> dict[int, dict[int, Interval]]:
        found: dict[int, dict[int, Interval]] = {}
        for rank in self.ranks:
            for one in rank.intervals:
                found.setdefault(one.step, {})[rank.rank] = one
        return dict(sorted(found.items()))

    @property
    def complete_ranks(self) -> list[Rank]:
        """Ranks that recorded all their intervals, except for one that a kill may cost."""
        missing = {} if self.imported is not None else self.missing_intervals
        return [rank for rank in self.ranks if missing.get(rank.rank, 0) <= _MOST_LOST]

    @property
    def lacking_ranks(self) -> list[int]:
        """Ranks that left no events, or lack more than one interval that others recorded."""
        if self.imported is not None:
            return []
        sizes = [life.world_size for life in self.segments if life.world_size is not None]
        most = max([self.world_size or 0, *sizes, *(rank.rank + 1 for rank in self.ranks)])
        return sorted({*range(most)} - {rank.rank for rank in self.complete_ranks})

    @property
    def lacks_ranks(self) -> bool:
        """Whether there are lacking ranks; True also if the number of ranks is not known."""
        return bool(self.lacking_ranks) or (self.imported is None and self.world_size is None)

    @property
    def lacking_text(self) -> str:
        """The lacking ranks, in words."""
        numbers = list(map(str, self.lacking_ranks))
        if not numbers:
            return "a rank"
        return f"rank{'s' if len(numbers) > 1 else ''} {first_of(numbers, 8)}"

    @property
    def state(self) -> str:
        """Whether it runs, or how it ended, in words."""
        if not self.segments:
            return "not started"
        if self.imported is not None:
            return "read from its log"
        reason = self.segments[-1].reason
        if reason is not None:
            return _ENDINGS.get(reason, reason)
        if not self.is_silent:
            return "running"
        if self.exit is None:
            return "silent: crashed, killed or cut off"
        return "killed" if self.exit.state == "gone" else self.exit.state

    @property
    def is_finished(self) -> bool:
        """Whether the run recorded its end, and it was not a signal."""
        return bool(self.segments) and self.segments[-1].reason in (
            "max_steps",
            "early_stop",
            "diverged",
        )

    @property
    def is_silent(self) -> bool:
        """Whether it crashed or was killed: it recorded no end, but its process has ended, or it
        was silent for long."""
        if not self.segments or self.segments[-1].reason is not None:
            return False
        if self.exit is not None:
            return True
        begun = [life.started for life in self.segments]
        gaps = [
            two.time - one.time
            for one, two in pairwise(self.intervals)
            if bisect_right(begun, one.time) == bisect_right(begun, two.time)
        ]
        patience_s = max([_SILENCE_S, *(_SILENT_GAPS * gap for gap in gaps)])
        return self.read_at - self.segments[-1].ended > patience_s

    @property
    def is_running(self) -> bool:
        """Whether it has begun, did not end and wrote something lately."""
        began = bool(self.segments) and self.segments[-1].reason is None
        return began and not self.is_silent

    @property
    def train_s(self) -> float | None:
        """Seconds inside updates, even those that were lost, without pauses."""
        seconds_s = summed(interval.interval_s for interval in self.intervals)
        return None if seconds_s is None else seconds_s + self.repeated_s

    @property
    def wall_s(self) -> float | None:
        """From each start to each end; the time between two lives is not counted."""
        return summed(segment.ended - segment.started for segment in self.segments)

    @property
    def unrecorded_s(self) -> float:
        """Seconds at the ends of lives that no event accounts for: the steps under way there."""
        open_ended = (one for one in self.segments if one.reason is None)
        return sum(one.ended - one.accounted for one in open_ended)


def fullest(ranks: Sequence[Rank]) -> Rank:
    """Rank 0, or the lowest there is; another rank only if it recorded more lives or intervals.

    The one interval that a kill may cost does not count.
    """
    most = max(ranks, key=lambda rank: (len(rank.segments), len(rank.intervals)))
    first = ranks[0]
    if len(most.segments) > len(first.segments):
        return most
    return most if len(most.intervals) > len(first.intervals) + _MOST_LOST else first


def total(*values: float | None) -> float | None:
    """The sum, or None if one is not measured."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def summed(values: Iterable[float | None]) -> float | None:
    """The sum of those that are measured, or None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
