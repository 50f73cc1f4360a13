"""What one host is and has used, read from Linux itself."""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from pathlib import Path


def peak_memory_bytes() -> int:
    """The most memory this process has held at any time (VmHWM, the resident set's peak).

    Linux counts in batches per thread, so that it is exact to about a MiB.
    """
    status = _read("/proc/self/status")
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    if found is not None:
        return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory_bytes() -> int:
    """Memory this process may use: the machine's, or less where a container is limited."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
    found = [int(text) for text in map(_read, limits) if text.strip().isdigit()]
    return min([physical, *found])


def cpu_model() -> str:
    """The processor's own name, or its architecture where it tells none."""
    found = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def cpu_cores() -> int:
    """Logical processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpu_driver_version() -> str | None:
    """The version of NVIDIA's kernel driver, or None."""
    found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", _read("/proc/driver/nvidia/version"))
    return found[1] if found else None


def os_name() -> str:
    """Distribution and kernel, such as "Debian GNU/Linux 12 (bookworm), Linux 6.1.0"."""
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)', _read("/etc/os-release"), re.MULTILINE)
    kernel = f"{platform.system()} {platform.release()}"
    return f"{found[1]}, {kernel}" if found else kernel


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
