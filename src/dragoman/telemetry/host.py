"""Facts of this host, read from Linux: hardware, memory used, network interface; and its price."""

from __future__ import annotations

import errno
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from dragoman.base import units
from dragoman.base.errors import ConfigError

PRICE_VARIABLE: Final = "DRAGOMAN_PRICE_PER_HOUR"
"""The environment variable of workers with the price of all hosts per hour: `6.12 USD`."""
_MOST_PRICE: Final = 1e12
"""The highest price of all machines together for an hour; a larger one is a typing mistake."""
DISTURBING_SHARE: Final = 0.1
"""Other programs disturb a run or a timing if they use more than this share of the processors."""
NETWORK_INTERFACES: Final = Path("/sys/class/net")
POWER_ZONES: Final = Path("/sys/class/powercap")
"""Energy counters of the kernel, of Intel's and AMD's processors (RAPL)."""
_INTERFACE_VARIABLES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_COUNTERS: Final = {
    "sent_bytes": ("statistics/tx_bytes",),
    "received_bytes": ("statistics/rx_bytes",),
    "sent_packets": ("statistics/tx_packets",),
    "received_packets": ("statistics/rx_packets",),
    "errors": ("statistics/tx_errors", "statistics/rx_errors"),
    "carrier_changes": ("carrier_changes",),
}
"""The kernel's numbers that add up to each counter of an interface."""

_KIB: Final = 1024
_MICRO: Final = 1e-6
_CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
_MEMORY_FILES: Final = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of the limit and of the use, and the name of the inactive page cache in memory.stat."""


def peak_memory_bytes() -> int:
    """The most memory this process has held at any time (VmHWM, the resident set's peak).

    Linux counts in batches for each thread, so it is exact to about a MiB.
    """
    status = _read("/proc/self/status")
    peak_kib = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    if peak_kib is not None:
        return int(peak_kib[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory_bytes() -> int:
    """Memory this process may use: the machine's, or less if a container has a limit."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [limit for limit, _ in _container_memory()]
    return min([physical, *limits])


def memory_used_bytes() -> int:
    """The part of `memory_bytes` that a new program cannot use now.

    It is the container's if the container has a limit, otherwise the machine's.
    """
    limits = dict(_container_memory())
    if (limit := memory_bytes()) in limits:
        return limits[limit]
    fields = {}
    with Path("/proc/meminfo").open(encoding="ascii") as lines:
        for line in lines:
            name, _, rest = line.partition(":")
            fields[name] = rest
            if name == "MemAvailable":
                break
    total, available = (int(fields[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    return (total - available) * _KIB


def _container_memory() -> Iterator[tuple[int, int]]:
    """Limit and use of the container, by both versions of control groups, if it has a limit.

    The inactive page cache does not count as used, as in `docker stats`.
    """
    for limit, used, cached in _MEMORY_FILES:
        numbers = [_read(str(_CONTROL_GROUPS / name)).strip() for name in (limit, used)]
        if all(text.isdecimal() for text in numbers):
            statistics = _read(str((_CONTROL_GROUPS / limit).with_name("memory.stat")))
            copies = re.search(rf"^{cached} (\d+)$", statistics, re.MULTILINE)
            yield int(numbers[0]), max(int(numbers[1]) - int(copies[1] if copies else 0), 0)


class ProcessorQuota(NamedTuple):
    """How many processors a container may use at once, and the processor time it has used."""

    limit: float
    used_s: float


def container_processors() -> ProcessorQuota | None:
    """The processor limit of this container (control groups version 2); None if it has none."""
    quota, _, period = _read(str(_CONTROL_GROUPS / "cpu.max")).partition(" ")
    used = re.search(r"^usage_usec (\d+)$", _read(str(_CONTROL_GROUPS / "cpu.stat")), re.MULTILINE)
    if used is None or not quota.isdecimal() or not period.strip().isdecimal():
        return None
    return ProcessorQuota(int(quota) / int(period), int(used[1]) * 1e-6)


class ProcessorEnergy:
    """The energy that the packages of all processors use, by their own counters.

    Linux lets only root read the counters, unless an administrator has changed that; virtual
    machines have none.
    """

    def __init__(self) -> None:
        self._before = self._counts()
        self._used_j = 0.0

    def look(self) -> None:
        """Read the counters; often, as they begin again at 0: some after twenty minutes."""
        now = self._counts()
        if now.keys() != self._before.keys():
            now = {}  # a counter was lost: what was used since is not known
        for zone, (count, span) in now.items():
            self._used_j += (count - self._before[zone][0]) % span * _MICRO
        self._before = now

    def take(self) -> float | None:
        """Joules up to the last look, since the last call; None if the machine does not tell."""
        used_j, self._used_j = self._used_j, 0.0
        return used_j if self._before else None

    @staticmethod
    def _counts() -> dict[str, tuple[int, int]]:
        """The count of each package and the number at which it begins again, in microjoules."""
        counts = {}
        for zone in sorted(POWER_ZONES.glob("*:*")):
            if _read(str(zone / "name")).startswith("package-"):
                files = ("energy_uj", "max_energy_range_uj")
                numbers = [_read(str(zone / file)).strip() for file in files]
                if not all(text.isdecimal() for text in numbers):
                    return {}
                counts[zone.name] = int(numbers[0]), int(numbers[1]) + 1
        return counts


def cpu_model() -> str:
    """The processor's own name, or its architecture if it has none."""
    name = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return name[1].strip() if name else platform.processor() or platform.machine()


def boot_id() -> str:
    """An id of the last start of this machine; "" if the system has none."""
    return _read("/proc/sys/kernel/random/boot_id").strip()


def process_started() -> float:
    """When this process began, before Python; UTC seconds since 1970. Now, if that is unknown."""
    ticks = _read("/proc/self/stat").rpartition(")")[2].split()[19:20]  # the 22nd field
    uptime = _read("/proc/uptime").split()[:1]
    now = time.time()
    if not ticks or not uptime:
        return now
    age_s = float(uptime[0]) - int(ticks[0]) / os.sysconf("SC_CLK_TCK")
    return now - max(age_s, 0.0)


def cpu_cores() -> int:
    """The number of logical processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpu_driver_version() -> str | None:
    """The version of NVIDIA's kernel driver, or None."""
    version = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", _read("/proc/driver/nvidia/version"))
    return version[1] if version else None


def os_name() -> str:
    """Distribution and kernel, such as "Debian GNU/Linux 12 (bookworm), Linux 6.1.0"."""
    name = re.search(r'^PRETTY_NAME="?([^"\n]+)', _read("/etc/os-release"), re.MULTILINE)
    kernel = f"{platform.system()} {platform.release()}"
    return f"{name[1]}, {kernel}" if name else kernel


@dataclass(frozen=True, slots=True)
class HourlyPrice:
    """The price of a machine, or of several together, for an hour."""

    amount: float
    currency: str

    @classmethod
    def parse(cls, text: str, *, place: str = "price") -> HourlyPrice:
        """The price in a text such as "3 USD".

        place: the option or variable with the text, for the error.
        Raises ConfigError if the text is not a price.
        """
        remedy = 'write for example "3 USD"'
        try:
            amount, currency = units.parse_money(text)
        except ConfigError as error:
            raise ConfigError(error.problem, place=place, remedy=remedy) from error
        if not 0 <= amount <= _MOST_PRICE:
            raise ConfigError(f"{text!r} is not the price of an hour", place=place, remedy=remedy)
        return cls(amount, currency)

    def text(self, seconds_s: float) -> str:
        """The price of this many seconds, in words."""
        return units.money(self.amount * seconds_s / units.HOUR_S, currency=self.currency)


def hourly_price() -> HourlyPrice | None:
    """The price of all hosts of this run per hour; None if not known. Raises ConfigError."""
    text = os.environ.get(PRICE_VARIABLE)
    return HourlyPrice.parse(text, place=PRICE_VARIABLE) if text else None


def collective_interface() -> str | None:
    """The interface that Gloo or NCCL is set to use; None if neither is set to one that exists."""
    for variable in _INTERFACE_VARIABLES:
        name = os.environ.get(variable, "").split(",")[0].removeprefix("=")
        if name and (NETWORK_INTERFACES / name).is_dir():
            return name
    return None


def interface_number(interface: str, name: str) -> int:
    """A number that the kernel keeps for an interface, such as "statistics/tx_bytes" or "speed".

    Raises: OSError if there is no such interface, or it has no such number.
    """
    return int((NETWORK_INTERFACES / interface / name).read_text())


def interface_counters(interface: str) -> dict[str, int] | None:
    """The kernel's counters of an interface since it came up, by the field of `NetworkSampled`;
    None if it no longer exists."""
    try:
        return {
            counter: sum(interface_number(interface, name) for name in names)
            for counter, names in _COUNTERS.items()
        }
    except OSError:
        return None


def nominal_bits_per_s(interface: str) -> float | None:
    """The nominal rate of the port; None if it has none, as virtual ports do."""
    try:
        megabits = interface_number(interface, "speed")
    except OSError:
        return None
    return megabits * 1e6 if megabits > 0 else None


def has_carrier(interface: str) -> bool:
    """Whether the port is on, and its cable leads to another that is. True if that is not known."""
    try:
        return interface_number(interface, "carrier") != 0
    except OSError as error:
        return error.errno != errno.EINVAL  # the kernel's answer for a port that is switched off


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
