"""A tool beside ours may fail; the run and its record go on."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from dragoman.base.errors import MachineError
from dragoman.recipe.recipe import digest, load_recipe
from dragoman.telemetry.config import SinksConfig
from dragoman.telemetry.events import Event, EventListener, EventWriter, read_events
from dragoman.telemetry.sinks import OutsideSink, subscribe_sinks
from example_events import RUN_STARTED, TRAIN_INTERVAL, VALIDATED
from processes import wait_until


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
        events.subscribe(OutsideSink("mlflow", sink, events))
        for payload in (RUN_STARTED, TRAIN_INTERVAL, VALIDATED):
            events.write(payload, step=7)
    kinds = [event.kind for event in read_events(tmp_path / "log.jsonl")]
    assert sorted(kinds) == ["alert", "run_started", "train_interval", "validated"]
    assert sink.seen == ["run_started"]


def test_a_sink_that_fails_to_close_does_not_stop_the_end(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as events:
        events.subscribe(OutsideSink("wandb", _Breaks(), events))
        events.write(RUN_STARTED)
    kinds = [event.kind for event in read_events(tmp_path / "log.jsonl")]
    assert kinds == ["run_started"]


class _NeverAnswers(EventListener):
    """A client of a server that takes the connection and says nothing."""

    def __init__(self) -> None:
        self.answer = threading.Event()
        self.seen: list[str] = []

    def __call__(self, event: Event) -> None:
        self.answer.wait()
        self.seen.append(event.kind)

    def close(self) -> None:
        self.seen.append("closed")


def test_a_tracker_that_does_not_answer_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.telemetry.sinks._MOST_WAITING", 5)
    monkeypatch.setattr("dragoman.telemetry.sinks._LAST_S", 0.2)
    tracker = _NeverAnswers()
    monkeypatch.setattr("dragoman.telemetry.sinks.MlflowSink", lambda _store: tracker)
    began = time.monotonic()
    with EventWriter(tmp_path) as events:
        subscribe_sinks(events, SinksConfig(mlflow="http://127.0.0.1:9"), directory=tmp_path)
        events.write(RUN_STARTED)
        for step in range(20):
            events.write(TRAIN_INTERVAL, step=step)
    assert time.monotonic() - began < 5
    written = list(read_events(tmp_path / "log.jsonl"))
    assert sum(event.kind == "train_interval" for event in written) == 20
    causes = [event.payload["cause"] for event in written if event.kind == "alert"]
    assert causes == [
        "sinks.mlflow is not as fast as the run: events for it are dropped",
        "sinks.mlflow has not taken all events at the end of the run",
    ]
    tracker.answer.set()
    wait_until(lambda: "closed" in tracker.seen, limit_s=10)
    assert tracker.seen[0] == "run_started"


def test_a_tracker_that_answers_gets_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = _NeverAnswers()
    tracker.answer.set()
    monkeypatch.setattr("dragoman.telemetry.sinks.MlflowSink", lambda _store: tracker)
    with EventWriter(tmp_path) as events:
        subscribe_sinks(events, SinksConfig(mlflow="sqlite://"), directory=tmp_path)
        for payload in (RUN_STARTED, TRAIN_INTERVAL, VALIDATED):
            events.write(payload, step=7)
    assert tracker.seen == ["run_started", "train_interval", "validated", "closed"]


def test_all_are_off_by_default(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as events:
        subscribe_sinks(events, SinksConfig(), directory=tmp_path)
        events.write(RUN_STARTED)
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_the_recipe_names_them_and_its_digest_does_not(tmp_path: Path) -> None:
    plain, with_sinks = (
        load_recipe("demo", overrides) for overrides in ([], ["sinks.mlflow=sqlite://"])
    )
    assert with_sinks.sinks.mlflow == "sqlite://"
    assert digest(plain) == digest(with_sinks)
    assert digest(plain) != digest(load_recipe("demo", ["train.seed=2"]))


def test_a_tool_that_cannot_begin_is_an_error_before_the_run(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs dragoman[mlflow]")
    with EventWriter(tmp_path) as events, pytest.raises(MachineError, match=r"sinks\.mlflow"):
        subscribe_sinks(events, SinksConfig(mlflow="dragon://nowhere"), directory=tmp_path)


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_without_its_library_a_tool_names_the_package_to_install(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    config = SinksConfig.model_validate({name: "somewhere"})
    with (
        EventWriter(tmp_path) as events,
        pytest.raises(MachineError, match=rf"sinks\.{name}: .*pip install 'dragoman\[{name}\]'"),
    ):
        subscribe_sinks(events, config, directory=tmp_path)


def test_a_function_of_the_user_gets_each_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_hook.py").write_text(
        "seen = []\ndef take(event):\n    seen.append(event.kind)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with EventWriter(tmp_path) as events:
        subscribe_sinks(events, SinksConfig(hook="own_hook:take"), directory=tmp_path)
        for payload in (RUN_STARTED, TRAIN_INTERVAL):
            events.write(payload, step=7)
    assert sys.modules["own_hook"].seen == ["run_started", "train_interval"]


@pytest.mark.parametrize(
    "name", ["nowhere:take", "json:nothing", "json:__name__", "json", ":", "a b:c"]
)
def test_a_function_that_is_not_there_is_an_error_before_the_run(name: str, tmp_path: Path) -> None:
    with EventWriter(tmp_path) as events, pytest.raises(MachineError, match=r"sinks\.hook"):
        subscribe_sinks(events, SinksConfig(hook=name), directory=tmp_path)
