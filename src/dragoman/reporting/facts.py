"""The measurements of a run, typed. None is "not measured", never a guess.

Times are seconds; `time` is seconds since 1970 on the clock of rank 0. Losses are nats per
target token. Shares are of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from dragoman.base import units
from dragoman.corpus.manifest import Manifest
from dragoman.recipe.recipe import Recipe
from dragoman.reporting.imported import ImportedRun
from dragoman.reporting.periods import Period
from dragoman.reporting.record import Floats, Intervals, no_intervals, summed, total_over
from dragoman.telemetry.events import (
    Alert,
    CheckpointWritten,
    Compared,
    DeviceMeasured,
    DirectionScored,
    ExamMarked,
    LinkChanged,
    NetworkSampled,
    Payload,
    SampleTranslation,
    StrategyChosen,
    StudentMeasured,
    TestScored,
    Validated,
)
from dragoman.telemetry.host import HourlyPrice
from dragoman.telemetry.session import Session
from dragoman.training.clock import Budget

_ENDINGS = {
    "max_steps": "finished",
    "early_stop": "stopped early",
    "signal": "stopped by a signal",
}
"""The states of runs that recorded their end; others are named by the reason itself."""
T = TypeVar("T")
_SILENCE_S = 600.0
_SILENT_GAPS = 5
"""A run that writes nothing for this many times the longest gap in a life is no longer running."""


@dataclass(slots=True, kw_only=True)
class Life:
    """One life of the run: from a start to its end, or to its last sign of life."""

    started: float
    ended: float
    heard_at: float
    """Like `ended`, but by the clock as it was set then."""
    first_step: int
    last_step: int
    reason: str | None
    """Why it ended; None if that is not recorded (it runs, crashed or was killed)."""
    accounted: float
    """The end of the work that its events account for; samples of the host may come later."""
    world_size: int | None = None
    """Ranks that trained together then; None if that is not recorded."""
    price: HourlyPrice | None = None
    """The price of all machines together, as known when this life began."""
    hosts: tuple[str, ...] = ()
    """The machine of each rank; empty if that is not recorded."""
    device: str | None = None
    """The device that it trained on; None if that is not recorded."""
    imported: ImportedRun | None = None
    """The record of this life in another tool's log."""

    @property
    def machines(self) -> int | None:
        """How many machines took part; None if that is not recorded."""
        return len(set(self.hosts)) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank. hosts: the machines of its lives, each once."""

    rank: int
    hosts: tuple[str, ...]

    @property
    def host(self) -> str:
        """The host of its last life."""
        return self.hosts[-1] if self.hosts else "unknown"

    @property
    def name(self) -> str:
        """The rank and its hosts."""
        return f"rank {self.rank} on {', later '.join(self.hosts) or 'unknown'}"


def bleu_text(measured: Validated | TestScored | DirectionScored) -> str:
    """BLEU with its interval, in words."""
    interval = units.SCORE.interval(measured.bleu_low, measured.bleu_high)
    return units.SCORE.optional_text(measured.bleu) + interval


class RecordedValidation(Validated):
    """One validation, and the number of its life."""

    step: int
    time: float
    life: int = 0

    @property
    def seconds_s(self) -> float | None:
        """Seconds of its loss and its decoding, if they were timed."""
        return summed((self.loss_s, self.decode_s))


class TestScore(TestScored):
    """A test set, decoded and scored."""

    @property
    def label(self) -> str:
        """The test set, with the language, checkpoint and settings that were asked for."""
        checkpoint = "" if self.checkpoint == "best" else f"checkpoint {self.checkpoint}"
        details = ", ".join(detail for detail in (self.target, checkpoint, self.settings) if detail)
        return f"{self.name} ({details})" if details else self.name


class RecordedSample(SampleTranslation):
    """A dev sentence with its translation, and the step of the model."""

    step: int | None

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Its texts with their names."""
        texts = (self.source, self.hypothesis, self.reference)
        return list(zip(("source", "translation", "reference"), texts, strict=True))


class RecordedDirection(DirectionScored):
    """One direction of a validation or of a test set, of a model of several languages."""

    step: int | None


class RecordedCheckpoint(CheckpointWritten):
    """A checkpoint that was written, and when."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFile:
    """A file of the newest checkpoint on disk."""

    name: str
    purpose: str
    size_bytes: int


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
    energy_j: float | None
    """The sum over its samples; None if its power was not measured."""
    throttled_share: float | None
    throttle_reasons: tuple[str, ...]
    ecc_errors: int | None
    throttled: tuple[Period, ...] = ()
    weak: tuple[Period, ...] = ()
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
    faulty: tuple[Period, ...] = ()
    """When there were errors, or its link was lost or found."""
    link_turns: tuple[tuple[float, float], ...] = ()
    """The begin and end of each sample in which its link was lost or found."""

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
    processor_energy_j: float | None
    """Of all its processors and programs, the sum over the samples; None if it does not tell."""
    others: Floats = field(compare=False)
    """Each sample of that part [sample, 3]: when it began and ended, and the share."""
    crowded: tuple[Period, ...] = ()
    """When others used its processors."""
    idle: tuple[Period, ...] = ()
    """When its processors were not all busy."""

    def others_between(self, since: float, until: float) -> float | None:
        """The part of its processors that other programs used then; None without a sample."""
        began, ended, shares = self.others.T
        lasted_s = np.maximum(np.minimum(ended, until) - np.maximum(began, since), 0.0)
        return total_over(shares * lasted_s, lasted_s)


class RecordedLink(Payload):
    """A link's measured capacity in one direction."""

    host: str
    bytes_per_s: float
    life: int
    interface: str = ""


class RecordedChange(LinkChanged):
    """A change of the link, and the number of the life in which it was."""

    life: int


class RecordedDevice(DeviceMeasured):
    """The speed of one device alone."""

    host: str
    life: int


class RecordedAlert(Alert):
    """A message of the run to people."""

    time: float
    step: int | None
    host: str
    rank: int

    @property
    def text(self) -> str:
        """The message with its remedy, and with its step if it has one."""
        text = "; ".join(filter(None, (self.cause, self.remedy)))
        return text if self.step is None else f"step {self.step:,}: {text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A rank stood still for a while.

    own: whether the rank recorded it itself; if not, a rank that waited for it did.
    step: updates that were complete. life: the number of its life.
    during: the phase of a step ("sync": an all-reduce), or one of `OUTSIDE_STEPS`.
    """

    rank: int
    host: str
    began: float
    seconds_s: float
    step: int
    during: str
    own: bool
    life: int = 0

    @property
    def ended(self) -> float:
        """When the rank went on."""
        return self.began + self.seconds_s

    @property
    def name(self) -> str:
        """The rank and its host."""
        return f"rank {self.rank} on {self.host}"


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
    finish_time: float | None = None
    """When the last step will end, by `Progress`; None if that is not known."""
    clock: tuple[tuple[int, float], ...] = ()
    """Readings of the clock, if the run has a budget: (step, share of its time that had gone)."""
    lives: tuple[Life, ...] = ()
    exit: Session | None = None
    """How the training command ended; None if it still trains, or if its end is not known."""
    intervals: Intervals = field(default_factory=no_intervals)
    repeated: Intervals = field(default_factory=no_intervals)
    """Those that were made again after a resume, because they came after the checkpoint."""
    ranks: tuple[Rank, ...] = ()
    validations: tuple[RecordedValidation, ...] = ()
    lost_validations: tuple[RecordedValidation, ...] = ()
    """Those after the checkpoint from which a run went on."""
    test_scores: tuple[TestScore, ...] = ()
    samples: tuple[RecordedSample, ...] = ()
    """Dev sentences as the model translated them at the last validation, three at most."""
    direction_scores: tuple[RecordedDirection, ...] = ()
    exam: tuple[ExamMarked, ...] = ()
    """The marks of all exams, in their order."""
    comparisons: tuple[Compared, ...] = ()
    distillations: tuple[StudentMeasured, ...] = ()
    checkpoints: tuple[RecordedCheckpoint, ...] = ()
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
    link_changes: tuple[RecordedChange, ...] = ()
    chosen: StrategyChosen | None = None
    """The strategy that `auto` chose."""
    devices: tuple[RecordedDevice, ...] = ()
    manifest: Manifest | None = None
    recipe: Recipe | None = None
    imported: ImportedRun | None = None
    imported_scores: tuple[tuple[int, float], ...] = ()
    """(step, the score that the other tool calls BLEU)."""
    price: HourlyPrice | None = None
    """The price of one machine, if it was given; it counts for all lives."""
    budget: Budget | None = None
    """The budget of the whole run, including preparation, scores and export."""
    problems: tuple[str, ...] = ()
    """Faults of the evidence itself: torn lines, a clock that was set."""
    configurations: tuple[Facts, ...] = ()
    """The facts of each configuration: the same ranks, hosts, devices and link. Empty if the whole
    run is one."""
    computed: dict[Callable[[Facts], Any], Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The results of functions that are computed `once`; other facts have their own."""

    @property
    def repeated_steps(self) -> int:
        """Updates that were made again after a resume."""
        return int(self.repeated["steps"].sum())

    @property
    def made_steps(self) -> int:
        """All updates, those that were made again included."""
        return int(self.intervals["steps"].sum()) + self.repeated_steps

    @property
    def repeated_s(self) -> float:
        """Seconds that the repeated steps took the first time."""
        return summed(self.repeated.of("interval_s")) or 0.0

    @property
    def last_step(self) -> int:
        """The last update of the last life that is known.

        An earlier life may have gone further: what came after its checkpoint was lost.
        """
        last = [life.last_step for life in self.lives[-1:]]
        return max([*last, *map(int, self.intervals["step"][-1:])], default=0)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the machines of all lives, each once."""
        return tuple(dict.fromkeys(host for life in self.lives for host in life.hosts))

    @property
    def is_one_host(self) -> bool:
        """Whether every rank ran on the same host, at the same time."""
        return len(self.hosts) == 1

    @property
    def state(self) -> str:
        """Whether it runs, or how it ended, in words."""
        if self.imported is not None:
            return "read from its log"
        reason = self.lives[-1].reason if self.lives else None
        if reason is not None:
            return _ENDINGS.get(reason, reason)
        if self.exit is not None:
            return "killed" if self.exit.state == "gone" else self.exit.state
        if not self.lives:
            return "not started"
        return "silent: crashed, killed or cut off" if self.is_silent else "running"

    @property
    def has_ended(self) -> bool:
        """Whether it trains no more, as far as anybody knows."""
        return self.exit is not None or (bool(self.lives) and not self.is_running)

    @property
    def is_finished(self) -> bool:
        """Whether the run recorded its end, and it was not a signal."""
        return bool(self.lives) and self.lives[-1].reason in (
            "max_steps",
            "early_stop",
            "diverged",
        )

    @property
    def is_silent(self) -> bool:
        """Whether it crashed or was killed: it recorded no end, but its process has ended, or it
        was silent for long."""
        if not self.lives or self.lives[-1].reason is not None:
            return False
        if self.exit is not None:
            return True
        in_one_life = np.diff(self.intervals["life"]) == 0
        gaps_s = np.diff(self.intervals["time"])[in_one_life]
        patience_s = max(_SILENCE_S, _SILENT_GAPS * float(gaps_s.max(initial=0.0)))
        return self.read_at - self.lives[-1].heard_at > patience_s

    @property
    def is_running(self) -> bool:
        """Whether it has begun, did not end and wrote something lately."""
        began = bool(self.lives) and self.lives[-1].reason is None
        return began and not self.is_silent

    @property
    def train_s(self) -> float | None:
        """Seconds inside updates, even those that were lost, without pauses."""
        seconds_s = summed(self.intervals.of("interval_s"))
        return None if seconds_s is None else seconds_s + self.repeated_s

    @property
    def wall_s(self) -> float | None:
        """From each start to each end; the time between two lives is not counted."""
        return summed(life.ended - life.started for life in self.lives)

    @property
    def unrecorded_s(self) -> float:
        """Seconds at the ends of lives that no event accounts for: the steps under way there."""
        open_ended = (life for life in self.lives if life.reason is None)
        return sum(life.ended - life.accounted for life in open_ended)


def once(compute: Callable[[Facts], T]) -> Callable[[Facts], T]:
    """A function of facts that several checks ask: it is computed once for the same facts."""

    @wraps(compute)
    def computed(facts: Facts) -> T:
        if compute not in facts.computed:
            facts.computed[compute] = compute(facts)
        result: T = facts.computed[compute]
        return result

    return computed
