"""Events are read back as they were written, whatever happened to the file in between."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest

from dragoman.base.errors import CheckpointError, MachineError
from dragoman.telemetry import events
from dragoman.telemetry.events import (
    SCHEMA_VERSION,
    Alert,
    CorpusPrepared,
    Event,
    EventWriter,
    Outbox,
    Payload,
    RankPaused,
    read_events,
)

PREPARED = CorpusPrepared(digest="x", train_pairs=3, seconds_s=1.0)
ALERT = Alert(severity="warning", cause="the läst «checkpoint» is torn", remedy="none needed")


def test_an_event_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as writer:
        writer.write(ALERT, step=7)
    (event,) = read_events(writer.path)
    assert (event.v, event.kind, event.rank, event.step) == (SCHEMA_VERSION, "alert", 0, 7)
    assert event.payload == ALERT.model_dump()
    assert abs(event.time - time.time()) < 60


def test_the_steady_clock_goes_on_while_the_machine_is_asleep(tmp_path: Path) -> None:
    """In a namespace of time whose machine was asleep for some days."""
    asleep_s = 300_000
    script = (
        "import pathlib, sys; from dragoman.telemetry.events import EventWriter, Alert\n"
        "with EventWriter(pathlib.Path(sys.argv[1])) as writer:\n"
        "    writer.write(Alert(severity='info', cause='', remedy=''))"
    )
    command = ["unshare", "--user", "--map-root-user", "--time", "--boottime", str(asleep_s)]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], check=False).returncode:
        pytest.skip("this machine makes no namespace of time")
    subprocess.run([*command, sys.executable, "-c", script, tmp_path], check=True)
    with EventWriter(tmp_path) as writer:
        writer.write(ALERT)
    asleep, awake = read_events(writer.path)
    assert asleep.mono_s - awake.mono_s == pytest.approx(asleep_s, abs=asleep_s / 2)


def test_each_kind_is_named_once_and_its_fields_are_flat() -> None:
    kinds = [
        value
        for value in vars(events).values()
        if isinstance(value, type) and issubclass(value, Payload) and value is not Payload
    ]
    assert len({kind.kind for kind in kinds}) == len(kinds)
    envelope = {field.name for field in fields(Event)}
    for kind in kinds:
        assert not envelope & set(kind.model_fields)


def test_numbers_that_are_not_finite_are_written_as_null(tmp_path: Path) -> None:
    finished = events.RunFinished(
        reason="diverged",
        best_dev_loss=math.nan,
        best_dev_loss_step=None,
        best_bleu=math.inf,
        best_bleu_step=None,
        wall_s=1.5,
    )
    with EventWriter(tmp_path) as writer:
        writer.write(finished)
    values = json.loads(writer.path.read_text())
    assert values["best_dev_loss"] is None
    assert values["best_bleu"] is None
    assert values["wall_s"] == 1.5


def test_damaged_lines_are_passed_over_and_counted(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as writer:
        writer.write(ALERT, step=1)
    good = writer.path.read_bytes()
    bad = [b"12\n", b"[1]\n", b"null\n", b'{"v": 2}\n', b"\xff\xfe\n", b"\n", good[:40] + b"\n"]
    bad.append(good.replace(b'"step": 1', b'"step": "one"'))
    writer.path.write_bytes(b"".join([good, *bad, good, good[:-20]]))
    damaged: list[int] = []
    found = list(read_events(writer.path, on_damaged=damaged.append))
    assert [event.step for event in found] == [1, 1]
    assert damaged == [2, 3, 4, 5, 6, 8, 9, 11]


def test_an_endless_row_of_brackets_is_a_damaged_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"[" * 200_000 + b"\n" + b'{"a":' * 200_000 + b"\n")
    damaged: list[int] = []
    assert list(read_events(path, on_damaged=damaged.append)) == []
    assert damaged == [1, 2]


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as writer:
        writer.write(ALERT, step=1)
        writer.write(ALERT, step=2)
    writer.path.write_bytes(writer.path.read_bytes()[:-9])
    with EventWriter(tmp_path) as again:
        again.write(ALERT, step=3)
    assert [event.step for event in read_events(again.path)] == [1, 3]


def test_kill_9_leaves_every_line_but_the_last_whole(tmp_path: Path) -> None:
    code = """
import itertools, pathlib, sys
from dragoman.telemetry.events import CorpusPrepared, EventWriter
with EventWriter(pathlib.Path(sys.argv[1])) as writer:
    for n in itertools.count():
        writer.write(CorpusPrepared(digest="x" * 500, train_pairs=n, seconds_s=1.0), step=n)
"""
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    path = tmp_path / "log.jsonl"
    while not path.exists() or path.stat().st_size < 100_000:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    damaged: list[int] = []
    steps = [event.step for event in read_events(path, on_damaged=damaged.append)]
    assert steps == list(range(len(steps)))
    assert len(damaged) <= 1


def test_listeners_see_each_event_and_are_closed(tmp_path: Path) -> None:
    class Recorder(events.EventListener):
        seen: list[Event]
        closed = False

        def __call__(self, event: Event) -> None:
            self.seen.append(event)

        def close(self) -> None:
            self.closed = True

    recorder = Recorder()
    recorder.seen = []
    with EventWriter(tmp_path) as writer:
        writer.write(ALERT)
        writer.subscribe(recorder)
        writer.write(PREPARED)
    assert [event.kind for event in recorder.seen] == ["corpus_prepared"]
    assert recorder.seen == list(read_events(writer.path))[1:]
    assert recorder.closed


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error_with_place_and_remedy(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as writer:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, writer._file.fileno())
        os.close(full)
        with pytest.raises(MachineError, match=r"log.jsonl.*No space left.*free disk space"):
            writer.write(ALERT)


def test_another_version_is_one_error_that_names_the_line(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as writer:
        writer.write(ALERT)
    older = writer.path.read_bytes().replace(b'{"v": 2', b'{"v": 1')
    writer.path.write_bytes(writer.path.read_bytes() + older)
    with pytest.raises(CheckpointError, match=r"log.jsonl:2: has events of version 1.*reads 2"):
        list(read_events(writer.path))


def test_a_missing_value_that_its_kind_needs_makes_a_line_damaged(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as writer:
        writer.write(ALERT)
        writer.path.write_bytes(writer.path.read_bytes().replace(b'"cause"', b'"clause"'))
        writer.write(ALERT)
    damaged: list[int] = []
    assert len(list(read_events(writer.path, on_damaged=damaged.append))) == 1
    assert damaged == [1]


def test_events_of_another_rank_are_written_once_and_on_the_clock_of_rank_0(
    tmp_path: Path,
) -> None:
    outbox = Outbox(rank=1)
    outbox.host = "beta"
    outbox.write(PREPARED)
    outbox.write(ALERT, step=5)
    pause = RankPaused(paused_rank=1, seconds_s=9.0, during="sync", own=True)
    written = outbox.write(pause, step=5)
    with EventWriter(tmp_path) as writer:
        writer.clock_ahead_s = (0.0, 3600.0)
        writer.relay(1, outbox.urgent())  # with the heartbeat
        assert [one.kind for one in read_events(writer.path)] == ["alert", "rank_paused"]
        late = outbox.urgent()
        writer.relay(1, outbox.take())  # at the log point
        writer.relay(1, late)  # a heartbeat that was read late
    found = list(read_events(writer.path))
    assert [one.kind for one in found] == ["alert", "rank_paused", "corpus_prepared"]
    assert {(one.rank, one.host) for one in found} == {(1, "beta")}
    assert found[1].time == pytest.approx(written.time - 3600.0)
    assert outbox.take() == []
