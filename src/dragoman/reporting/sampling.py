"""Samples of GPUs, interfaces and hosts, summed while they are read."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from dragoman.reporting.facts import Gpu, MachineUse, Period, Traffic
from dragoman.telemetry.events import (
    POWER_CAP,
    Event,
    GpuSampled,
    HostSampled,
    NetworkSampled,
)

_COUNTERS: Final = (
    *("sent_bytes", "received_bytes", "sent_packets", "received_packets"),
    *("errors", "carrier_changes"),
)
_READ: Final = {
    GpuSampled.kind: (
        *("utilisation_share", "sm_activity_share", "power_w", "power_limit_w", "memory_bytes"),
        *("ecc_errors", "throttled_share"),
    ),
    NetworkSampled.kind: (*_COUNTERS, "most_sent_bytes_per_s", "nominal_bits_per_s"),
    HostSampled.kind: (
        *("cpu_share", "others_cpu_share", "memory_used_bytes", "memory_limit_bytes"),
        *("disk_free_bytes", "queued_batches"),
    ),
}
"""The numbers that are read from each kind of sample."""
_KEPT: Final = {
    NetworkSampled.kind: "carrier_changes",
    HostSampled.kind: "others_cpu_share",
}
"""The number that is kept sample by sample, to tell what went on in a part of the run."""
LOW_POWER: Final = 0.5
"""Below this share of its power limit a GPU waits rather than computes.

A V100 of the reference run drew 16% to 18% while it only waited, an H200 18% in a recorded run.
"""
FULL_HOST: Final = 0.9
"""If less than this share of a host's processors is busy, some are idle."""
MOST_OTHERS: Final = 0.1
"""If others use more than this share of a host's processors, the run gets too few of them."""


_SIGNS: Final[Mapping[str, Mapping[str, Callable[[Mapping[str, float], Sequence[str]], bool]]]] = {
    GpuSampled.kind: {
        "throttled": lambda _, reasons: any(one != POWER_CAP for one in reasons),
        "weak": lambda seen, _: (
            seen.get("power_w", math.inf) < LOW_POWER * seen.get("power_limit_w", 0.0)
        ),
    },
    NetworkSampled.kind: {
        "faulty": lambda seen, _: seen.get("errors", 0.0) + seen.get("carrier_changes", 0.0) > 0
    },
    HostSampled.kind: {
        "crowded": lambda seen, _: seen.get("others_cpu_share", 0.0) > MOST_OTHERS,
        "idle": lambda seen, _: seen.get("cpu_share", 1.0) < FULL_HOST,
    },
}
"""Conditions that a sample may show; the facts say from when to when samples showed them."""


class Sample(NamedTuple):
    """One sample of a GPU, an interface or a host.

    which: the GPU or the interface; empty for a host.
    ended: by the monotonic clock of its host. reasons: why a GPU lowered its clock.
    signs: those of `_SIGNS` that it shows.
    """

    kind: str
    host: str
    which: int | str
    ended: float
    seconds_s: float
    values: Mapping[str, float]
    reasons: Sequence[str]
    signs: Sequence[str]
    name: str

    @classmethod
    def of(cls, event: Event, ended: float) -> Self:
        """The sample of an event."""
        kind, seen = event.kind, event.payload
        which: int | str = seen.get("gpu", seen.get("interface", ""))
        values = {name: seen[name] for name in _READ[kind] if seen[name] is not None}
        reasons = [one for one in seen.get("throttle_reasons", "").split(",") if one]
        signs = [sign for sign, shows in _SIGNS[kind].items() if shows(values, reasons)]
        seconds_s, name = seen["seconds_s"], seen.get("name", "")
        return cls(kind, event.host, which, ended, seconds_s, values, reasons, signs, name)


@dataclass(slots=True)
class _Aggregate:
    """One number over all samples."""

    seconds_s: float = 0.0
    weighted: float = 0.0
    sum: float = 0.0
    most: float | None = None
    last: float | None = None

    def add(self, value: float, seconds_s: float) -> None:
        self.seconds_s += seconds_s
        self.weighted += value * seconds_s
        self.sum += value
        if self.most is None or value > self.most:
            self.most = value
        self.last = value

    @property
    def mean(self) -> float | None:
        """The mean, weighted by the time of each sample."""
        return self.weighted / self.seconds_s if self.seconds_s else None


@dataclass(slots=True)
class _Seen:
    """The samples that showed one of `_SIGNS`.

    first, since: the number of the first, and when it began.
    last, until: the number of the last, and when it ended.
    """

    first: int
    since: float
    last: int
    until: float
    count: int = 1


@dataclass(slots=True)
class _Sums:
    """All samples of one GPU, interface or host."""

    samples: int = 0
    ended: float = 0.0
    seen: dict[str, _Seen] = field(default_factory=dict)
    seconds_s: float = 0.0
    name: str = ""
    throttled_s: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    of: defaultdict[str, _Aggregate] = field(default_factory=lambda: defaultdict(_Aggregate))
    kept: list[tuple[float, float, float]] = field(default_factory=list)
    """Begin, end and value of what is needed sample by sample: see `_KEPT`."""

    def add(self, sample: Sample) -> None:
        """Add one sample."""
        self.samples += 1
        self.seconds_s += sample.seconds_s
        for name, value in sample.values.items():
            self.of[name].add(value, sample.seconds_s)
        needed = sample.values.get(_KEPT.get(sample.kind, ""))
        if needed is not None:
            self.kept.append((sample.ended - sample.seconds_s, sample.ended, needed))
        self.reasons.update(sample.reasons)
        self.throttled_s += sample.seconds_s * sample.values.get("throttled_share", 0.0)
        self.name = sample.name or self.name
        self.ended = sample.ended
        for sign in sample.signs:
            if (known := self.seen.get(sign)) is None:
                since = sample.ended - sample.seconds_s
                self.seen[sign] = _Seen(self.samples, since, self.samples, sample.ended)
            else:
                known.last, known.until = self.samples, sample.ended
                known.count += 1

    def periods(self) -> dict[str, Period]:
        """For each sign from the first sample that shows it to the last."""
        return {
            sign: Period(
                since=one.since,
                until=one.until,
                from_start=one.first == 1,
                to_end=one.last == self.samples,
                share=one.count / (one.last + 1 - one.first),
            )
            for sign, one in self.seen.items()
        }


@dataclass(slots=True)
class Samples:
    """Sums over the samples seen so far."""

    _sums: defaultdict[tuple[str, str, Any], _Sums] = field(
        default_factory=lambda: defaultdict(_Sums)
    )
    """By the kind of the sample, its host, and the GPU or the interface."""

    def add(self, sample: Sample) -> None:
        """Add one sample."""
        self._sums[sample.kind, sample.host, sample.which].add(sample)

    def gpus(self) -> Iterator[Gpu]:
        """Each GPU's means; of memory and errors, the most."""
        for host, gpu, sums in self._of(GpuSampled.kind):
            errors = sums.of["ecc_errors"].most
            yield Gpu(
                host=host,
                gpu=gpu,
                name=sums.name,
                samples=sums.samples,
                seconds_s=sums.seconds_s,
                utilisation_share=sums.of["utilisation_share"].mean,
                sm_activity_share=sums.of["sm_activity_share"].mean,
                power_w=sums.of["power_w"].mean,
                power_limit_w=sums.of["power_limit_w"].mean,
                memory_bytes=sums.of["memory_bytes"].most,
                throttled_share=sums.throttled_s / sums.seconds_s,
                throttle_reasons=tuple(reason for reason, _ in sums.reasons.most_common()),
                ecc_errors=None if errors is None else int(errors),
                **sums.periods(),
            )

    def traffic(self) -> Iterator[Traffic]:
        """Each interface's totals."""
        for host, interface, sums in self._of(NetworkSampled.kind):
            yield Traffic(
                host=host,
                interface=interface,
                seconds_s=sums.seconds_s,
                most_sent_bytes_per_s=sums.of["most_sent_bytes_per_s"].most,
                nominal_bits_per_s=sums.of["nominal_bits_per_s"].last,
                faulty=sums.periods().get("faulty"),
                link_turns=tuple((began, ended) for began, ended, turns in sums.kept if turns),
                **{name: int(sums.of[name].sum) for name in _COUNTERS},
            )

    def machines(self) -> Iterator[MachineUse]:
        """Each host's means."""
        for host, _, sums in self._of(HostSampled.kind):
            memory, limit = sums.of["memory_used_bytes"].mean, sums.of["memory_limit_bytes"].last
            yield MachineUse(
                host=host,
                seconds_s=sums.seconds_s,
                cpu_share=sums.of["cpu_share"].mean,
                others_cpu_share=sums.of["others_cpu_share"].mean,
                memory_share=memory / limit if memory is not None and limit else None,
                disk_free_bytes=sums.of["disk_free_bytes"].last,
                others=tuple(sums.kept),
                last_seen=sums.ended,
                queued_batches=sums.of["queued_batches"].mean,
                **sums.periods(),
            )

    def _of(self, kind: str) -> Iterator[tuple[str, Any, _Sums]]:
        """(machine, GPU or interface, sums) of one kind of samples."""
        for (known, host, which), sums in self._sums.items():
            if known == kind:
                yield host, which, sums
