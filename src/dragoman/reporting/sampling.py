"""Samples of GPUs, interfaces and hosts, summed while they are read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dragoman.reporting.facts import Gpu, Machine, Spell, Traffic
from dragoman.telemetry.events import (
    POWER_CAP,
    Event,
    GpuSampled,
    HostSampled,
    NetworkSampled,
    number,
)


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

    def extend(self, later: _Series) -> None:
        """Add all samples of a later series."""
        if later.last is None or later.most is None:
            return
        self.seconds_s += later.seconds_s
        self.weighted += later.weighted
        self.sum += later.sum
        self.most = later.most if self.most is None else max(self.most, later.most)
        self.last = later.last

    @property
    def mean(self) -> float | None:
        """Weighted by the time of each sample."""
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

    def add(self, seen: Mapping[str, Any], moment: float) -> None:
        """Add one sample that ended at a moment."""
        seconds_s = number(seen.get("seconds_s")) or 0.0
        if seconds_s <= 0:
            return
        self.samples += 1
        self.seconds_s += seconds_s
        for name, raw in seen.items():
            if (value := number(raw)) is not None:
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

    def extend(self, later: _Sums) -> None:
        """Add all samples of later sums."""
        for name, series in later.of.items():
            self.of[name].extend(series)
        self.reasons.update(later.reasons)
        self.throttled_s += later.throttled_s
        self.name = later.name or self.name
        if later.bad:
            (first, since), (last, until) = later.first_bad, later.last_bad
            if not self.bad:
                self.first_bad = (self.samples + first, since)
            self.last_bad = (self.samples + last, until)
        self.bad += later.bad
        self.samples += later.samples
        self.seconds_s += later.seconds_s
        self.ended = later.ended or self.ended

    @property
    def spell(self) -> Spell | None:
        """From the first bad sample to the last; None if none is bad."""
        if not self.bad:
            return None
        (first, since), (last, until) = self.first_bad, self.last_bad
        return Spell(
            since=since,
            until=until,
            from_start=first == 1,
            to_end=last == self.samples,
            share=self.bad / (last + 1 - first),
        )


@dataclass(slots=True)
class Samples:
    """Sums over the samples seen so far."""

    _gpus: defaultdict[tuple[str, int], _Sums] = field(default_factory=lambda: defaultdict(_Sums))
    _traffic: defaultdict[tuple[str, str], _Sums] = field(
        default_factory=lambda: defaultdict(_Sums)
    )
    _machines: defaultdict[str, _Sums] = field(default_factory=lambda: defaultdict(_Sums))

    @classmethod
    def summed(cls, parts: Iterable[Samples]) -> Samples:
        """All samples of parts that follow one another in time."""
        found = cls()
        for part in parts:
            for gpu, sums in part._gpus.items():
                found._gpus[gpu].extend(sums)
            for interface, sums in part._traffic.items():
                found._traffic[interface].extend(sums)
            for machine, sums in part._machines.items():
                found._machines[machine].extend(sums)
        return found

    def see(self, event: Event, moment: float) -> None:
        """Add one sample; moment: when it ended, by the monotonic clock of its host."""
        seen = event.payload
        if event.kind == GpuSampled.kind:
            self._gpus[event.host, int(number(seen.get("gpu")) or 0)].add(seen, moment)
        elif event.kind == NetworkSampled.kind:
            self._traffic[event.host, str(seen.get("interface"))].add(seen, moment)
        elif event.kind == HostSampled.kind:
            self._machines[event.host].add(seen, moment)

    @property
    def has_host(self) -> bool:
        """Whether this rank sampled its host, which one rank of each host does."""
        return bool(self._machines)

    def gpus(self) -> list[Gpu]:
        """Each GPU's means."""
        return [_gpu(host, gpu, sums) for (host, gpu), sums in self._gpus.items() if sums.samples]

    def traffic(self) -> list[Traffic]:
        """Each interface's sums."""
        return [
            _traffic(host, name, sums)
            for (host, name), sums in self._traffic.items()
            if sums.samples
        ]

    def machines(self) -> list[Machine]:
        """Each host's means."""
        return [_machine(host, sums) for host, sums in self._machines.items() if sums.samples]


def _gpu(host: str, gpu: int, sums: _Sums) -> Gpu:
    errors = sums.of["ecc_errors"].most
    return Gpu(
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
        throttled=sums.spell,
    )


def _traffic(host: str, interface: str, sums: _Sums) -> Traffic:
    def whole(name: str) -> int:
        return int(sums.of[name].sum)

    return Traffic(
        host=host,
        interface=interface,
        seconds_s=sums.seconds_s,
        sent_bytes=whole("sent_bytes"),
        received_bytes=whole("received_bytes"),
        sent_packets=whole("sent_packets"),
        received_packets=whole("received_packets"),
        most_sent_bytes_per_s=sums.of["most_sent_bytes_per_s"].most,
        errors=whole("errors"),
        nominal_bits_per_s=sums.of["nominal_bits_per_s"].last,
        carrier_changes=whole("carrier_changes"),
        faulty=sums.spell,
    )


def _machine(host: str, sums: _Sums) -> Machine:
    memory, limit = sums.of["memory_used_bytes"].mean, sums.of["memory_limit_bytes"].last
    return Machine(
        host=host,
        seconds_s=sums.seconds_s,
        cpu_share=sums.of["cpu_share"].mean,
        others_cpu_share=sums.of["others_cpu_share"].mean,
        memory_share=memory / limit if memory is not None and limit else None,
        disk_free_bytes=sums.of["disk_free_bytes"].last,
        last_seen=sums.ended,
        disk_read_bytes=sums.of["disk_read_bytes"].sum,
        disk_written_bytes=sums.of["disk_written_bytes"].sum,
        queued_batches=sums.of["queued_batches"].mean,
        sampling_share=sums.of["sampling_s"].sum / sums.seconds_s,
    )
