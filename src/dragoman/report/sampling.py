"""Samples of GPUs and interfaces, added up while they are read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from dragoman.report.facts import Gpu, Traffic
from dragoman.telemetry.events import Event
from dragoman.telemetry.samples import GpuSampled


@dataclass(slots=True)
class _Mean:
    weight: float = 0.0
    sum: float = 0.0

    def add(self, value: object, weight: float) -> None:
        if isinstance(value, int | float):
            self.weight += weight
            self.sum += value * weight

    @property
    def value(self) -> float | None:
        return self.sum / self.weight if self.weight else None


@dataclass(slots=True)
class _GpuSums:
    name: str = ""
    samples: int = 0
    utilisation: _Mean = field(default_factory=_Mean)
    sm_activity: _Mean = field(default_factory=_Mean)
    power_w: _Mean = field(default_factory=_Mean)
    power_limit_w: _Mean = field(default_factory=_Mean)
    throttled: _Mean = field(default_factory=_Mean)
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Samples:
    """Sums over the samples seen so far."""

    _gpus: dict[tuple[str, int], _GpuSums] = field(default_factory=dict)
    _traffic: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Add one sample of a GPU or an interface."""
        if event.kind == GpuSampled.kind:
            self._see_gpu(event)
        else:
            self._see_traffic(event)

    def gpus(self) -> list[Gpu]:
        """Each GPU's means."""
        return [
            Gpu(
                host=host,
                gpu=gpu,
                name=sums.name,
                samples=sums.samples,
                utilisation_share=sums.utilisation.value or 0.0,
                sm_activity_share=sums.sm_activity.value,
                power_w=sums.power_w.value,
                power_limit_w=sums.power_limit_w.value,
                throttled_share=sums.throttled.value or 0.0,
                throttle_reasons=tuple(reason for reason, _ in sums.reasons.most_common()),
            )
            for (host, gpu), sums in self._gpus.items()
        ]

    def traffic(self) -> list[Traffic]:
        """Each interface's sums."""
        return [
            Traffic(host=host, interface=interface, **sums)
            for (host, interface), sums in self._traffic.items()
        ]

    def _see_gpu(self, event: Event) -> None:
        seen = event.payload
        sums = self._gpus.setdefault((event.host, int(seen.get("gpu") or 0)), _GpuSums())
        weight = _amount(seen, "seconds_s") or 1.0
        reasons = [
            reason for reason in str(seen.get("throttle_reasons") or "").split(",") if reason
        ]
        sums.name = str(seen.get("name") or "")
        sums.samples += 1
        sums.utilisation.add(seen.get("utilisation_share"), weight)
        sums.sm_activity.add(seen.get("sm_activity_share"), weight)
        sums.power_w.add(seen.get("power_w"), weight)
        sums.power_limit_w.add(seen.get("power_limit_w"), weight)
        sums.throttled.add(float(bool(reasons)), weight)
        sums.reasons.update(reasons)

    def _see_traffic(self, event: Event) -> None:
        seen = event.payload
        sums = self._traffic.setdefault(
            (event.host, str(seen.get("interface"))),
            {
                "seconds_s": 0.0,
                "sent_bytes": 0,
                "received_bytes": 0,
                "errors": 0,
                "nominal_bits_per_s": None,
                "carrier_changes": None,
            },
        )
        for name in ("seconds_s", "sent_bytes", "received_bytes", "errors"):
            sums[name] += _amount(seen, name)
        for name in ("nominal_bits_per_s", "carrier_changes"):
            if seen.get(name) is not None:
                sums[name] = seen[name]


def _amount(seen: dict[str, Any], name: str) -> float:
    value = seen.get(name)
    return value if isinstance(value, int | float) else 0
