"""Real runs, judged: every verdict is right, none is guessed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from dragoman.reporting import measures
from dragoman.reporting.checks import examine, judge
from dragoman.reporting.log import RunLog
from dragoman.reporting.reading import read_facts
from dragoman.reporting.render import Report
from well_said import assert_well_said

RECORDED = Path(__file__).with_name("recorded")
LONG_AFTER = 1.9e9
# name -> what must be answered
RUNS: dict[str, dict[str, str]] = {
    "diverged": {
        "diverged": "yes",
        "trained": "no",
        "overfitting": "cannot tell",
        "network": "no",
        "duration": "measured",
    },
    "killed": {
        "diverged": "no",
        "trained": "cannot tell",
        "overfitting": "cannot tell",
        "processors": "cannot tell",  # whose work its processors did was not recorded then
        "network": "no",
        "starved": "no",
        "memory_creep": "no",
        "step_time": "measured",
        "evaluation": "yes",
    },
    "overfitting": {
        "trained": "no",  # 200 sentences: BLEU 1.7 at best, of 16 pairs
        "overfitting": "yes",
        "learning_rate": "measured",
        "rate_too_high": "no",
        "rate_too_low": "no",
        "diverged": "no",
        "evaluation": "yes",
        "memory_creep": "no",
    },
    "rate_too_low": {
        "trained": "no",
        "rate_too_low": "yes",
        "plateau": "no",
        "overfitting": "no",
        "evaluation": "yes",
    },
    "stopped_by_its_schedule": {
        "trained": "no",
        "overfitting": "no",
        "learning_rate": "measured",
        "starved": "yes",
        "padding": "no",
        "rate_too_high": "no",
        "evaluation": "no",
    },
    "stopped_by_a_signal": {
        "duration": "measured",
        "trained": "no",
        "overfitting": "no",
        "plateau": "no",
        "starved": "yes",
        "rate_too_low": "cannot tell",  # a twelfth of its schedule
    },
    "straggler": {
        "straggler": "yes",
        "network": "no",
        "processors": "no",
        "starved": "no",
        "trained": "cannot tell",
        "step_time": "measured",
        "diverged": "no",
    },
    "one_pause": {
        "straggler": "no",
        "pauses": "yes",
        "network": "no",
        "starved": "no",
        "duration": "measured",
        "step_time": "measured",
    },
    "random_batches": {
        "padding": "yes",
        "trained": "cannot tell",
        "overfitting": "cannot tell",
        "evaluation": "no",
    },
    "too_short": {
        "trained": "cannot tell",
        "overfitting": "cannot tell",
        "plateau": "cannot tell",
        "rate_too_high": "cannot tell",
        "memory_creep": "cannot tell",
        "step_time": "measured",
        "starved": "yes",
    },
    "two_ranks_of_one_host": {
        "trained": "no",
        "overfitting": "no",
        "processors": "no",
        "network": "no",
        "network_fit": "measured",
        "network_faults": "no",
        "straggler": "no",
        "starved": "no",
        "throttled": "cannot tell",
        "evaluation": "yes",
    },
    "two_hosts_starved": {
        "network": "yes",
        "network_fit": "measured",
        "processors": "no",
        "starved": "no",
        "straggler": "no",
        "network_faults": "no",
        "trained": "cannot tell",
    },
    "two_hosts_4mbit": {"network": "yes", "network_fit": "measured", "processors": "no"},
    "two_hosts_1mbit": {"network": "yes", "network_fit": "measured", "processors": "no"},
    "two_hosts_500kbit": {
        "network": "yes",
        "network_fit": "measured",
        "processors": "no",
        "starved": "no",
    },
    "two_hosts_link_falls": {
        "network": "yes",
        "network_fit": "measured",
        "straggler": "no",
        "pauses": "no",
        "network_faults": "no",
    },
    "past_its_best": {
        "trained": "no",  # and past its best: BLEU 5.6, which may be chance
        "overfitting": "yes",
        "diverged": "no",
        "starved": "no",
    },
    "two_hosts_calm": {"straggler": "no", "pauses": "no", "network_faults": "no", "starved": "no"},
    "two_hosts_loop_at_the_end": {"straggler": "yes", "pauses": "no", "processors": "no"},
    "two_hosts_loop_on_the_second": {"straggler": "yes", "pauses": "no", "processors": "no"},
    "two_hosts_cable_out": {"network_faults": "yes", "pauses": "no", "straggler": "no"},
    "two_hosts_cable_of_the_first": {"network_faults": "yes", "pauses": "no", "straggler": "no"},
    "two_hosts_stopped_process": {"network_faults": "no", "pauses": "yes", "straggler": "no"},
    "two_hosts_free": {
        "network": "no",
        "network_fit": "measured",
        "network_faults": "no",
        "trained": "cannot tell",
    },
}


@pytest.mark.parametrize("name", RUNS)
def test_every_verdict_is_right(name: str) -> None:
    facts = read_facts(RECORDED / name, now=LONG_AFTER)
    verdicts = {one.key: one for one in [*judge(facts), *examine(facts)]}
    assert {key: verdicts[key].answer for key in RUNS[name]} == RUNS[name]
    assert (facts.prepare_s is None) == name.startswith("two_hosts")
    assert facts.is_silent == (name == "killed")
    assert facts.problems == ()


@pytest.mark.parametrize("kind", ["starved", "4mbit"])
def test_exposed_communication_equals_the_extra_time_of_a_starved_step(kind: str) -> None:
    starved, free = (read_facts(RECORDED / f"two_hosts_{one}") for one in (kind, "free"))
    more_s = []
    for name in ("wire_s", "interval_s"):
        slow_s, free_s = (measures.per_step(one.intervals, name) for one in (starved, free))
        assert slow_s is not None
        assert free_s is not None
        more_s.append(slow_s - free_s)
    assert more_s[0] == pytest.approx(more_s[1], rel=0.1)


@pytest.mark.parametrize("name", RUNS)
def test_a_record_cut_off_anywhere_is_reported(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(RECORDED / name, run)
    path = run / "events" / "log.jsonl"
    whole = path.read_bytes()
    for share in range(9, -1, -1):
        path.write_bytes(whole[: len(whole) * share // 10 + 7])
        report = Report.of(read_facts(run))
        assert len(report.answers) == 12
        assert report.write(tmp_path / "report")


def test_one_pause_is_reported_as_a_pause() -> None:
    facts = read_facts(RECORDED / "one_pause", now=LONG_AFTER)
    verdicts = {one.key: one for one in [*judge(facts), *examine(facts)]}
    says = verdicts["pauses"].says
    assert "rank 1 on vm stood still for 20 s from 24 Nov 04:11:21 UTC on, in step 62" in says
    assert "26.7% of the run" in says
    # The time of a step, and its compute, are those of all other steps.
    raw = RunLog.read(RECORDED / "one_pause" / "events" / "log.jsonl").intervals
    steps = raw["step"].tolist()
    assert facts.intervals["step"].tolist() == steps
    quiet = [place for place, step in enumerate(steps) if step not in (10, 70)]
    for name, values in raw.values.items():
        assert np.array_equal(values[quiet], facts.intervals[name][quiet], equal_nan=True), name
    longest_s = raw["interval_s"][quiet].max(axis=0)
    assert (facts.intervals["interval_s"][steps.index(70)] < 1.2 * longest_s).all()
    rows = {row.name: row for row in verdicts["duration"].evidence}
    assert rows["stand still"].value == pytest.approx(20, abs=0.1)
    others = [one for one in facts.alerts if one.severity == "warning"]
    assert [one.rank for one in others] == [0, 1], "the rank that waited, then the paused one"


def test_a_pause_is_told_once_though_the_clock_was_set(tmp_path: Path) -> None:
    """Both ranks of a machine tell of it, each at the time that its clock then shows."""
    shutil.copytree(RECORDED / "one_pause", tmp_path / "run")
    log = tmp_path / "run" / "events" / "log.jsonl"
    whole = read_facts(tmp_path / "run", now=LONG_AFTER).pauses
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines[60:]:
        line["time"] -= 3600
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_facts(tmp_path / "run", now=LONG_AFTER).pauses == whole
    assert len(whole) == 1


def test_slow_ranks_and_waiting_ranks_are_named() -> None:
    facts = read_facts(RECORDED / "straggler", now=LONG_AFTER)
    verdicts = {one.key: one for one in examine(facts)}
    assert "rank 1 on vm, from the start" in verdicts["straggler"].says


def test_a_changed_link_is_reported_with_its_rates_and_time() -> None:
    facts = read_facts(RECORDED / "two_hosts_link_falls", now=LONG_AFTER)
    verdicts = {one.key: one for one in judge(facts)}
    changed = (
        "Since step 61, 29 Nov 10:34:14 UTC, eth0, alpha to beta, beta to alpha carried "
        "3.006 MB/s each way, 119.4 MB/s before."
    )
    earlier = "\nSteps 1 to 60 on alpha, beta: "
    now, then = verdicts["step_time"].says.split(earlier)
    assert "1.282 s/step" in now
    assert "60.11 ms/step" in then
    since, before = verdicts["network_fit"].says.removeprefix(changed).split(earlier)
    assert "1.21 s of it waited for the network, 25.4 ms of transfers hid" in since
    assert "29.9 ms of it waited for the network, 1.10 ms of transfers hid" in before
    since, before = verdicts["network"].says.removeprefix(changed).split(earlier)
    assert since.startswith(" Waiting for the network took 94.1% of a step")
    assert before.startswith("Waiting for the network took 49.9% of a step (46.8% to 53.1%)")
    assert "from the start" not in since + before
    assert verdicts["network"].remedy.startswith("Look at the cable")
    alert = next(one for one in facts.alerts if one.severity == "warning")
    assert alert.step is not None
    assert 60 < alert.step <= 80


def test_a_gpu_that_waits_for_its_host_is_not_called_busy() -> None:
    facts = read_facts(RECORDED / "gpu_waits_for_its_host", now=LONG_AFTER)
    verdict = {one.key: one for one in judge(facts)}["processors"]
    assert verdict.answer == "no"
    assert "power" in verdict.says
    gpu = next(one for one in verdict.evidence if one.name.startswith("GPU 0"))
    assert gpu.value == pytest.approx(123.4, abs=0.1)  # watts, of 700
    assert "0.6% of its multiprocessors" in gpu.text


@pytest.mark.parametrize("name", RUNS)
def test_every_answer_has_evidence_and_a_method(name: str) -> None:
    facts = read_facts(RECORDED / name, now=LONG_AFTER)
    for verdict in examine(facts):
        assert_well_said(verdict)
    for verdict in judge(facts):
        assert_well_said(verdict)
        if verdict.answer != "cannot tell":
            assert verdict.evidence, verdict.question
            assert verdict.method, verdict.question
