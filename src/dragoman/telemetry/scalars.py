"""The numbers of an event that tools beside ours show, under names that say their units."""

from __future__ import annotations

import re

from dragoman.telemetry.events import Event, TrainInterval, Validated
from dragoman.telemetry.samples import GpuSampled, HostSampled, NetworkSampled
from dragoman.telemetry.scored import TestScored

_TAKEN = {
    TrainInterval.kind: ("train_loss", "learning_rate", "gradient_norm", "padding_share"),
    Validated.kind: ("dev_loss", "train_slice_loss", "bleu", "chrf"),
    TestScored.kind: ("bleu", "chrf"),
    HostSampled.kind: ("cpu_share", "memory_used_bytes", "queued_batches"),
    GpuSampled.kind: ("utilisation_share", "power_w", "memory_bytes"),
}
_PHASES = ("data_wait", "forward", "backward", "sync", "optimizer")


def scalars(event: Event) -> dict[str, float]:
    """Name -> value of what one event measured; nothing for kinds that measure nothing."""
    seen = event.payload
    found = {name: seen.get(name) for name in _TAKEN.get(event.kind, ())}
    if event.kind == TestScored.kind:
        test = re.sub(r"\W", "_", str(seen["name"]))
        found = {f"{test}_{name}": value for name, value in found.items()}
    elif event.kind == GpuSampled.kind:
        found = {f"gpu_{seen['gpu']}_{name}": value for name, value in found.items()}
    elif event.kind == NetworkSampled.kind and seen["seconds_s"]:
        found = {
            f"{way}_bytes_per_s": seen[f"{way}_bytes"] / seen["seconds_s"]
            for way in ("sent", "received")
        }
    elif event.kind == TrainInterval.kind and seen["interval_s"]:
        found |= _speeds(event)
    return {name: float(value) for name, value in found.items() if value is not None}


def _speeds(event: Event) -> dict[str, float]:
    seen = event.payload
    tokens = seen["source_tokens"] + seen["target_tokens"]
    shares = {f"{name}_share": seen[f"{name}_s"] / seen["interval_s"] for name in _PHASES}
    return shares | {
        "tokens_per_s": tokens / seen["interval_s"],
        "step_s": seen["interval_s"] / seen["steps"],
    }
