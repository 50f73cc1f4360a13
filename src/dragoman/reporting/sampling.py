"""Samples of GPUs, interfaces and hosts, summed while they are read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
class _Sums:
    """All samples of one GPU, interface or host.

    Bad samples are those with a lowered clock, with errors, or with a link that was lost or found.
    """

    samples: int = 0
    ended: float = 0.0
    bad: int = 0
    first_bad: tuple[int, float] = (0, 0.0)
    """The number of the first bad sample, and when it began."""
    last_bad: tuple[int, float] = (0, 0.0)
    """The number of the last bad sample, and when it ended."""
    seconds_s: float = 0.0
    name: str = ""
    throttled_s: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    of: defaultdict[str, _Series] = field(default_factory=lambda: defaultdict(_Series))

    def add(self, seen: Mapping[str, Any], moment: float, names: Sequence[str]) -> None:
        """Add these numbers of one sample, which ended at a moment."""
        seconds_s = number(seen.get("seconds_s")) or 0.0
        if seconds_s <= 0:
            return
        self.samples += 1
        self.seconds_s += seconds_s
        for name in names:
            if (value := number(seen.get(name))) is not None:
                self.of[name].add(value, seconds_s)
        reasons = [one for one in str(seen.get("throttle_reasons") or "").split(",") if one]
        self.reasons.update(reasons)
        is_throttled = bool(set(reasons) - {POWER_CAP})
        self.throttled_s += seconds_s if is_throttled else 0.0
        self.name = str(seen.get("name") or self.name)
        self.ended = moment
        if is_throttled or number(seen.get("errors")) or number(seen.get("carrier_changes")):
            if not self.bad:
                self.first_bad = (self.samples, moment - seconds_s)
            self.last_bad = (self.samples, moment)
            self.bad += 1

    def spell(self, ahead_s: float) -> Spell | None:
        """From the first bad sample to the last, on rank 0's clock; None if none is bad.

        ahead_s: how far the clock of the samples is ahead of it.
        """
        if not self.bad:
            return None
        (first, since), (last, until) = self.first_bad, self.last_bad
        return Spell(
            since=since - ahead_s,
            until=until - ahead_s,
            from_start=first == 1,
            to_end=last == self.samples,
            share=self.bad / (last + 1 - first),
        )


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
        self._sums[event.kind, event.host, which].add(seen, moment, _READ[event.kind])

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
                throttled=sums.spell(ahead_s),
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
                faulty=sums.spell(ahead_s),
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
            )

    def _of(self, kind: str, names: Mapping[str, str]) -> Iterator[tuple[str, Any, _Sums]]:
        """(machine, GPU or interface, sums) of one kind of samples."""
        for (known, host, which), sums in self._sums.items():
            if known == kind and sums.samples and host in names:
                yield names[host], which, sums
