"""Events are read back as they were written, whatever happened to the file in between."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from dragoman.base.errors import MachineError
from dragoman.telemetry import events
from dragoman.telemetry.events import Alert, CorpusDropped, Event, EventWriter, Payload, read_events

ALERT = Alert(severity="warning", cause="the läst «checkpoint» is torn", remedy="none needed")


def test_an_event_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    with EventWriter(tmp_path, rank=3) as writer:
        writer.write(ALERT, step=7)
    assert writer.path.name == "rank-0003.jsonl"
    (event,) = read_events(writer.path)
    assert (event.v, event.kind, event.rank, event.step) == (1, "alert", 3, 7)
    assert event.payload == asdict(ALERT)
    assert abs(event.time - time.time()) < 60


def test_each_kind_is_named_once_and_its_fields_are_flat() -> None:
    kinds = [
        value
        for value in vars(events).values()
        if isinstance(value, type) and issubclass(value, Payload) and value is not Payload
    ]
    assert len({kind.kind for kind in kinds}) == len(kinds)
    envelope = {field.name for field in fields(Event)}
    for kind in kinds:
        assert not envelope & {field.name for field in fields(kind)}
        assert {field.type for field in fields(kind)} <= {
            *("str", "int", "float", "bool"),
            *("str | None", "int | None", "float | None", "bool | None"),
        }


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
    bad = [b"12\n", b"[1]\n", b"null\n", b'{"v": 1}\n', b"\xff\xfe\n", b"\n", good[:40] + b"\n"]
    bad.append(good.replace(b'"step": 1', b'"step": "one"'))
    writer.path.write_bytes(b"".join([good, *bad, good, good[:-20]]))
    damaged: list[int] = []
    found = list(read_events(writer.path, on_damaged=damaged.append))
    assert [event.step for event in found] == [1, 1]
    assert damaged == [2, 3, 4, 5, 6, 8, 9, 11]


@pytest.mark.parametrize("make", ["link", "pipe"])
def test_events_go_to_no_other_file(tmp_path: Path, make: str) -> None:
    victim, path = tmp_path / "victim", tmp_path / "events" / "rank-0000.jsonl"
    path.parent.mkdir()
    if make == "link":
        path.symlink_to(victim)
    else:
        os.mkfifo(path)
    with pytest.raises(
        MachineError, match=r"cannot write an event: is (a link|not a regular file)"
    ):
        EventWriter(path.parent)
    assert not victim.exists()


def test_a_line_without_end_is_one_damaged_line(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as writer:
        writer.write(ALERT, step=1)
    good = writer.path.read_bytes()
    long = good[:-2] + b" " * (48 << 20) + b"}\n"
    writer.path.write_bytes(good + long + good + long[:-2])
    del long
    damaged: list[int] = []
    tracemalloc.start()
    try:
        found = list(read_events(writer.path, on_damaged=damaged.append))
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(found), damaged) == (2, [2, 4])
    assert most_bytes < 24 << 20


def test_an_endless_row_of_brackets_is_a_damaged_line(tmp_path: Path) -> None:
    path = tmp_path / "rank-0000.jsonl"
    path.write_bytes(b"[" * 200_000 + b"\n" + b'{"a":' * 200_000 + b"\n")
    damaged: list[int] = []
    assert list(read_events(path, on_damaged=damaged.append)) == []
    assert damaged == [1, 2]


def test_a_newer_schema_is_read_with_its_unknown_keys(tmp_path: Path) -> None:
    line = {"v": 9, "kind": "dream", "time": 1, "mono_s": 2.5, "host": "h", "rank": 0, "step": None}
    path = tmp_path / "rank-0000.jsonl"
    path.write_text(json.dumps(line | {"colour": "blue"}) + "\n")
    (event,) = read_events(path)
    assert (event.kind, event.payload) == ("dream", {"colour": "blue"})


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
from dragoman.telemetry.events import CorpusDropped, EventWriter
with EventWriter(pathlib.Path(sys.argv[1])) as writer:
    for n in itertools.count():
        writer.write(CorpusDropped(split="train", reason="x" * 500, pairs=n), step=n)
"""
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    path = tmp_path / "rank-0000.jsonl"
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
        writer.write(CorpusDropped(split="train", reason="empty", pairs=3))
    assert [event.kind for event in recorder.seen] == ["corpus_dropped"]
    assert recorder.seen == list(read_events(writer.path))[1:]
    assert recorder.closed


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error_with_place_and_remedy(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as writer:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, writer._file.fileno())
        os.close(full)
        with pytest.raises(MachineError, match=r"rank-0000.*No space left.*free disk space"):
            writer.write(ALERT)
