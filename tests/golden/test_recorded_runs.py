"""Real runs, judged: every verdict is right, none is guessed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dragoman.report.health import examine
from dragoman.report.reading import read_facts
from dragoman.report.render import Report
from dragoman.report.verdicts import judge

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
        "processors": "yes",
        "network": "no",
        "starved": "no",
        "memory_creep": "no",
        "step_time": "measured",
        "evaluation": "yes",
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
}


@pytest.mark.parametrize("name", RUNS)
def test_every_verdict_is_right(name: str) -> None:
    facts = read_facts(RECORDED / name, now=LONG_AFTER)
    verdicts = {one.key: one for one in [*judge(facts), *examine(facts)]}
    assert {key: verdicts[key].answer for key in RUNS[name]} == RUNS[name]
    assert facts.prepare_s is not None
    assert facts.is_silent == (name == "killed")
    assert facts.problems == ()


@pytest.mark.parametrize("name", RUNS)
def test_a_record_cut_off_anywhere_is_reported(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(RECORDED / name, run)
    path = run / "events" / "rank-0000.jsonl"
    whole = path.read_bytes()
    for share in range(9, -1, -1):
        path.write_bytes(whole[: len(whole) * share // 10 + 7])
        report = Report.of(read_facts(run))
        assert len(report.answers) == 12
        assert report.write(tmp_path / "report")
