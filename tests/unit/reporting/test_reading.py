"""Whatever happened to the files, facts are read, and what is wrong is said."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dragoman.base.errors import CheckpointError
from dragoman.recipe.recipe import dump_toml, load_recipe
from dragoman.reporting import measures
from dragoman.reporting.checks import examine, judge
from dragoman.reporting.facts import Facts
from dragoman.reporting.reading import read_facts
from dragoman.reporting.render import Report, faults
from dragoman.telemetry.events import GpuSampled, NetworkSampled, RankPaused, as_line, as_values
from dragoman.telemetry.host import HourlyPrice
from dragoman.telemetry.session import training_session
from example_events import HOST_SAMPLED, TEST_SCORED, changed, event
from recorded_runs import START, Recorded

SHORT = Recorded(steps=1000, max_steps=1000, validate_every=200)


def _answers(facts: Facts) -> dict[str, str]:
    return {one.key: one.answer for one in [*judge(facts), *examine(facts)]}


def test_the_facts_of_a_healthy_run(tmp_path: Path) -> None:
    facts = read_facts(SHORT.write(tmp_path / "run"))
    assert facts.problems == ()
    assert (facts.world_size, facts.num_parameters, facts.last_step) == (2, 7_420_000, 1000)
    assert facts.hosts == ("host-a", "host-b")
    assert facts.is_finished
    assert not facts.is_silent
    assert facts.intervals["step"].tolist() == list(range(100, 1001, 100))
    assert facts.train_s == pytest.approx(1000 * 0.411)
    assert facts.wall_s == pytest.approx(1000 * 0.411 + 6 * 10.5)
    assert len(facts.validations) == 6


def test_a_directory_that_is_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is not a run.*name a directory"):
        read_facts(tmp_path)
    with pytest.raises(CheckpointError, match=r"nowhere: does not exist; .* lists the runs"):
        read_facts(tmp_path / "nowhere")


def test_a_run_that_has_not_started_has_nothing_but_its_recipe(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(dump_toml(load_recipe("demo", [])))
    facts = read_facts(tmp_path)
    assert facts.name == "demo"
    assert facts.problems == ("there are no events yet: the run has not started",)
    assert "yes" not in _answers(facts).values()
    assert Report.of(facts).write(tmp_path / "report")


def test_a_power_cut_in_the_middle_of_a_line(tmp_path: Path) -> None:
    run = SHORT.write(tmp_path / "run")
    path = run / "events" / "log.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    facts = read_facts(run)
    assert len(facts.intervals) == 10
    assert any("1 damaged lines of events were skipped" in problem for problem in facts.problems)
    assert not facts.is_finished
    assert facts.is_silent


@pytest.mark.parametrize("cut", range(0, 3000, 400))
def test_a_file_cut_anywhere_is_read_without_a_traceback(cut: int, tmp_path: Path) -> None:
    run = SHORT.write(tmp_path / "run")
    path = run / "events" / "log.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[cut : len(whole) - 2 * cut])
    facts = read_facts(run)
    assert "<html" in Report.of(facts).write(run / "report")[0].read_text()


@pytest.mark.parametrize("set_by_s", [-7200, 3600])
def test_a_clock_that_was_set_during_the_run_moves_nothing(set_by_s: int, tmp_path: Path) -> None:
    run = replace(SHORT, reason=None).write(tmp_path / "run")
    before = read_facts(run).lives[-1]
    path = run / "events" / "log.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[10:]:
        line["time"] += set_by_s
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    now = before.ended + set_by_s  # by the same clock
    facts = read_facts(run, now=now + 60)
    assert facts.wall_s == pytest.approx(1000 * 0.411 + 6 * 10.5)
    assert facts.train_s == pytest.approx(1000 * 0.411)
    assert any(f"host-a was set by {set_by_s:+} s" in problem for problem in facts.problems)
    assert facts.is_running
    assert read_facts(run, now=now + 3600).is_silent


def test_a_clock_that_was_set_back_and_right_again_moves_nothing(tmp_path: Path) -> None:
    run = SHORT.write(tmp_path / "run")
    whole = read_facts(run)
    path = run / "events" / "log.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[10:15]:
        line["time"] -= 7200
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_facts(run).lives[-1].ended == pytest.approx(whole.lives[-1].ended)


def test_work_that_was_lost_in_a_crash_is_counted_once(tmp_path: Path) -> None:
    run = Recorded(steps=1000, max_steps=1000, resume_at=(700, 400)).write(tmp_path / "run")
    facts = read_facts(run)
    assert facts.intervals["step"].tolist() == list(range(100, 1001, 100))
    assert facts.repeated_steps == 300
    assert facts.train_s == pytest.approx(1300 * 0.411)
    assert facts.wall_s is not None
    assert facts.wall_s < 1300 * 0.411 + 100  # the hour between the two starts is not in it
    assert [one.reason for one in facts.lives] == [None, "max_steps"]


def test_steps_that_a_kill_lost_are_not_made_until_they_are_made_again(tmp_path: Path) -> None:
    run = Recorded(
        steps=1100, max_steps=2000, resume_at=(1500, 1000), validate_every=500, reason=None
    ).write(tmp_path / "run")
    ended = read_facts(run).lives[-1].ended
    facts = read_facts(run, now=ended + 5)
    assert facts.last_step == 1100
    duration = judge(facts)[0]
    assert "for 1,100 steps" in duration.says
    # 900 steps at the speed since the restart, of which five seconds have gone
    assert measures.left_s(facts) == pytest.approx(900 * 0.411 - 5)
    trained = next(one for one in judge(facts) if one.key == "trained")
    assert "No dev loss is known" not in trained.says


@pytest.mark.parametrize(
    ("host", "mono_s"),
    [
        ("laptop", 20 * 86400.0),  # the controller's machine, up for 20 days
        ("laptop", -3600.0),
        ("host-a", 20 * 86400.0),  # another machine of the same name
        ("host-a", -3600.0),  # rank 0's machine, which was started again
    ],
)
def test_an_alert_of_another_machine_does_not_lengthen_a_killed_life(
    host: str, mono_s: float, tmp_path: Path
) -> None:
    run = Recorded(steps=1000, max_steps=1000, resume_at=(700, 400)).write(tmp_path / "run")
    whole = read_facts(run)
    path = run / "events" / "log.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    place = [n for n, line in enumerate(lines) if line["kind"] == "environment"][1]
    before = lines[place - 1]
    alert = {key: before[key] for key in ("v", "rank")} | {
        **{"kind": "alert", "severity": "error", "cause": "host-a is lost", "remedy": "none"},
        **{"time": before["time"] + 60, "mono_s": before["mono_s"] + mono_s, "step": None},
        "host": host,
    }
    lines.insert(place, alert)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    facts = read_facts(run)
    assert facts.problems == ()
    assert facts.lives == whole.lives
    assert [one.time for one in facts.alerts] == [alert["time"]]


def test_an_evaluation_of_a_killed_run_is_no_part_of_its_life(tmp_path: Path) -> None:
    run = replace(SHORT, reason=None).write(tmp_path / "run")
    whole = read_facts(run)
    later_s = whole.lives[-1].ended + 2 * 86400
    score = event(TEST_SCORED, time=later_s)  # the machine was not started again
    with (run / "events" / "log.jsonl").open("ab") as events:
        events.write(as_line(score))
    facts = read_facts(run)
    assert facts.wall_s == whole.wall_s
    assert len(facts.test_scores) == 1
    assert facts.problems == ()


def test_samples_are_weighted_by_their_time(tmp_path: Path) -> None:
    gpu = GpuSampled(
        gpu=0,
        name="V100",
        seconds_s=10.0,
        utilisation_share=1.0,
        sm_activity_share=None,
        power_w=43.0,
        power_limit_w=250.0,
        memory_bytes=1,
        memory_limit_bytes=2,
        clock_hz=None,
        throttle_reasons="",
        ecc_errors=None,
        throttled_share=0.0,
    )
    traffic = NetworkSampled(
        interface="eth0",
        seconds_s=10.0,
        sent_bytes=2_150_000_000,
        received_bytes=1,
        sent_packets=1,
        received_packets=1,
        most_sent_bytes_per_s=218e6,
        errors=0,
        nominal_bits_per_s=1e9,
        carrier_changes=0,
    )
    other = changed(
        gpu, seconds_s=30.0, power_w=83.0, throttle_reasons="power,thermal", throttled_share=1.0
    )
    run = replace(SHORT, extra=[(0, gpu), (0, other), (0, traffic)]).write(tmp_path / "run")
    facts = read_facts(run)
    (one,) = facts.gpus
    assert (one.host, one.samples, one.power_w) == ("host-a", 20, 73.0)
    assert one.power_share == pytest.approx(0.292)
    assert one.throttled_share == 0.75
    assert set(one.throttle_reasons) == {"power", "thermal"}
    (sent,) = facts.traffic
    assert sent.sent_bytes / sent.seconds_s == 215e6


def test_the_newest_checkpoint_file_by_file(tmp_path: Path) -> None:
    run = SHORT.write(tmp_path / "run")
    for step in (400, 1000):
        directory = run / "checkpoints" / f"step-{step:07d}"
        directory.mkdir(parents=True)
        (directory / "model.safetensors").write_bytes(bytes(step * 1000))
        (directory / "state.json").write_text("{}")
    (run / "checkpoints" / ".step-0002000.draft").mkdir()
    facts = read_facts(run)
    assert [(f.name, f.size_bytes) for f in facts.checkpoint_files] == [
        ("model.safetensors", 1_000_000),
        ("state.json", 2),
    ]
    answers = {one.key: one for one in judge(facts)}
    assert "1 MB (= 976.6 KiB)" in answers["checkpoint_size"].says
    assert answers["checkpoint_files"].answer == "measured"


@pytest.mark.parametrize("name", ["recipe.toml", "manifest.json"])
def test_a_broken_record_is_reported_and_left_out(name: str, tmp_path: Path) -> None:
    run = SHORT.write(tmp_path / "run")
    (run / name).write_text("broken {")
    facts = read_facts(run)
    assert any(name in problem for problem in facts.problems)
    assert facts.recipe is None
    assert facts.manifest is None


def test_steps_under_way_are_neither_idle_nor_training(tmp_path: Path) -> None:
    run = replace(SHORT, reason=None).write(tmp_path / "run")
    whole = read_facts(run)
    later = {
        "v": 2,
        "kind": "host_sampled",
        "time": whole.lives[-1].ended + 77,
        "mono_s": whole.lives[-1].ended + 77 - 1.6e9,
        "host": "host-a",
        "rank": 0,
        "step": None,
        **as_values(changed(HOST_SAMPLED, seconds_s=1.0)),
    }
    with (run / "events" / "log.jsonl").open("a") as events:
        events.write(json.dumps(later) + "\n")
    facts = read_facts(run, now=whole.lives[-1].ended + 80)
    assert facts.unrecorded_s == pytest.approx(77)
    rows = {row.name: row.value for row in judge(facts)[0].evidence}
    assert rows["idle"] == pytest.approx(0, abs=1e-6)
    assert rows["since the last interval, not recorded"] == pytest.approx(77)
    assert rows["train"] == pytest.approx(411)


@pytest.mark.parametrize(("later_s", "is_dead"), [(5, False), (86_400, True)])
def test_a_record_without_an_end_is_said_to_lack_it(
    later_s: float, is_dead: bool, tmp_path: Path
) -> None:
    run = replace(SHORT, reason=None).write(tmp_path / "run")
    facts = read_facts(run, now=read_facts(run).lives[-1].ended + later_s)
    assert ("after its last interval is missing" in judge(facts)[0].says) is is_dead


def test_a_log_that_names_no_hosts_is_judged(tmp_path: Path) -> None:
    run = replace(SHORT, started_changes={"hosts": ()}).write(tmp_path / "run")
    paused = event(RankPaused(paused_rank=1, seconds_s=9.0, during="sync", own=False), step=1000)
    with (run / "events" / "log.jsonl").open("ab") as log:
        log.write(as_line(paused))
    facts = read_facts(run)
    assert facts.pauses[0].name == "rank 1 on unknown"
    assert _answers(facts)["processors"] == "cannot tell"


@pytest.mark.parametrize("steps", [0, 1000])
def test_a_rank_without_an_interval_that_stood_still_is_named(steps: int, tmp_path: Path) -> None:
    """The first interval is not there yet, or the run went on with more ranks."""
    run = replace(SHORT, steps=steps, reason=None).write(tmp_path / "run")
    paused = event(RankPaused(paused_rank=3, seconds_s=9.0, during="forward", own=False), step=1)
    with (run / "events" / "log.jsonl").open("ab") as log:
        log.write(as_line(paused))
    facts = read_facts(run)
    assert [pause.rank for pause in facts.pauses] == [3]
    assert Report.of(facts).write(tmp_path / "report")


def test_a_run_that_failed_before_it_began_says_why(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(dump_toml(load_recipe("demo", [])))
    with pytest.raises(CheckpointError), training_session(tmp_path):
        raise CheckpointError("is broken", place="x", remedy="mend it")
    facts = read_facts(tmp_path)
    assert (facts.state, facts.has_ended, facts.problems) == ("failed", True, ())
    assert "x: is broken" in str(faults(facts))


def test_a_run_under_way_shows_the_time_and_the_money_that_are_left(tmp_path: Path) -> None:
    run = replace(SHORT, max_steps=3000, reason=None).write(tmp_path / "run")
    ended = read_facts(run).lives[-1].ended
    facts = read_facts(run, price=HourlyPrice(amount=3.6, currency="USD"), now=ended + 5)
    # 2,000 steps of 0.411 s, each with its part of the five validations with their checkpoints
    # since the first step; five seconds have gone
    assert measures.left_s(facts) == pytest.approx(2000 * (0.411 + 5 * 10.5 / 1000) - 5)
    duration, *_, cost = judge(facts)
    assert "At this speed 15 min 22 s are left." in duration.says
    # two machines at 3.6 USD an hour
    assert cost.says.endswith("0.95 USD so far; 2.79 USD when it is done.")
    assert measures.left_s(read_facts(run, now=ended + 3600)) is None


def test_whether_it_still_runs(tmp_path: Path) -> None:
    run = replace(SHORT, reason=None).write(tmp_path / "run")
    ended = read_facts(run).lives[-1].ended
    assert not read_facts(run, now=ended + 300).is_silent
    assert read_facts(run, now=ended + 3600).is_silent
    assert ended > START


def test_the_time_between_two_lives_makes_nobody_wait_longer_for_a_dead_run(tmp_path: Path) -> None:
    run = replace(SHORT, resume_at=(400, 400), reason=None).write(tmp_path / "run")
    ended = read_facts(run).lives[-1].ended
    assert read_facts(run, now=ended + 300).is_running
    assert read_facts(run, now=ended + 3600).is_silent


@pytest.mark.parametrize(
    ("session", "state", "says"),
    [
        ({"state": "failed", "problem": "the GPU is lost"}, "failed", "It failed after"),
        ({"state": "stopped"}, "stopped", "It was ended after"),
        ({"state": "running"}, "killed", "It was killed after"),  # nobody holds its lock
        ({"state": "running", "machine": "another"}, "running", "So far it took"),
        # It ended before it recorded a start: what is recorded is of a command before it.
        ({"state": "stopped", "started": START + 9000}, "stopped", "It was ended after"),
    ],
)
def test_a_crash_is_reported_at_once_if_its_command_has_ended(
    session: dict[str, Any], state: str, says: str, tmp_path: Path
) -> None:
    run = Recorded(steps=1000, reason=None).write(tmp_path / "run")
    known = {"pid": 1, "machine": socket.gethostname(), "started": START - 1.0}
    (run / "session.json").write_text(json.dumps(known | session))
    soon = read_facts(run).lives[-1].ended + 60.0
    facts = read_facts(run, now=soon)
    assert facts.state == state
    assert facts.is_running == (state == "running")
    duration = next(one for one in judge(facts) if one.key == "duration")
    assert duration.says.startswith(says)
    expected = session["state"] == "failed" and state == "failed"
    page = Report.of(facts).write(tmp_path / "report")[0].read_text()
    assert ("the GPU is lost" in page) == expected
