"""The figures of verdicts, each against what the record was made from."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dragoman.reporting.checks import judge
from dragoman.reporting.facts import Facts
from dragoman.reporting.reading import read_facts
from dragoman.reporting.verdict import Verdict
from dragoman.telemetry.events import DeviceMeasured, LinkMeasured, NetworkSampled, Payload
from example_events import HOST_SAMPLED, changed
from golden_gpu import gpu_sampled
from recorded_runs import Recorded

VOCABULARY = ("corpus.subword.vocab_size=32768",)
LINK = LinkMeasured(
    interface="eth0", peer="host-b", bytes_per_s=12e6, latency_s=3e-4, method="test"
)
Row = float | str | None


def _verdicts(facts: Facts) -> dict[str, Verdict]:
    return {one.key: one for one in judge(facts)}


def _rows(verdict: Verdict) -> dict[str, Row]:
    return {row.name: row.value for row in verdict.evidence}


def _texts(verdict: Verdict) -> dict[str, str]:
    return {row.name: row.text for row in verdict.evidence}


def _same(found: dict[str, Row], expected: dict[str, Row]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        number = isinstance(value, float | int)
        assert found[name] == (pytest.approx(value, rel=1e-6) if number else value), name


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """Two hosts that wait for 12 MB/s; rank 1 computes faster, and waits longer."""
    traffic = NetworkSampled(
        seconds_s=10.0,
        interface="eth0",
        sent_bytes=10**9,
        received_bytes=5 * 10**8,
        sent_packets=10**6,
        received_packets=4 * 10**5,
        errors=0,
        carrier_changes=1,
        nominal_bits_per_s=1e9,
        most_sent_bytes_per_s=1.1e8,
    )
    run = Recorded(
        compute_s=(0.4, 0.35),
        sync_s=(2.2, 2.3),
        dev_loss=lambda step: 1.5 + 6 * math.exp(-step / 500) + 0.02 * (step == 8000),
        extra=[(0, LINK), (0, traffic)],
        recipe=VOCABULARY,
    )
    return read_facts(run.write(tmp_path_factory.mktemp("runs") / "run"))


STEP_S, OTHER_STEP_S = 0.4 + 2.2 + 0.001, 0.35 + 2.3 + 0.001
WIRE = 4 * 7_420_000
"""Bytes of the fp32 gradients, which two ranks send once each way."""


def test_figures_of_the_network(slow: Facts) -> None:
    found = _verdicts(slow)
    _same(
        _rows(found["network"]),
        {
            "share of a step in exposed communication": 2.2 / STEP_S,
            "strategy": "sync",
            "rank 0 on host-a, waiting for later ranks": 0.0,
            "rank 1 on host-b, waiting for later ranks": 2.3 / OTHER_STEP_S - 2.2 / STEP_S,
            "sent per step and direction": WIRE,
            "rate needed without pause": WIRE / STEP_S,
            "capacity of the link": 12e6,
            "eth0 of host-a": 1e8,
        },
    )
    assert _texts(found["network"])["eth0 of host-a"] == (
        "100 MB/s out, 50 MB/s in on average, 110 MB/s out in the busiest second, "
        "nominally 1 Gbit/s, 0 errors in 112,000,000 packets, link lost or found 80 times"
    )
    fit = _rows(found["network_fit"])
    _same(
        fit,
        {
            "sent per step and direction": WIRE,
            "capacity of the link": 12e6,
            "transfers at that capacity": WIRE / 12e6,
            "exposed communication": 2.2,
        },
    )
    assert found["network_fit"].says == (
        "29.68 MB over 12 MB/s is 2.47 s, a step 2.60 s: 2.20 s of it waited for the network, "
        "273 ms of transfers hid behind compute."
    )


def test_figures_of_a_step(slow: Facts) -> None:
    found = _verdicts(slow)["step_time"]
    _same(
        _rows(found),
        {
            "mean": STEP_S,
            "median": STEP_S,
            "95% are below": 1.1 * STEP_S,
            "with evaluation and all else": (8000 * STEP_S + 9 * 10.5) / 8000,
            "pairs a step": 128,
            "source tokens a step": 2000,
            "target tokens a step": 2100,
            "share of padding in all cells": 0.05,
        },
    )
    assert "2.601 s/step = 0.3845 step/s" in found.says


def test_figures_of_learning(slow: Facts) -> None:
    found = _verdicts(slow)
    rows, texts = _rows(found["trained"]), _texts(found["trained"])
    best = 1.5 + 6 * math.exp(-14)
    bleu = 30 * (1 - math.exp(-16))
    expected: dict[str, Row] = {
        "validations after the start": 8,
        "dev loss at step 0": 7.5,
        "loss of a uniform prediction": math.log(32768),
        "last dev loss": 1.52 + 6 * math.exp(-16),
        "best dev loss": best,
        "best BLEU": bleu,
        "schedule that is left": 0.0,
    }
    _same({name: rows[name] for name in expected}, expected)
    assert texts["best dev loss"].endswith(" at step 7,000")
    assert texts["best BLEU"] == "30.0 (29.0 to 31.0) at step 8,000"
    _same(
        _rows(found["overfitting"]),
        {
            "dev loss": 1.52 + 6 * math.exp(-16),
            "loss on the training slice": 1.4 + 6 * math.exp(-16),
            "gap": 0.12,
            "dev loss above its best": (1.52 + 6 * math.exp(-16)) / best - 1,
            "step of the best": "7,000",
            "chance of such a rise since then": 1.0,  # one loss alone has one order
            "pairs of the dev set": 1014,
        },
    )


def test_a_trend_is_shown_with_its_interval(tmp_path: Path) -> None:
    """Straight over the logarithm of the step: 10% more steps add ln 1.1 of its slope."""
    gain = 0.5 * math.log(1.1)
    run = Recorded(
        steps=6000,
        reason="signal",
        dev_loss=lambda step: 5 - 0.3 * math.log(max(step, 1)),
        bleu=lambda step: 10 + 0.5 * math.log(max(step, 1)),
        recipe=VOCABULARY,
    )
    found = _verdicts(read_facts(run.write(tmp_path / "run")))["trained"]
    rows, texts = _rows(found), _texts(found)
    share = 0.3 * math.log(1.1) / (5 - 0.3 * math.log(6000))
    assert rows["10% more steps, dev loss"] == pytest.approx(-share)
    fall = f"{100 * share:.1f}%"
    assert texts["10% more steps, dev loss"] == f"lower the dev loss by {fall} ({fall} to {fall})"
    assert f"10% more steps lower the dev loss by {fall}" in found.says
    assert rows["10% more steps, BLEU"] == pytest.approx(gain)
    assert texts["10% more steps, BLEU"] == f"add {gain:.1f} points ({gain:.1f} to {gain:.1f})"
    assert rows["schedule that is left"] == 0.25
    assert "2,000 steps" in found.remedy


def test_figures_of_busy_devices(tmp_path: Path) -> None:
    device = DeviceMeasured(
        device="cuda", matrix_flop_per_s=3e11, alone_tokens_per_s=6000.0, method="test"
    )
    other = changed(
        gpu_sampled(225, throttle="thermal"), sm_activity_share=0.5, ecc_errors=2, gpu=3
    )
    extra: list[tuple[int, Payload]] = [(0, gpu_sampled(240)), (1, other)]
    run = Recorded(
        device="cuda", recipe=VOCABULARY, extra=[*extra, (0, device), (1, device)]
    ).write(tmp_path / "run")
    found = _verdicts(read_facts(run))["processors"]
    rows, texts = _rows(found), _texts(found)
    useful = rows.pop("useful FLOPs over the rate of matrix products (MFU)")
    assert useful == pytest.approx(0.44, abs=0.005)
    tokens_per_s = (200_000 + 210_000) / 41.1
    _same(
        rows,
        {
            "share of a step in compute": 0.4 / 0.411,
            "exposed communication": 0.01 / 0.411,
            "waiting for data": 0.001 / 0.411,
            "share of padding in all cells": 0.05,
            "source + target": tokens_per_s,
            "scaling efficiency": tokens_per_s / 12_000,
            "GPU 0 of host-a": 240.0,
            "GPU 3 of host-b": 225.0,
        },
    )
    assert texts["GPU 0 of host-a"] == "utilisation counter 100.0%, 240 W of 250 W, memory 10 GB"
    assert texts["GPU 3 of host-b"] == (
        "utilisation counter 100.0%, 50.0% of its multiprocessors busy, 225 W of 250 W, "
        "memory 10 GB, clock lowered by thermal, 2 memory errors"
    )
    assert found.answer == "no"
    assert "the clock of GPU 3 of host-b was lowered (thermal) for 100.0% of" in found.says


def test_figures_of_one_host(tmp_path: Path) -> None:
    busy = changed(HOST_SAMPLED, cpu_share=0.97, others_cpu_share=0.02)
    run = Recorded(one_host=True, sync_s=(0.1, 0.12), recipe=VOCABULARY, extra=[(0, busy)])
    found = _verdicts(read_facts(run.write(tmp_path / "run")))
    assert _texts(found["processors"])["host-a"] == (
        "processors 97.0% busy (2.0% by others), memory 75.0% used, "
        "7.5 batches ready for the next steps"
    )
    assert _rows(found["processors"])["host-a"] == pytest.approx(0.97)
    assert "took 20.0% of a step (20.0% to 20.0%)" in found["network"].says
    _same(
        _rows(found["network_fit"]),
        {
            "hosts of the ranks": "host-a",
            "share of a step in all-reduces between ranks": 0.1 / 0.501,
        },
    )
    assert found["processors"].remedy == "Most of the rest went to all-reduces between ranks."


def test_one_process_sends_nothing(tmp_path: Path) -> None:
    alone = Recorded(world_size=1, compute_s=(0.4,), sync_s=(0.0,))
    found = _verdicts(read_facts(alone.write(tmp_path / "run")))
    assert _rows(found["network"]) == {"processes that train": "1"}
    assert _rows(found["network_fit"])["hosts of the ranks"] == "host-a"
    assert _rows(found["processors"])["scaling efficiency"] is None


def test_sums_that_were_not_timed_have_no_figure(tmp_path: Path) -> None:
    run = Recorded(one_host=True, interval_changes={"sync_s": None})
    found = _verdicts(read_facts(run.write(tmp_path / "run")))["network"]
    assert (found.answer, found.says) == (
        "no",
        "All ranks share one host: no network was used.",
    )


def test_a_gpu_without_power_is_the_weakest(tmp_path: Path) -> None:
    extra: list[tuple[int, Payload]] = [(0, gpu_sampled(240)), (1, gpu_sampled(0))]
    run = Recorded(device="cuda", sync_s=(0.4, 0.4), extra=extra)
    found = _verdicts(read_facts(run.write(tmp_path / "run")))["processors"]
    assert found.answer == "no"
    assert "GPU 0 of host-b drew 0.0% of its power" in found.says
    assert "utilisation counter read 100.0%" in found.says


@pytest.mark.parametrize(("device", "asked"), [("cuda", "GPUs"), ("cpu", "processors")])
def test_the_question_names_the_device(device: str, asked: str, tmp_path: Path) -> None:
    found = _verdicts(read_facts(Recorded(device=device).write(tmp_path / "run")))["processors"]
    assert found.question == f"Were the {asked} fully used?"
