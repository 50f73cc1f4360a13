"""The values in Weights & Biases, offline, read back from its own file."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest

from dragoman.base.errors import MachineError
from dragoman.telemetry.events import EventWriter
from dragoman.telemetry.sinks import WandbSink
from example_events import RUN_FINISHED, RUN_STARTED, TRAIN_INTERVAL, VALIDATED


def test_without_its_library_the_sink_names_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MachineError, match="pip install 'dragoman"):
        WandbSink("translation", tmp_path)


def test_a_run_is_kept_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs dragoman[wandb]")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with EventWriter(tmp_path / "events") as events:
        events.subscribe(WandbSink("translation", tmp_path / "wandb"))
        events.write(RUN_STARTED, step=0)
        events.write(TRAIN_INTERVAL, step=100)
        events.write(VALIDATED, step=100)
        events.write(RUN_FINISHED, step=100)
    (path,) = tmp_path.glob("wandb/wandb/offline-run-*/run-*.wandb")
    rows = _history(path)
    assert any(row.get("train_loss") == 3.2145 and row["step"] == 100 for row in rows)
    assert any(row.get("bleu") == 23.41 for row in rows)


def _history(path: Path) -> list[dict[str, float]]:
    """The logged rows of the library's own file: records of LevelDB's log format in one block."""
    from wandb.proto import wandb_internal_pb2

    data, rows, at = path.read_bytes(), [], len(":W&B") + 3
    assert len(data) < 32768
    while at < len(data):
        _, length, _ = struct.unpack_from("<IHB", data, at)
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data[at + 7 : at + 7 + length])
        at += 7 + length
        items = record.history.item
        rows.append({one.key or one.nested_key[0]: json.loads(one.value_json) for one in items})
    return rows
