"""Samples of GPUs, interfaces and hosts, summed while they are read."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dragoman.reporting.facts import Gpu, Machine, Spell, Traffic
from dragoman.telemetry.events import (
    POWER_CAP,
    Event,
    GpuSampled,
    HostSampled,
    NetworkSampled,
    number,
)

_COUNTERS: Final = (
    *("sent_bytes", "received_bytes", "sent_packets", "received_packets"),
    *("errors", "carrier_changes"),
)
_READ: Final = {
    GpuSampled.kind: (
        *("utilisation_share", "sm_activity_share", "power_w", "power_limit_w", "memory_bytes"),
        "ecc_errors",
    ),
    NetworkSampled.kind: (*_COUNTERS, "most_sent_bytes_per_s", "nominal_bits_per_s"),
    HostSampled.kind: (
        *("cpu_share", "others_cpu_share", "memory_used_bytes", "memory_limit_bytes"),
        *("disk_free_bytes", "queued_batches"),
    ),
}
"""The numbers that are read of each kind of sample."""
LOW_POWER: Final = 0.5
"""Below this share of its power limit a GPU waits rather than computes.

A V100 of the reference run drew 16% to 18% while it only waited, an H200 18% in a recorded run.
"""
FULL_HOST: Final = 0.9
"""If less than this share of a host's processors is busy, some are idle."""
MOST_OTHERS: Final = 0.1
"""If others use more than this share of a host's processors, the run gets too few of them."""


def _of_sample(seen: Mapping[str, Any], name: str, otherwise: float = 0.0) -> float:
    value = number(seen.get(name))
    return otherwise if value is None else value


def _is_throttled(seen: Mapping[str, Any]) -> bool:
    return bool(set(_reasons(seen)) - {POWER_CAP})


def _reasons(seen: Mapping[str, Any]) -> list[str]:
    return [one for one in str(seen.get("throttle_reasons") or "").split(",") if one]


_SIGNS: Final[Mapping[str, Mapping[str, Callable[[Mapping[str, Any]], bool]]]] = {
    GpuSampled.kind: {
        "throttled": _is_throttled,
        "weak": lambda seen: (
            _of_sample(seen, "power_w", math.inf) < LOW_POWER * _of_sample(seen, "power_limit_w")
        ),
    },
    NetworkSampled.kind: {
        "faulty": lambda seen: _of_sample(seen, "errors") + _of_sample(seen, "carrier_changes") > 0
    },
    HostSampled.kind: {
        "crowded": lambda seen: _of_sample(seen, "others_cpu_share") > MOST_OTHERS,
        "idle": lambda seen: _of_sample(seen, "cpu_share", 1.0) < FULL_HOST,
    },
}
"""What a sample may show; the facts say from when to when samples showed it."""


@dataclass(slots=True)
class _Series:
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

    first, since: the number of the first, and when it began; last, until: of the last, its end.
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
    of: defaultdict[str, _Series] = field(default_factory=lambda: defaultdict(_Series))

    def add(self, kind: str, seen: Mapping[str, Any], moment: float) -> None:
        """Add one sample that ended at a moment."""
        seconds_s = number(seen.get("seconds_s")) or 0.0
        if seconds_s <= 0:
            return
        self.samples += 1
        self.seconds_s += seconds_s
        for name in _READ[kind]:
            if (value := number(seen.get(name))) is not None:
                self.of[name].add(value, seconds_s)
        self.reasons.update(_reasons(seen))
        self.throttled_s += seconds_s if _is_throttled(seen) else 0.0
        self.name = str(seen.get("name") or self.name)
        self.ended = moment
        for sign, shows in _SIGNS[kind].items():
            if not shows(seen):
                continue
            if (known := self.seen.get(sign)) is None:
                since = moment - seconds_s
                self.seen[sign] = _Seen(self.samples, since, self.samples, moment)
            else:
                known.last, known.until = self.samples, moment
                known.count += 1

    def spells(self, ahead_s: float) -> dict[str, Spell]:
        """For each sign from the first sample that shows it to the last, on rank 0's clock.

        ahead_s: how far the clock of the samples is ahead of it.
        """
        return {
            sign: Spell(
                since=one.since - ahead_s,
                until=one.until - ahead_s,
                from_start=one.first == 1,
                to_end=one.last == self.samples,
                share=one.count / (one.last + 1 - one.first),
            )
            for sign, one in self.seen.items()
        }


@dataclass(slots=True)
class Samples:
    """Sums over the samples seen so far.

    names: of the machines, by the names of their hosts in the record; others are left out.
    ahead_s: how far the clock of the record is ahead of rank 0's.
    """

    _sums: defaultdict[tuple[str, str, Any], _Sums] = field(
        default_factory=lambda: defaultdict(_Sums)
    )
    """By the kind of the sample, its host, and the GPU or the interface."""

    def see(self, event: Event, moment: float) -> None:
        """Add one sample; moment: when it ended, by the monotonic clock of its host."""
        seen = event.payload
        which: int | str = ""
        if event.kind == GpuSampled.kind:
            which = int(number(seen.get("gpu")) or 0)
        elif event.kind == NetworkSampled.kind:
            which = str(seen.get("interface"))
        self._sums[event.kind, event.host, which].add(event.kind, seen, moment)

    @property
    def has_host(self) -> bool:
        """Whether this rank sampled its host, which one rank of each host does."""
        return any(kind == HostSampled.kind for kind, _, _ in self._sums)

    def gpus(self, names: Mapping[str, str], ahead_s: float) -> Iterator[Gpu]:
        """Each GPU's means."""
        for host, gpu, sums in self._of(GpuSampled.kind, names):
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
                **sums.spells(ahead_s),
            )

    def traffic(self, names: Mapping[str, str], ahead_s: float) -> Iterator[Traffic]:
        """Each interface's sums."""
        for host, interface, sums in self._of(NetworkSampled.kind, names):
            yield Traffic(
                host=host,
                interface=interface,
                seconds_s=sums.seconds_s,
                most_sent_bytes_per_s=sums.of["most_sent_bytes_per_s"].most,
                nominal_bits_per_s=sums.of["nominal_bits_per_s"].last,
                faulty=sums.spells(ahead_s).get("faulty"),
                **{name: int(sums.of[name].sum) for name in _COUNTERS},
            )

    def machines(self, names: Mapping[str, str], ahead_s: float) -> Iterator[Machine]:
        """Each host's means."""
        for host, _, sums in self._of(HostSampled.kind, names):
            memory, limit = sums.of["memory_used_bytes"].mean, sums.of["memory_limit_bytes"].last
            yield Machine(
                host=host,
                seconds_s=sums.seconds_s,
                cpu_share=sums.of["cpu_share"].mean,
                others_cpu_share=sums.of["others_cpu_share"].mean,
                memory_share=memory / limit if memory is not None and limit else None,
                disk_free_bytes=sums.of["disk_free_bytes"].last,
                last_seen=sums.ended - ahead_s,
                queued_batches=sums.of["queued_batches"].mean,
                **sums.spells(ahead_s),
            )

    def _of(self, kind: str, names: Mapping[str, str]) -> Iterator[tuple[str, Any, _Sums]]:
        """(machine, GPU or interface, sums) of one kind of samples."""
        for (known, host, which), sums in self._sums.items():
            if known == kind and sums.samples and host in names:
                yield names[host], which, sums
