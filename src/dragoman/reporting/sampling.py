"""Samples of GPUs, interfaces and hosts: arrays while they are read, then means and totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Final

import numpy as np

from dragoman.reporting.facts import Gpu, MachineUse, Traffic
from dragoman.reporting.periods import Period, in_samples
from dragoman.reporting.record import Bools, Columns, Floats, summed, total_over
from dragoman.telemetry.events import (
    POWER_CAP,
    Event,
    GpuSampled,
    HostSampled,
    NetworkSampled,
)
from dragoman.telemetry.host import DISTURBING_SHARE

_COUNTERS: Final = (
    *("sent_bytes", "received_bytes", "sent_packets", "received_packets"),
    *("errors", "carrier_changes"),
)
_NUMBERS: Final = {
    sample.kind: [
        name for name, about in sample.model_fields.items() if about.annotation is not str
    ]
    for sample in (GpuSampled, NetworkSampled, HostSampled)
}
"""The fields of each kind of sample that are numbers."""
LOW_POWER: Final = 0.5
"""Below this share of its power limit a GPU waits rather than computes.

A V100 of the reference run drew 16% to 18% while it only waited, an H200 18% in a recorded run.
"""
FULL_HOST: Final = 0.9
"""If less than this share of a host's processors is busy, some are idle."""


@dataclass(frozen=True, slots=True)
class _Series:
    """The samples of one GPU, interface or host: their numbers, and why a GPU's clock was low."""

    values: Mapping[str, Floats]
    reasons: Sequence[str]

    @property
    def seconds_s(self) -> float:
        return float(self.values["seconds_s"].sum())

    def mean(self, name: str) -> float | None:
        """The mean, weighted by the time of each sample."""
        values, seconds_s = self.values[name], self.values["seconds_s"]
        return total_over(values * seconds_s, np.where(np.isfinite(values), seconds_s, np.nan))

    def energy_j(self, power: str) -> float | None:
        """Joules of a power over the samples that measured it."""
        return summed(self.values[power] * self.values["seconds_s"])

    def most(self, name: str) -> float | None:
        measured = self._known(name)
        return float(measured.max()) if measured.size else None

    def last(self, name: str) -> float | None:
        measured = self._known(name)
        return float(measured[-1]) if measured.size else None

    def sum(self, name: str) -> float:
        return float(self._known(name).sum())

    def _known(self, name: str) -> Floats:
        values = self.values[name]
        return values[np.isfinite(values)]

    def spans(self, name: str) -> Floats:
        """Begin, end and value of each sample that has a value, [sample, 3]."""
        ended, values = self.values["ended"], self.values[name]
        spans = np.stack([ended - self.values["seconds_s"], ended, values], axis=1)
        return spans[np.isfinite(values)]

    def periods(self, is_so: Bools) -> tuple[Period, ...]:
        """When something was so."""
        ended = self.values["ended"]
        return in_samples(ended - self.values["seconds_s"], ended, is_so)


@dataclass(slots=True)
class _Rows:
    """Collects the samples of one GPU, interface or host."""

    columns: Columns
    reasons: list[str] = field(default_factory=list)
    name: str = ""

    def add(self, event: Event, ended: float) -> None:
        values, reasons = event.payload, event.payload.get("throttle_reasons", "")
        slowed = reasons not in ("", POWER_CAP)
        self.columns.add({**values, "ended": ended, "slowed": slowed})
        self.reasons.append(reasons)
        self.name = values.get("name") or self.name


@dataclass(slots=True)
class Samples:
    """All samples of a run."""

    _rows: dict[tuple[str, str, Any], _Rows] = field(default_factory=dict)
    """By the kind of the sample, its host, and the GPU or the interface."""

    def add(self, event: Event, ended: float) -> None:
        """Add one sample. ended: seconds since 1970."""
        which = event.payload.get("gpu", event.payload.get("interface"))
        key = (event.kind, event.host, which)
        if key not in self._rows:
            self._rows[key] = _Rows(Columns((*_NUMBERS[event.kind], "ended", "slowed")))
        self._rows[key].add(event, ended)

    def gpus(self, began: float, until: float) -> Iterator[Gpu]:
        """Each GPU's means; of memory and errors, the most, of samples between two moments."""
        for host, gpu, name, samples in self._of(GpuSampled.kind, began, until):
            power, limit = samples.values["power_w"], samples.values["power_limit_w"]
            counts: Counter[str] = Counter()
            for text, count in Counter(samples.reasons).items():
                counts.update({reason: count for reason in text.split(",") if reason})
            errors = samples.most("ecc_errors")
            yield Gpu(
                host=host,
                gpu=gpu,
                name=name,
                samples=len(samples.reasons),
                seconds_s=samples.seconds_s,
                utilisation_share=samples.mean("utilisation_share"),
                sm_activity_share=samples.mean("sm_activity_share"),
                power_w=samples.mean("power_w"),
                power_limit_w=samples.mean("power_limit_w"),
                energy_j=samples.energy_j("power_w"),
                memory_bytes=samples.most("memory_bytes"),
                throttled_share=samples.mean("throttled_share"),
                throttle_reasons=tuple(reason for reason, _ in counts.most_common()),
                ecc_errors=None if errors is None else int(errors),
                throttled=samples.periods(samples.values["slowed"] > 0),
                weak=samples.periods(power < LOW_POWER * limit),
            )

    def traffic(self, began: float, until: float) -> Iterator[Traffic]:
        """Each interface's totals between two moments."""
        for host, interface, _, samples in self._of(NetworkSampled.kind, began, until):
            errors, turned = (
                np.nan_to_num(samples.values[name]) for name in ("errors", "carrier_changes")
            )
            turns = samples.spans("carrier_changes")
            yield Traffic(
                host=host,
                interface=interface,
                seconds_s=samples.seconds_s,
                most_sent_bytes_per_s=samples.most("most_sent_bytes_per_s"),
                nominal_bits_per_s=samples.last("nominal_bits_per_s"),
                faulty=samples.periods(errors + turned > 0),
                link_turns=tuple((began, ended) for began, ended, count in turns.tolist() if count),
                **{name: int(samples.sum(name)) for name in _COUNTERS},
            )

    def machines(self, began: float, until: float) -> Iterator[MachineUse]:
        """Each host's means between two moments."""
        for host, _, _, samples in self._of(HostSampled.kind, began, until):
            memory, limit = samples.mean("memory_used_bytes"), samples.last("memory_limit_bytes")
            yield MachineUse(
                host=host,
                seconds_s=samples.seconds_s,
                cpu_share=samples.mean("cpu_share"),
                others_cpu_share=samples.mean("others_cpu_share"),
                memory_share=memory / limit if memory is not None and limit else None,
                disk_free_bytes=samples.last("disk_free_bytes"),
                others=samples.spans("others_cpu_share"),
                last_seen=float(samples.values["ended"][-1]),
                queued_batches=samples.mean("queued_batches"),
                processor_energy_j=samples.energy_j("processor_power_w"),
                crowded=samples.periods(samples.values["others_cpu_share"] > DISTURBING_SHARE),
                idle=samples.periods(samples.values["cpu_share"] < FULL_HOST),
            )

    def _of(self, kind: str, began: float, until: float) -> Iterator[tuple[str, Any, str, _Series]]:
        """(host, GPU or interface, its name, samples) of one kind, if there is a sample."""
        for (of_kind, host, which), rows in self._rows.items():
            if of_kind != kind:
                continue
            values = rows.columns.arrays()
            kept = (began < values["ended"]) & (values["ended"] <= until)
            if kept.any():
                chosen = {name: value[kept] for name, value in values.items()}
                yield host, which, rows.name, _Series(chosen, [*compress(rows.reasons, kept)])
