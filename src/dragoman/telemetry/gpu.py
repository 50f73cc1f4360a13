"""GPUs as NVIDIA's driver sees them, through its management library (NVML)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Final, Self

from dragoman.base.errors import MachineError
from dragoman.telemetry.events import Payload
from dragoman.telemetry.gpm import MultiprocessorActivity
from dragoman.telemetry.samples import POWER_CAP, GpuSampled

_MILLI: Final = 1e-3
_PERCENT: Final = 1e-2
_MEGAHERTZ: Final = 1e6
_REASONS: Final = (
    (POWER_CAP, 0x4),
    ("slowdown", 0x8),
    ("thermal", 0x20 | 0x40),
    ("power_brake", 0x80),
)
"""Bits of nvmlClocksEventReason; an idle GPU and a clock that a user set are no reasons."""


class GpuProbe:
    """Means of each GPU that trains on this host. What a GPU does not tell is None."""

    names: ClassVar[str] = "GPUs"

    def __init__(self, nvml: Any, handles: Sequence[Any]) -> None:
        self._gpus = [
            _Gpu(
                nvml,
                number,
                handle,
                name=str(nvml.nvmlDeviceGetName(handle)),
                memory_limit_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
                activity=MultiprocessorActivity(nvml, handle),
            )
            for number, handle in enumerate(handles)
        ]

    @classmethod
    def open(cls, num_gpus: int) -> Self:
        """The first `num_gpus` devices of this process, as CUDA numbers them.

        Raises MachineError where the library or its binding is missing.
        """
        try:
            nvml = import_module("pynvml")
        except ImportError as error:
            raise MachineError(
                "the package nvidia-ml-py is missing", remedy="pip install 'dragoman[gpu]'"
            ) from error
        try:
            nvml.nvmlInit()
            handles = [nvml.nvmlDeviceGetHandleByUUID(name) for name in _uuids(num_gpus)]
            return cls(nvml, handles)
        except nvml.NVMLError as error:
            raise MachineError(
                f"NVML says {error}", remedy="look at the output of nvidia-smi"
            ) from error

    def look(self) -> None:
        """Read every GPU."""
        for gpu in self._gpus:
            gpu.look()

    def tell(self, seconds_s: float) -> Iterator[Payload]:
        """The means since the last call, an event a GPU."""
        return (gpu.take(seconds_s) for gpu in self._gpus)


@dataclass(slots=True)
class _Gpu:
    """One GPU and its readings since they were last told."""

    nvml: Any
    number: int
    handle: Any
    name: str
    memory_limit_bytes: int
    activity: MultiprocessorActivity
    readings: dict[str, list[float]] = field(default_factory=dict)
    reasons: int = 0

    def look(self) -> None:
        nvml, handle = self.nvml, self.handle
        self._add("utilisation", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu * _PERCENT)
        self._add("power", lambda: nvml.nvmlDeviceGetPowerUsage(handle) * _MILLI)
        self._add("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used)
        sm_clock = nvml.NVML_CLOCK_SM
        self._add("clock", lambda: nvml.nvmlDeviceGetClockInfo(handle, sm_clock) * _MEGAHERTZ)
        self.reasons |= int(
            self._asked(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)) or 0
        )

    def take(self, seconds_s: float) -> GpuSampled:
        nvml, handle = self.nvml, self.handle
        uncorrected = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        errors = self._asked(lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, *uncorrected))
        limit = self._asked(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) * _MILLI)
        event = GpuSampled(
            gpu=self.number,
            name=self.name,
            seconds_s=seconds_s,
            utilisation_share=self._mean("utilisation"),
            sm_activity_share=self.activity.take(),
            power_w=self._mean("power"),
            power_limit_w=limit,
            memory_bytes=round(self._mean("memory") or 0),
            memory_limit_bytes=self.memory_limit_bytes,
            clock_hz=self._mean("clock"),
            throttle_reasons=",".join(name for name, bits in _REASONS if self.reasons & bits),
            ecc_errors=None if errors is None else int(errors),
        )
        self.readings.clear()
        self.reasons = 0
        return event

    def _add(self, name: str, ask: Callable[[], float]) -> None:
        value = self._asked(ask)
        if value is not None:
            self.readings.setdefault(name, []).append(value)

    def _mean(self, name: str) -> float | None:
        values = self.readings.get(name)
        return round(sum(values) / len(values), 4) if values else None

    def _asked(self, ask: Callable[[], float]) -> float | None:
        """The answer; None where this GPU does not support the question."""
        try:
            return ask()
        except self.nvml.NVMLError:
            return None


def _uuids(num_gpus: int) -> list[str]:
    """NVML numbers GPUs in another order than CUDA does, and sees those that CUDA may not use."""
    import torch

    return [f"GPU-{torch.cuda.get_device_properties(n).uuid}" for n in range(num_gpus)]
