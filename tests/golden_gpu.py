"""Samples of a V100, as its driver gives them."""

from __future__ import annotations

from dragoman.telemetry.events import GpuSampled


def gpu_sampled(
    power_w: float | None, *, utilisation: float = 1.0, throttle: str = ""
) -> GpuSampled:
    """One sample of ten seconds at this power of 250 W."""
    return GpuSampled(
        gpu=0,
        name="Tesla V100-PCIE-16GB",
        seconds_s=10.0,
        utilisation_share=utilisation,
        sm_activity_share=None,
        power_w=power_w,
        power_limit_w=250.0,
        memory_bytes=10**10,
        memory_limit_bytes=16 * 10**9,
        clock_hz=1.38e9,
        throttle_reasons=throttle,
        ecc_errors=0,
        throttled_share=float(bool(throttle)),
    )
