"""The values in MLflow, read back with MLflow."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dragoman.base.errors import MachineError
from dragoman.telemetry.events import EventWriter
from dragoman.telemetry.sinks import MlflowSink
from example_events import HOST_SAMPLED, RUN_FINISHED, RUN_STARTED, TRAIN_INTERVAL, VALIDATED


def test_without_its_library_the_sink_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MachineError, match="pip install 'dragoman"):
        MlflowSink("sqlite://")


def test_a_run_is_in_the_store(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs dragoman[mlflow]")
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with EventWriter(tmp_path / "events") as events:
        events.subscribe(MlflowSink(store))
        events.write(RUN_STARTED, step=0)
        events.write(TRAIN_INTERVAL, step=100)
        events.write(HOST_SAMPLED)
        events.write(TRAIN_INTERVAL, step=200)
        events.write(VALIDATED, step=200)
        events.write(RUN_FINISHED, step=200)
    client = mlflow.MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("dragoman")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["num_parameters"] == "7420000"
    history = client.get_metric_history(run.info.run_id, "train_loss")
    assert [(one.step, one.value) for one in history] == [(100, 3.2145), (200, 3.2145)]
    assert run.data.metrics["bleu"] == 23.41
    sampled = client.get_metric_history(run.info.run_id, "cpu_share")
    assert [(one.step, one.value) for one in sampled] == [(100, HOST_SAMPLED.cpu_share)]


def test_a_store_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs dragoman[mlflow]")
    with pytest.raises(MachineError, match=r"sinks\.mlflow: MLflow cannot use this store"):
        MlflowSink("dragon://nowhere")
