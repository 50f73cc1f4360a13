"""Samples this host once a second and writes events about it.

A probe reads one thing: processor, memory and disk; the interface of the collectives; the GPUs.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, Self, TypeVar

from dragoman.base.errors import MachineError
from dragoman.telemetry.events import (
    POWER_CAP,
    Alert,
    GpuSampled,
    HostSampled,
    NetworkSampled,
    Payload,
    Recorder,
)
from dragoman.telemetry.host import (
    ProcessorEnergy,
    container_processors,
    interface_counters,
    interface_number,
    memory_bytes,
    memory_used_bytes,
    nominal_bits_per_s,
)

LOOK_EVERY_S: Final = 1.0
_FIRST_MINUTE_S: Final = 60.0
_SAMPLE_EVERY_S: Final = 10.0
_MOST_SAMPLES: Final = 2000
"""A sample spans at least the run's age divided by this, so that long records grow slowly."""
_STATISTICS: Final = Path("/proc/stat")
_IDLE, _IO_WAIT = 3, 4
_USER_TICKS, _SYSTEM_TICKS = 11, 12
"""Indices of fields after the program's name in /proc/PID/stat."""
_BUSY_FIELDS: Final = 8
"""The fields from user to steal; user time already includes guest time."""
_MILLI: Final = 1e-3
_PERCENT: Final = 1e-2
_MEGAHERTZ: Final = 1e6
_REASONS: Final = (
    (POWER_CAP, 0x4),
    ("slowdown", 0x8),
    ("thermal", 0x20 | 0x40),
    ("power_brake", 0x80),
)
"""Bits of nvmlClocksEventReason; an idle GPU, or a clock that a user set, is not a reason."""

T = TypeVar("T")


class Probe(Protocol):
    """A part of the host. Both methods are called from the sampler's thread only."""

    names: ClassVar[str]
    """Its name for people, in the plural: "processor, memory and disk"."""

    def look(self) -> None:
        """Take one reading."""

    def sample(self, seconds_s: float) -> Iterator[Payload]:
        """Events that sum up the readings since the last call, `seconds_s` ago."""


class MachineProbe:
    """Measures processor, memory and disk of the host that runs this process.

    disk: any path on the disk that holds the run.
    queued: returns the number of batches that the loader holds ready.
    pids: the process ids of all ranks of the run on this host; empty: only this process.
    """

    names: ClassVar[str] = "processor, memory and disk"

    def __init__(
        self,
        *,
        disk: Path,
        queued: Callable[[], int] | None = None,
        pids: Sequence[int] = (),
    ) -> None:
        self._disk = disk
        self._queued = queued
        self._pids = pids or [os.getpid()]
        self._memory_limit = memory_bytes()
        self._cpus = _usable_cpus(self._pids)
        self._cpu = _cpu_ticks(self._cpus)
        self._ranks = _process_ticks(self._pids)
        self._memory: list[int] = []
        self._queue: list[int] = []
        self._energy = ProcessorEnergy()

    def look(self) -> None:
        """Read memory, the loader's queue and the counters of energy."""
        self._memory.append(memory_used_bytes())
        if self._queued is not None:
            self._queue.append(self._queued())
        self._energy.look()

    def cpu_shares(self) -> tuple[float, float | None]:
        """The shares of the processors that were busy, and busy with other programs, since the last
        call; None: not measured."""
        cpu, ranks = _cpu_ticks(self._cpus), _process_ticks(self._pids)
        busy, ticks = cpu[0] - self._cpu[0], cpu[1] - self._cpu[1]
        others = None
        if ranks is not None and self._ranks is not None and ticks > 0:
            others = round(max(busy - (ranks - self._ranks), 0) / ticks, 4)
        self._cpu, self._ranks = cpu, ranks
        return round(min(busy / ticks, 1.0), 4) if ticks > 0 else 0.0, others

    def sample(self, seconds_s: float) -> Iterator[Payload]:
        """Means and sums since the last call, and the present free disk space."""
        cpu_share, others_cpu_share = self.cpu_shares()
        used_j = self._energy.take()
        yield HostSampled(
            seconds_s=seconds_s,
            cpu_share=cpu_share,
            others_cpu_share=others_cpu_share,
            memory_used_bytes=round(sum(self._memory) / max(len(self._memory), 1)),
            memory_limit_bytes=self._memory_limit,
            disk_free_bytes=shutil.disk_usage(self._disk).free,
            queued_batches=round(sum(self._queue) / len(self._queue), 2) if self._queue else None,
            processor_power_w=None if used_j is None else round(used_j / seconds_s, 2),
        )
        self._memory.clear()
        self._queue.clear()


# psutil reads the same files, but would be one more package on every host.
def _cpu_ticks(cpus: Set[int]) -> tuple[float, float]:
    """Busy and total ticks of these processors together, or of a container that may use fewer."""
    quota = container_processors()
    if quota is not None and quota.limit < len(cpus):
        per_s = os.sysconf("SC_CLK_TCK")
        return quota.used_s * per_s, quota.limit * time.monotonic() * per_s
    busy = whole = 0
    for line in _STATISTICS.read_text(encoding="ascii").splitlines():
        name, *fields = line.split() or [""]
        if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in cpus:
            ticks = [int(text) for text in fields[:_BUSY_FIELDS]]
            whole += sum(ticks)
            busy += sum(ticks) - ticks[_IDLE] - ticks[_IO_WAIT]
    return busy, whole


def _usable_cpus(pids: Sequence[int]) -> set[int]:
    """The processors on which any thread of these processes may run; some threads may be bound."""
    cpus: set[int] = set()
    for pid in pids:
        with suppress(OSError):  # it has ended
            for thread in Path(f"/proc/{pid}/task").iterdir():
                cpus |= os.sched_getaffinity(int(thread.name))
    return cpus


def _process_ticks(pids: Sequence[int]) -> int | None:
    """Ticks of processor time that these processes have used; None if one has ended."""
    ticks = 0
    try:
        for pid in pids:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            # The second field, the program's name, is in brackets and may contain anything.
            fields = text.rpartition(")")[2].split()
            ticks += int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
    except OSError:
        return None
    return ticks


class NetworkProbe:
    """Byte and packet counts of one interface between two samples, and its busiest second."""

    names: ClassVar[str] = "counters of the interface"

    def __init__(self, interface: str) -> None:
        self._interface = interface
        self._before = interface_counters(interface)
        self._last: tuple[float, int] | None = None
        self._most: float | None = None

    def look(self) -> None:
        """Read the number of bytes sent."""
        try:
            now, sent = time.monotonic(), interface_number(self._interface, "statistics/tx_bytes")
        except OSError:
            self._last = None
            return
        if self._last is not None:
            seconds_s, count = now - self._last[0], sent - self._last[1]
            if seconds_s > 0 and count >= 0:
                self._most = max(self._most or 0.0, count / seconds_s)
        self._last = (now, sent)

    def sample(self, seconds_s: float) -> Iterator[Payload]:
        """The counts; nothing if the interface was gone or came up again meanwhile."""
        before, now = self._before, interface_counters(self._interface)
        most, self._most, self._before = self._most, None, now
        if before is None or now is None or now["sent_bytes"] < before["sent_bytes"]:
            return
        yield NetworkSampled(
            interface=self._interface,
            seconds_s=seconds_s,
            most_sent_bytes_per_s=None if most is None else round(most, 1),
            nominal_bits_per_s=nominal_bits_per_s(self._interface),
            **{counter: count - before[counter] for counter, count in now.items()},
        )


class GpuProbe:
    """Means of each GPU that trains on this host; None for a value that the GPU does not report."""

    names: ClassVar[str] = "GPUs"

    def __init__(self, num_gpus: int) -> None:
        """The first `num_gpus` devices of this process, as CUDA numbers them.

        Raises MachineError if the library or its binding is missing, or if NVML fails.
        """
        try:
            nvml = import_module("pynvml")
        except ImportError as error:
            raise MachineError(
                "the package nvidia-ml-py is missing", remedy="pip install 'dragoman[gpu]'"
            ) from error
        try:
            nvml.nvmlInit()
            self._gpus = [
                _GpuReadings(
                    nvml,
                    number,
                    handle := nvml.nvmlDeviceGetHandleByUUID(uuid),
                    name=str(nvml.nvmlDeviceGetName(handle)),
                    activity=MultiprocessorActivity(nvml, handle),
                )
                for number, uuid in enumerate(_uuids(num_gpus))
            ]
        except nvml.NVMLError as error:
            raise MachineError(
                f"NVML says {error}", remedy="look at the output of nvidia-smi"
            ) from error

    def look(self) -> None:
        """Read every GPU."""
        for gpu in self._gpus:
            gpu.look()

    def sample(self, seconds_s: float) -> Iterator[Payload]:
        """The means since the last call, one event for each GPU."""
        return (gpu.take(seconds_s) for gpu in self._gpus)


_READINGS: Final[Mapping[str, Callable[[Any, Any], float]]] = {
    "utilisation_share": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu * _PERCENT,
    "power_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) * _MILLI,
    "power_limit_w": lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) * _MILLI,
    "memory_bytes": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    "memory_limit_bytes": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).total,
    "clock_hz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) * _MEGAHERTZ,
}
"""What each look asks, by the field that has its mean: (NVIDIA's binding, a GPU) -> a value."""


@dataclass(slots=True)
class _GpuReadings:
    """One GPU and its readings since its last sample."""

    nvml: Any
    number: int
    handle: Any
    name: str
    activity: MultiprocessorActivity
    readings: dict[str, list[float]] = field(default_factory=dict)
    reasons: int = 0

    def look(self) -> None:
        for name, ask in _READINGS.items():
            if (value := self._asked(ask)) is not None:
                self.readings.setdefault(name, []).append(value)
        reasons = self._asked(lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))
        if reasons is not None:
            self.reasons |= int(reasons)
            lowered = any(name != POWER_CAP and int(reasons) & bits for name, bits in _REASONS)
            self.readings.setdefault("throttled_share", []).append(float(lowered))

    def take(self, seconds_s: float) -> GpuSampled:
        counted = (self.nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self.nvml.NVML_VOLATILE_ECC)
        errors = self._asked(lambda nvml, gpu: nvml.nvmlDeviceGetTotalEccErrors(gpu, *counted))
        means: dict[str, Any] = dict.fromkeys((*_READINGS, "throttled_share"))
        for name, values in self.readings.items():
            mean = sum(values) / len(values)
            means[name] = round(mean) if name.endswith("_bytes") else round(mean, 4)
        event = GpuSampled(
            gpu=self.number,
            name=self.name,
            seconds_s=seconds_s,
            sm_activity_share=self.activity.take(),
            throttle_reasons=",".join(name for name, bits in _REASONS if self.reasons & bits),
            ecc_errors=None if errors is None else int(errors),
            **means,
        )
        self.readings.clear()
        self.reasons = 0
        return event

    def _asked(self, ask: Callable[[Any, Any], float]) -> float | None:
        """The answer; None if this GPU does not support the question."""
        try:
            return ask(self.nvml, self.handle)
        except self.nvml.NVMLError:
            return None


def _uuids(num_gpus: int) -> list[str]:
    """Ids by which NVML finds this process's GPUs: it numbers GPUs differently from CUDA."""
    import torch

    return [f"GPU-{torch.cuda.get_device_properties(n).uuid}" for n in range(num_gpus)]


class MultiprocessorActivity:
    """The mean busy share of a GPU's multiprocessors between two calls; None if it counts none.

    nvml: NVIDIA's initialised binding, which raises errors for unsupported queries.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._before: Any = None
        self._now: Any = None
        try:
            if nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                self._before, self._now = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
                nvml.nvmlGpmSampleGet(handle, self._before)
        except nvml.NVMLError:
            self._before = None

    def take(self) -> float | None:
        """The mean since the last call, as a share of 1."""
        nvml = self._nvml
        if self._before is None:
            return None
        wanted = nvml.c_nvmlGpmMetricsGet_t()
        wanted.version, wanted.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
        wanted.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
        try:
            nvml.nvmlGpmSampleGet(self._handle, self._now)
            wanted.sample1, wanted.sample2 = self._before, self._now
            self._before, self._now = self._now, self._before
            nvml.nvmlGpmMetricsGet(wanted)
        except nvml.NVMLError:
            return None
        metric = wanted.metrics[0]
        is_measured = metric.nvmlReturn == nvml.NVML_SUCCESS
        return round(float(metric.value) * _PERCENT, 4) if is_measured else None


def sample_every_s(age_s: float) -> float:
    """How many seconds one sample covers in a run that has lasted for `age_s`."""
    if age_s < _FIRST_MINUTE_S:
        return LOOK_EVERY_S
    return max(_SAMPLE_EVERY_S, age_s / _MOST_SAMPLES)


class HostSampler:
    """Samples this host from a thread inside a `with` block.

    An event covers one second in the first minute, then ten seconds, and after 5.6 hours a 2,000th
    of the run's age, so that the record of a long run stays small. A probe that fails (a driver
    that is gone) is given up with an alert that names it, and the others go on; a full disk ends
    the sampling. Neither ends the training, which notices a full disk itself.
    """

    def __init__(self, probes: Sequence[Probe], events: Recorder) -> None:
        self._probes = list(probes)
        self._events = events
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sample-host", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        began = sampled = time.monotonic()
        with suppress(MachineError):  # raised by the writer, which has no place left to report it
            self._of_each(lambda probe: probe.look())
            while self._probes and not self._stop.wait(LOOK_EVERY_S):
                self._of_each(lambda probe: probe.look())
                now = time.monotonic()
                if now - sampled >= sample_every_s(now - began) - LOOK_EVERY_S / 2:
                    self._write(round(now - sampled, 3))
                    sampled = now

    def _write(self, seconds_s: float) -> None:
        for payloads in self._of_each(lambda probe: list(probe.sample(seconds_s))):
            for payload in payloads:
                self._events.write(payload)

    def _of_each(self, ask: Callable[[Probe], T]) -> list[T]:
        """The answer of every probe; a probe that fails is not used again."""
        answers = []
        for probe in tuple(self._probes):
            try:
                answers.append(ask(probe))
            except Exception as error:  # a GPU that fell off its bus, a file system that is away
                self._probes.remove(probe)
                why = Alert(
                    severity="warning",
                    cause=f"{probe.names} of {self._events.host} are not sampled any more: "
                    f"{error or type(error).__name__}",
                    remedy="training goes on; look at the host",
                )
                self._events.write(why)
        return answers


def host_sampler(
    events: Recorder,
    *,
    disk: Path,
    queued: Callable[[], int],
    interface: str | None,
    num_gpus: int,
    pids: Sequence[int] = (),
) -> HostSampler:
    """The sampler with every probe that works here; one rank of each host uses it.

    disk: a path on the disk that holds the run.
    queued: returns the number of batches that the loader holds ready.
    interface: the network interface of the collectives; None if there are none.
    num_gpus: how many GPUs train here.
    pids: the process ids of all ranks of the run on this host; empty: this process is the only one.
    """
    probes: list[Probe] = []

    def without(probe: type[Probe], why: object, remedy: str = "training goes on without") -> None:
        cause = f"{probe.names} of {events.host} are not sampled: {why}"
        events.write(Alert(severity="info", cause=cause, remedy=remedy))

    if sys.platform == "linux":
        try:
            probes.append(MachineProbe(disk=disk, queued=queued, pids=pids))
        except (OSError, ValueError, LookupError) as error:  # a /proc that hides or lacks entries
            without(MachineProbe, error)
        if interface is not None:
            probes.append(NetworkProbe(interface))
    if num_gpus:
        try:
            probes.append(GpuProbe(num_gpus))
        except MachineError as error:
            without(GpuProbe, error.problem, error.remedy)
    return HostSampler(probes, events)
