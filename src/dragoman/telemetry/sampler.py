"""Looks at this host once a second and writes what it saw as events."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Protocol, Self, TypeVar

from dragoman.base.errors import MachineError
from dragoman.telemetry.events import Alert, EventWriter, Payload
from dragoman.telemetry.gpu import GpuProbe
from dragoman.telemetry.machine import MachineProbe
from dragoman.telemetry.network import NetworkProbe

LOOK_EVERY_S: Final = 1.0
_FIRST_MINUTE_S: Final = 60.0
_TELL_EVERY_S: Final = 10.0
_TELLINGS: Final = 2000
"""A telling spans at least one part in so many of the run's age: long records grow slowly."""

T = TypeVar("T")


class Probe(Protocol):
    """What a sampler looks at. Both methods are called from the sampler's thread only."""

    names: ClassVar[str]
    """What it looks at, in the plural: "processor, memory and disk"."""

    def look(self) -> None:
        """Take one reading."""

    def tell(self, seconds_s: float) -> Iterator[Payload]:
        """What was seen since the last call, `seconds_s` ago."""


def tell_every_s(age_s: float) -> float:
    """Seconds that one telling spans, in a run that has gone on for `age_s`."""
    if age_s < _FIRST_MINUTE_S:
        return LOOK_EVERY_S
    return max(_TELL_EVERY_S, age_s / _TELLINGS)


class HostSampler:
    """Samples this host from a thread for as long as its `with` lasts.

    Every second is an event in the first minute, afterwards ten seconds are one, and from the
    sixth hour on a 2,000th of the run's age, so that the record of a long run stays small. A probe
    that fails (a driver that is gone) is given up, with an alert that names it, and the others go
    on; a disk that is full ends the sampling. Neither ends the training, which meets a full disk
    itself.
    """

    def __init__(self, probes: Sequence[Probe], events: EventWriter) -> None:
        self._probes = list(probes)
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
        with suppress(MachineError):  # of the writer: there is nowhere left to tell it
            self._sample()

    def _sample(self) -> None:
        began = told = time.monotonic()
        self._of_each(lambda probe: probe.look())
        while self._probes and not self._stop.wait(LOOK_EVERY_S):
            self._of_each(lambda probe: probe.look())
            now = time.monotonic()
            if now - told >= tell_every_s(now - began) - LOOK_EVERY_S / 2:
                self._tell(round(now - told, 3))
                told = now

    def _tell(self, seconds_s: float) -> None:
        for seen in self._of_each(lambda probe: list(probe.tell(seconds_s))):
            for payload in seen:
                self._events.write(payload)

    def _of_each(self, ask: Callable[[Probe], T]) -> list[T]:
        """What every probe answers; one that fails is never asked again."""
        answers = []
        for probe in tuple(self._probes):
            try:
                answers.append(ask(probe))
            except Exception as error:  # a GPU that fell off its bus, a file system that is away
                self._probes.remove(probe)
                why = Alert(
                    severity="warning",
                    cause=f"{probe.names} of {socket.gethostname()} are not sampled any more: "
                    f"{error or type(error).__name__}",
                    remedy="training goes on; look at the host",
                )
                self._events.write(why)
        return answers


def host_sampler(
    events: EventWriter,
    *,
    disk: Path,
    queued: Callable[[], int],
    interface: str | None,
    num_gpus: int,
    pids: Sequence[int] = (),
) -> HostSampler:
    """The sampler of all that this host can tell; used by one of its ranks.

    disk: a path on the disk that holds the run. queued: batches that the loader holds ready.
    interface: of the collectives, None where there are none. num_gpus: those that train here.
    pids: of all ranks of the run on this host; none: this process is the only one.
    """
    probes: list[Probe] = []
    if sys.platform == "linux":
        try:
            probes.append(MachineProbe(disk=disk, queued=queued, pids=pids))
        except (OSError, ValueError, LookupError) as error:  # a /proc that hides or lacks entries
            why = Alert(
                severity="info",
                cause=f"{MachineProbe.names} of {socket.gethostname()} are not sampled: {error}",
                remedy="training goes on without",
            )
            events.write(why)
        if interface is not None:
            probes.append(NetworkProbe(interface))
    if num_gpus:
        try:
            probes.append(GpuProbe.open(num_gpus))
        except MachineError as error:
            why = Alert(
                severity="info",
                cause=f"{GpuProbe.names} of {socket.gethostname()} are not sampled: "
                f"{error.problem}",
                remedy=error.remedy,
            )
            events.write(why)
    return HostSampler(probes, events)
