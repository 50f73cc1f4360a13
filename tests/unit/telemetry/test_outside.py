"""A tool beside ours may fail; the run and its record go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.base.errors import MachineError
from dragoman.recipe.recipe import digest, load_recipe
from dragoman.telemetry.config import SinksConfig
from dragoman.telemetry.events import Event, EventListener, EventWriter, read_events
from dragoman.telemetry.sinks import Guarded, subscribe_sinks
from example_events import RUN_STARTED, TRAIN_INTERVAL, VALIDATED


class _Breaks(EventListener):
    """Works once, then its server is gone."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, event: Event) -> None:
        if self.seen:
            raise ConnectionError("the server has gone")
        self.seen.append(event.kind)

    def close(self) -> None:
        raise ConnectionError("the server has gone")


def test_a_sink_that_fails_is_given_up_with_an_alert(tmp_path: Path) -> None:
    sink = _Breaks()
    with EventWriter(tmp_path) as events:
        events.subscribe(Guarded("mlflow", sink, events))
        for payload in (RUN_STARTED, TRAIN_INTERVAL, VALIDATED):
            events.write(payload, step=7)
    kinds = [event.kind for event in read_events(tmp_path / "rank-0000.jsonl")]
    assert kinds == ["run_started", "train_interval", "alert", "validated"]
    assert sink.seen == ["run_started"]


def test_a_sink_that_fails_to_close_does_not_stop_the_end(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as events:
        events.subscribe(Guarded("wandb", _Breaks(), events))
        events.write(RUN_STARTED)
    kinds = [event.kind for event in read_events(tmp_path / "rank-0000.jsonl")]
    assert kinds == ["run_started"]


def test_all_are_off_by_default(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as events:
        subscribe_sinks(events, SinksConfig(), directory=tmp_path)
        events.write(RUN_STARTED)
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0000.jsonl"]


def test_the_recipe_names_them_and_its_digest_does_not(tmp_path: Path) -> None:
    plain, with_sinks = (
        load_recipe("demo", overrides) for overrides in ([], ["sinks.prometheus_port=65001"])
    )
    assert with_sinks.sinks.prometheus_port == 65001
    assert digest(plain) == digest(with_sinks)
    assert digest(plain) != digest(load_recipe("demo", ["train.seed=2"]))


def test_a_tool_that_cannot_begin_is_an_error_before_the_run(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs dragoman[mlflow]")
    with EventWriter(tmp_path) as events, pytest.raises(MachineError, match=r"sinks\.mlflow"):
        subscribe_sinks(events, SinksConfig(mlflow="dragon://nowhere"), directory=tmp_path)
