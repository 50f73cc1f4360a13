"""A run that goes on elsewhere measures what it finds there."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dragoman.recipe.run_directory import RunDirectory
from dragoman.run.worker import train
from dragoman.telemetry.events import DeviceMeasured, RunStarted, read_events
from small_run import small_run


def _measured_and_started(run: RunDirectory) -> tuple[list[str], int]:
    events = list(read_events(Path(run.events) / "log.jsonl"))
    measured = [one.host for one in events if one.kind == DeviceMeasured.kind]
    return measured, sum(one.kind == RunStarted.kind for one in events)


def test_the_device_is_measured_again_on_another_host_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, here = small_run(), socket.gethostname()
    before, starts = _measured_and_started(run)
    train(run)
    assert _measured_and_started(run) == (before, starts + 1)
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    train(run)
    assert _measured_and_started(run) == ([*before, "elsewhere"], starts + 2)
    assert set(before) == {here}
