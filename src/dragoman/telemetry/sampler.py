"""Looks at this host once a second and writes what it saw as events."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from dragoman.errors import MachineError
from dragoman.telemetry.events import Alert, EventWriter, Payload
from dragoman.telemetry.gpu import GpuProbe
from dragoman.telemetry.machine import MachineProbe
from dragoman.telemetry.network import NetworkProbe

LOOK_EVERY_S: Final = 1.0
_FIRST_MINUTE_S: Final = 60.0
_TELL_EVERY_S: Final = 10.0


class Probe(Protocol):
    """What a sampler looks at. Both methods are called from the sampler's thread only."""

    def look(self) -> None:
        """Take one reading."""

    def tell(self, seconds_s: float) -> Iterator[Payload]:
        """What was seen since the last call, `seconds_s` ago."""


class HostSampler:
    """Samples this host from a thread for as long as its `with` lasts.

    Every second is an event in the first minute, afterwards ten seconds are one, so that the
    record of a long run stays small. A disk that is full ends the sampling, not the training,
    which meets the same disk itself.
    """

    def __init__(self, probes: Sequence[Probe], events: EventWriter) -> None:
        self._probes = probes
        self._events = events
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sample-host", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        began = told = time.monotonic()
        for probe in self._probes:
            probe.look()
        while not self._stop.wait(LOOK_EVERY_S):
            for probe in self._probes:
                probe.look()
            now = time.monotonic()
            young = now - began < _FIRST_MINUTE_S
            if young or now - told >= _TELL_EVERY_S - LOOK_EVERY_S / 2:
                if not self._tell(now - told):
                    return
                told = now

    def _tell(self, seconds_s: float) -> bool:
        """Write what the probes saw; whether the disk took it."""
        try:
            for probe in self._probes:
                for payload in probe.tell(round(seconds_s, 3)):
                    self._events.write(payload)
        except MachineError:
            return False
        return True


def host_sampler(
    events: EventWriter,
    *,
    disk: Path,
    queued: Callable[[], int],
    interface: str | None,
    num_gpus: int,
) -> HostSampler:
    """The sampler of all that this host can tell; used by one of its ranks.

    disk: a path on the disk that holds the run. queued: batches that the loader holds ready.
    interface: of the collectives, None where there are none. num_gpus: those that train here.
    """
    probes: list[Probe] = []
    if sys.platform == "linux":
        probes.append(MachineProbe(disk=disk, queued=queued))
        if interface is not None:
            probes.append(NetworkProbe(interface))
    if num_gpus:
        try:
            probes.append(GpuProbe.open(num_gpus))
        except MachineError as error:
            why = Alert(
                severity="info", cause=f"GPUs are not sampled: {error.problem}", remedy=error.remedy
            )
            events.write(why)
    return HostSampler(probes, events)
