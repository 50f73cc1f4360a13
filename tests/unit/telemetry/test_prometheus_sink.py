"""Prometheus reads the values of the events; its own parser reads them back."""

from __future__ import annotations

import socket
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.base.errors import MachineError
from dragoman.telemetry.events import EventWriter, GpuSampled, MetricScored, NetworkSampled
from dragoman.telemetry.sinks import PrometheusSink
from example_events import RUN_STARTED, TRAIN_INTERVAL, VALIDATED

parser = pytest.importorskip("prometheus_client.parser", reason="needs dragoman[prometheus]")


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
    return number


@pytest.fixture
def events(port: int, tmp_path: Path) -> Iterator[EventWriter]:
    with EventWriter(tmp_path) as writer:
        writer.subscribe(PrometheusSink(port))
        yield writer


def _read(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        sample.name: sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_values_are_those_of_the_last_events(events: EventWriter, port: int) -> None:
    events.write(RUN_STARTED, step=0)
    events.write(TRAIN_INTERVAL, step=100)
    events.write(TRAIN_INTERVAL, step=200)
    events.write(VALIDATED, step=200)
    found = _read(port)
    assert found["dragoman_step"] == 200
    assert found["dragoman_steps_total"] == 200
    assert found["dragoman_target_tokens_total"] == 420_000
    assert found["dragoman_sync_bytes_total"] == 2 * 2_968_000_000
    assert found["dragoman_train_loss"] == pytest.approx(3.2145)
    assert found["dragoman_tokens_per_s"] == pytest.approx(10_250)
    assert found["dragoman_step_s"] == pytest.approx(0.4)
    assert found["dragoman_sync_share"] == pytest.approx(0.05)
    assert found["dragoman_dev_loss"] == pytest.approx(2.1034)
    assert found["dragoman_bleu"] == pytest.approx(23.41)
    assert found["dragoman_run_info"] == 1


def test_samples_of_the_host(events: EventWriter, port: int) -> None:
    network = NetworkSampled(
        interface="eth0",
        seconds_s=2.0,
        sent_bytes=400,
        received_bytes=600,
        sent_packets=4,
        received_packets=6,
        most_sent_bytes_per_s=None,
        errors=0,
        nominal_bits_per_s=None,
        carrier_changes=0,
    )
    gpu = GpuSampled(
        gpu=1,
        name="V100",
        seconds_s=2.0,
        utilisation_share=1.0,
        sm_activity_share=None,
        power_w=None,
        power_limit_w=None,
        memory_bytes=7,
        memory_limit_bytes=9,
        clock_hz=None,
        throttle_reasons="",
        ecc_errors=None,
    )
    events.write(network)
    events.write(gpu)
    found = _read(port)
    assert (found["dragoman_sent_bytes_per_s"], found["dragoman_received_bytes_per_s"]) == (
        200,
        300,
    )
    assert found["dragoman_gpu_1_utilisation_share"] == 1
    assert "dragoman_gpu_1_power_w" not in found  # not measured is not zero


def test_scores_of_a_further_metric(events: EventWriter, port: int) -> None:
    for text, value in (("valid", 41.25), ("news-2016", 40.5)):
        events.write(
            MetricScored(
                text=text, metric="comet-22", value=value, low=None, high=None, signature="COMET"
            )
        )
    found = _read(port)
    assert found["dragoman_comet_22"] == 41.25
    assert found["dragoman_news_2016_comet_22"] == 40.5


def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(MachineError, match=r"sinks\.prometheus_port: cannot answer Prometheus"):
            PrometheusSink(port)


def test_nobody_answers_after_the_run(port: int) -> None:
    PrometheusSink(port).close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_without_its_library_the_sink_names_the_package_to_install(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MachineError, match="pip install 'dragoman"):
        PrometheusSink(port)
