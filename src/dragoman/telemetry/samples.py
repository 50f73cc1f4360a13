"""What samplers and measurements of the machines say, as events.

A sample is the mean over the last `seconds_s`, amounts are sums over them; shares are of 1.
None: this machine does not tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from dragoman.telemetry.events import Payload

POWER_CAP: Final = "power_cap"
"""A reason for a lowered clock: at its power limit a GPU does all it may, which is no fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSampled(Payload):
    """One GPU as its driver sees it.

    utilisation_share is the time in which any kernel ran, also one that only waits.
    sm_activity_share: of its multiprocessors, those that were busy; Hopper and later tell.
    throttle_reasons: comma-separated, all that were seen, "" where the clock was free.
    ecc_errors: uncorrected ones since the driver was loaded.
    """

    kind: ClassVar[str] = "gpu_sampled"
    gpu: int
    name: str
    seconds_s: float
    utilisation_share: float | None
    sm_activity_share: float | None
    power_w: float | None
    power_limit_w: float | None
    memory_bytes: int
    memory_limit_bytes: int
    clock_hz: float | None
    throttle_reasons: str
    ecc_errors: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSampled(Payload):
    """The interface that the collectives use.

    most_sent_bytes_per_s: over the busiest second. nominal_bits_per_s: what the port claims.
    """

    kind: ClassVar[str] = "network_sampled"
    interface: str
    seconds_s: float
    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int
    most_sent_bytes_per_s: float | None
    errors: int
    nominal_bits_per_s: float | None
    carrier_changes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSampled(Payload):
    """Processor, memory and disk of a host, and what its loader holds ready.

    cpu_share is of all processors; others_cpu_share: what of that the ranks of the run did not use:
    other programs, and other guests of the same machine. Memory is that of the whole host,
    process_memory_bytes that of the rank that samples. The disk is the one that holds the run.
    sampling_s: processor time that all sampling took.
    """

    kind: ClassVar[str] = "host_sampled"
    seconds_s: float
    cpu_share: float
    others_cpu_share: float | None
    memory_used_bytes: int
    memory_limit_bytes: int
    process_memory_bytes: int
    disk_free_bytes: int
    disk_read_bytes: int | None
    disk_written_bytes: int | None
    queued_batches: float | None
    sampling_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMeasured(Payload):
    """What a link really carries in one direction, measured before or during the run."""

    kind: ClassVar[str] = "link_measured"
    interface: str
    peer: str
    bytes_per_s: float
    latency_s: float | None
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChanged(Payload):
    """The network between hosts carries another rate than before, measured when steps became slow
    or fast.

    interface: of the collectives. where: the slow directions, in words. since_step, since: the
    first step that took another time, and when it began, UTC seconds since 1970.
    """

    kind: ClassVar[str] = "link_changed"
    interface: str
    where: str
    before_bytes_per_s: float
    now_bytes_per_s: float
    since_step: int
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMeasured(Payload):
    """What one device does alone: its matrix products, and a step of this run without a network."""

    kind: ClassVar[str] = "device_measured"
    device: str
    matrix_flop_per_s: float
    alone_tokens_per_s: float | None
    method: str
