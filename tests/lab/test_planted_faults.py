"""A run over two hosts by the user's own commands: its report names what was planted, and when.

A calm run has nothing to name. Hosts have a rank each, on a core of its own.
"""

from __future__ import annotations

import os
import time

import pytest

from dragoman.reporting.checks import examine
from dragoman.reporting.facts import Facts
from dragoman.reporting.reading import read_facts
from dragoman.reporting.verdict import Verdict
from dragoman.telemetry.events import read_events
from lab.conftest import OpenLab
from lab.controller import ENDLESS, Controller, set_up_controller, stop, wait_until, workers
from lab.laboratory import INTERFACE

PAUSE_S = 20.0
CUT_S = 12.0
CALM_RUNS = 10

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="each host needs a core of its own"),
]


@pytest.fixture
def calm(make_lab: OpenLab) -> Controller:
    """Two hosts of one rank on a core of its own, without limits of the network."""
    lab = make_lab(["alpha", "beta"])
    cores = os.sched_getaffinity(0)
    for core, host in zip(sorted(cores), lab.hosts, strict=False):
        os.sched_setaffinity(0, {core})  # what is started from here, and from there, inherits it
        host.restart_sshd("")
    os.sched_setaffinity(0, cores)
    return set_up_controller(lab, slots=(1, 1))


def trains_on(controller: Controller) -> None:
    """Wait for some more intervals."""
    seen = len(controller.events("train_interval"))
    wait_until(lambda: len(controller.events("train_interval")) > seen + 10)


def found(facts: Facts) -> dict[str, Verdict]:
    """The faults that the report names, by their keys."""
    return {finding.key: finding for finding in examine(facts) if finding.answer == "yes"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", ["a pause", "a cut"])
def test_a_host_that_stood_still_or_was_cut_off_is_named(calm: Controller, fault: str) -> None:
    beta = calm.lab.host("beta")
    training = calm.train(*ENDLESS)
    wait_until(calm.trains)
    trains_on(calm)
    began = time.time()
    if fault == "a pause":
        pids = [str(pid) for pid in workers(beta)]
        beta.run(["kill", "-STOP", *pids])
        time.sleep(PAUSE_S)
        beta.run(["kill", "-CONT", *pids])
    else:
        beta.plug(plugged=False)
        time.sleep(CUT_S)
        beta.plug(plugged=True)
    trains_on(calm)
    stop(calm, training)
    assert len(calm.events("run_started")) == 1, "the run must not start again"
    facts = read_facts(calm.run_directory())
    faults = found(facts)
    assert facts.intervals["interval_s"].max() < CUT_S / 2, "steps do not count it"
    if fault == "a pause":
        assert [*faults] == ["pauses"], faults
        (pause,) = facts.pauses
        assert pause.rank == 1
        assert "rank 1 on beta" in faults["pauses"].says
        assert abs(pause.began - began) < 3
        assert pause.seconds_s == pytest.approx(PAUSE_S, abs=3)
    else:
        assert [*faults] == ["network_faults"], faults
        says = faults["network_faults"].says
        assert f"{INTERFACE} of beta" in says
        assert "rank 1 on beta was out of reach for 1" in says


@pytest.mark.timeout(1800)
def test_the_reports_of_calm_runs_have_nothing_to_name(calm: Controller) -> None:
    """The controller shares their cores, so an alert of a moment may be right; `-s` shows them."""
    for _ in range(CALM_RUNS):
        training = calm.train("--fresh", "--set", "train.max_steps=400")
        _, complaint = training.communicate(timeout=400)
        assert training.returncode == 0, complaint
        run = max((calm.folder / "runs").iterdir())
        assert found(read_facts(run)) == {}
        for event in read_events(run / "events" / "log.jsonl"):
            if event.kind == "alert":
                print(f"{run.name}: {event.payload['cause']}")
