"""The waits of a rank, in all and by update."""

from __future__ import annotations

import time
from typing import ClassVar

import pytest
import torch

from dragoman.distributed import gradient_sync
from dragoman.distributed.gradient_sync import Stopwatch


def test_laps_are_read_from_any_that_has_ended() -> None:
    watch = Stopwatch(torch.device("cpu"))
    watch.add(1.0)
    watch.add(2.0)
    watch.end_lap()
    watch.end_lap()
    watch.add(4.0)
    assert (watch.laps, list(watch.laps_s(0))) == (2, [3.0, 0.0])
    assert list(watch.laps_s(2)) == []
    watch.end_lap()
    assert list(watch.laps_s(2)) == [4.0]
    assert list(watch.laps_s(1)) == [0.0, 4.0]
    assert watch.total_s() == 7.0


def test_an_interval_lasts_from_its_start_to_its_stop() -> None:
    watch = Stopwatch(torch.device("cpu"))
    watch.start()
    time.sleep(0.02)
    watch.stop()
    watch.end_lap()
    (lap_s,) = watch.laps_s(0)
    assert 0.02 <= lap_s == watch.total_s()


class DeviceEvent:
    """An event of a device that needs a second for each; it notes who waits for it."""

    made: ClassVar[list[DeviceEvent]] = []
    waited: ClassVar[int] = 0

    def record(self) -> None:
        self.made.append(self)

    def synchronize(self) -> None:
        DeviceEvent.waited += 1

    def elapsed_time(self, later: DeviceEvent) -> float:
        return 1000.0 * (self.made.index(later) - self.made.index(self))


def test_a_device_is_waited_for_only_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_sync, "_event", DeviceEvent)
    watch = Stopwatch(torch.device("cuda"))
    for intervals in (2, 0, 1):
        for _ in range(intervals):
            watch.start()
            watch.stop()
        watch.end_lap()
    watch.start()
    watch.stop()
    assert DeviceEvent.waited == 0
    assert list(watch.laps_s(0)) == [2.0, 0.0, 1.0]
    assert watch.total_s() == 4.0
    assert DeviceEvent.waited == 4, "once an interval"
