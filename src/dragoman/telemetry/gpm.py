"""What share of its multiprocessors a GPU keeps busy (NVML's performance monitoring, GPM).

Hopper and later count it. It is lower than the utilisation counter, which asks only whether any
kernel runs, and a kernel that waits for the network is one.
"""

from __future__ import annotations

from typing import Any

_PERCENT = 1e-2


class MultiprocessorActivity:
    """Means of one GPU between two calls; None where the GPU does not count it.

    nvml: NVIDIA's binding, initialised. Its errors are those of a question that is not supported.
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
        """The mean since the last call, of 1."""
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
        found = wanted.metrics[0]
        known = found.nvmlReturn == nvml.NVML_SUCCESS
        return round(float(found.value) * _PERCENT, 4) if known else None
