"""The screen fits, says what is so, and never ends in a traceback, whatever it is given."""

from __future__ import annotations

import json
import math
import os
import random
from dataclasses import replace
from pathlib import Path
from socket import gethostname

import numpy as np
import pytest
from rich.text import Text

from dragoman.api.records import watch
from dragoman.base.errors import CheckpointError
from dragoman.recipe.recipe import dump_toml, load_recipe
from dragoman.reporting.plots import STEPS
from dragoman.reporting.svg import Axis, LinePlot, Series
from dragoman.telemetry.events import (
    Alert,
    ClockRead,
    DeviceMeasured,
    GpuSampled,
    LinkMeasured,
    NetworkSampled,
    Payload,
)
from dragoman.telemetry.host import HourlyPrice
from dragoman.telemetry.session import Session
from dragoman.watch.live import Now, open_run, some_runs
from dragoman.watch.screen import bar, chart, host_cells, screen, spark
from example_events import HOST_SAMPLED as HOST
from example_events import changed
from recorded_runs import Recorded, read_ranks, write_ranks

PRICE = HourlyPrice(amount=3.0, currency="USD")
NETWORK = NetworkSampled(
    interface="eth0",
    seconds_s=10.0,
    sent_bytes=1_090_000_000,
    received_bytes=1_080_000_000,
    sent_packets=10**6,
    received_packets=10**6,
    most_sent_bytes_per_s=2.1e8,
    errors=0,
    nominal_bits_per_s=1e9,
    carrier_changes=0,
)
GPU = GpuSampled(
    gpu=0,
    name="Tesla V100-PCIE-16GB",
    seconds_s=10.0,
    utilisation_share=1.0,
    sm_activity_share=None,
    power_w=43.0,
    power_limit_w=250.0,
    memory_bytes=10**10,
    memory_limit_bytes=16 * 10**9,
    clock_hz=1.38e9,
    throttle_reasons="",
    ecc_errors=0,
)
LINK = LinkMeasured(
    interface="eth0", peer="host-b", bytes_per_s=2.18e8, latency_s=3e-4, method="test"
)


def _recorded(hosts: int = 2, **changes: object) -> Recorded:
    extra = [(rank, one) for rank in range(hosts) for one in (HOST, NETWORK, GPU)]
    run = Recorded(
        steps=4300,
        reason=None,
        world_size=hosts,
        compute_s=(0.4,) * hosts,
        sync_s=(0.2,) * hosts,
        extra=[*extra, (0, LINK)],
    )
    return replace(run, **changes)  # type: ignore[arg-type]


def _now(directory: Path) -> Now:
    run = open_run(directory, price=PRICE)
    run.look()
    now = run.now()
    run.close()
    return now


def _plain(lines: list[Text]) -> str:
    return "\n".join(line.plain for line in lines)


def test_all_that_was_asked_for_is_on_a_small_terminal(tmp_path: Path) -> None:
    now = _now(_recorded().write(tmp_path / "run"))
    text = _plain(screen(now, width=80, height=24))
    for part in (
        "4,300 of 8,000 steps",
        "USD spent",
        "loss  training  dev",
        "BLEU",
        "learning rate",
        "601.0 ms/step = 1.664 step/s",
        "padding 5.0%",
        "data 0.2%",
        "compute 63.2%",
        "optimizer 3.3%",
        "network 33.3%",
        "host-a",
        "host-b",
        "109 MB/s",
        "50.0%",  # of the link that was measured from host-a
        "43 W",
        "87.0%",
    ):
        assert part in text
    starved = _recorded(sync_s=(2.3, 2.3), extra=[(0, changed(LINK, bytes_per_s=12e6))])
    slow = _now(starved.write(tmp_path / "starved"))
    assert "! Was the network the bottleneck?" in _plain(screen(slow, width=80, height=24))


@pytest.mark.parametrize("hosts", [1, 2, 8])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (100, 30), (40, 12), (20, 5)])
def test_the_screen_fits_its_width_and_height(
    hosts: int, width: int, height: int, tmp_path: Path
) -> None:
    now = _now(_recorded(hosts).write(tmp_path / "run"))
    lines = screen(now, width=width, height=height)
    assert len(lines) <= height
    assert max(line.cell_len for line in lines) <= width
    if hosts == 8 and (width, height) == (80, 24):
        assert all(f"host-{rank}" in _plain(lines) for rank in range(2, 8))


def test_a_screen_for_a_file_is_one_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watch(Recorded().write(tmp_path / "run"), once=True)
    lines = capsys.readouterr().out.splitlines()
    assert 10 <= len(lines) <= 40
    assert max(map(len, lines)) <= 100


def test_a_running_run_shows_its_time_left_and_its_cost(tmp_path: Path) -> None:
    directory = _recorded().write(tmp_path / "run")
    run = open_run(directory, price=PRICE)
    run.look()
    facts = replace(run.now().facts, read_at=run.now().facts.lives[-1].ended + 5)
    text = _plain(screen(replace(run.now(), facts=facts), width=100, height=30))
    assert "running" in text
    # 3,700 steps of 0.601 s, each with its part of the four validations of 10.5 s so far
    assert "37 min 40 s left" in text
    assert "USD of" in text


def test_a_run_with_a_budget_shows_the_share_of_its_time(tmp_path: Path) -> None:
    read: list[tuple[int, Payload]] = [(0, ClockRead(progress=0.25, left_s=300.0))]
    run = open_run(_recorded(extra=read).write(tmp_path / "run"), price=PRICE)
    run.look()
    facts = replace(run.now().facts, read_at=run.now().facts.lives[-1].ended + 5)
    text = _plain(screen(replace(run.now(), facts=facts), width=100, height=30))
    assert "25.0% of the time, step 4,300" in text


def test_waiting_for_ranks_is_not_called_the_network(tmp_path: Path) -> None:
    straggler = _recorded(compute_s=(0.4, 0.6), sync_s=(0.25, 0.05))
    phases = _now(straggler.write(tmp_path / "straggler")).phases
    assert phases["network"] == pytest.approx(0.05 / 0.651)
    assert phases["ranks"] == pytest.approx(0.10 / 0.651)
    assert sum(phases.values()) == pytest.approx(1.0)
    shared = _recorded(one_host=True, extra=[(0, HOST)])  # which its first rank samples
    one_host = _now(shared.write(tmp_path / "one_host"))
    assert "network" not in one_host.phases
    assert "ranks 33.3%" in _plain(screen(one_host, width=80, height=24))
    alone = Recorded(world_size=1, compute_s=(0.4,), sync_s=(0.0,))
    assert set(_now(alone.write(tmp_path / "alone")).phases) == {"data", "compute", "optimizer"}


def test_waiting_for_ranks_that_are_late_in_turn_is_not_called_the_network(tmp_path: Path) -> None:
    in_turn = Recorded(sync_s=(0.3, 0.3), late_in_turn_s=0.29)
    phases = _now(in_turn.write(tmp_path / "in_turn")).phases
    assert phases["network"] == pytest.approx(0.01 / 0.701)
    assert phases["ranks"] == pytest.approx(0.29 / 0.701)


def test_each_host_has_its_own_share_of_useful_flops(tmp_path: Path) -> None:
    fast, slow = (
        DeviceMeasured(device="cpu", matrix_flop_per_s=rate, alone_tokens_per_s=None, method="test")
        for rate in (4e12, 2e12)
    )
    run = _recorded()
    directory = replace(run, extra=[*run.extra, (0, fast), (1, slow)]).write(tmp_path / "run")
    (directory / "recipe.toml").write_text(dump_toml(load_recipe("demo")))
    now = _now(directory)
    one, two = (float(host_cells(now, host)["useful FLOPs"].rstrip("%")) for host in now.hosts)
    assert two == pytest.approx(2 * one, abs=0.2)
    assert "useful FLOPs" in _plain(screen(now, width=120, height=30))


def test_hosts_and_ranks_of_an_earlier_life_are_not_shown(tmp_path: Path) -> None:
    run = _recorded(3, compute_s=(0.4, 0.4, 0.1), resume_at=(4000, 4000))
    directory = run.write(tmp_path / "run")
    ranks = read_ranks(directory)
    for rank, events in enumerate(ranks):  # the third is lost, the second goes on elsewhere
        again = [place for place, one in enumerate(events) if one["kind"] == "run_started"][1]
        second = [] if rank == 2 else events[again:]
        for event in second:
            event["host"] = ("host-a", "host-new")[rank]
        if second:
            second[0]["world_size"] = 2
        ranks[rank] = [*events[:again], *second]
    write_ranks(directory, ranks)
    now = _now(directory)
    assert [host.name for host in now.hosts] == ["host-a", "host-new"]
    assert now.phases["compute"] == pytest.approx(0.4 * 0.95 / 0.601)


def test_a_run_that_has_not_started(tmp_path: Path) -> None:
    text = _plain(screen(_now(tmp_path), width=80, height=24))
    assert "not started" in text
    assert "no events yet" in text


def test_a_run_with_only_a_recipe_has_no_steps_done(tmp_path: Path) -> None:
    demo = load_recipe("demo")
    (tmp_path / "recipe.toml").write_text(dump_toml(demo))
    drawn = _plain(screen(_now(tmp_path), width=80, height=24))
    assert f"0 of {demo.train.max_steps:,} steps" in drawn


def test_a_run_that_ended(tmp_path: Path) -> None:
    now = _now(_recorded(steps=8000, reason="max_steps").write(tmp_path / "run"))
    text = _plain(screen(now, width=80, height=24))
    assert "finished" in text.splitlines()[0]
    assert "left, done" not in text


def test_a_run_that_crashed(tmp_path: Path) -> None:
    text = _plain(screen(_now(_recorded().write(tmp_path / "run")), width=80, height=24))
    assert "silent: crashed, killed or cut off" in text
    assert "last heard of at" in text


def test_a_file_is_followed_while_it_is_written(tmp_path: Path) -> None:
    directory = _recorded().write(tmp_path / "run")
    path = directory / "events" / "log.jsonl"
    whole = path.read_bytes()
    path.write_bytes(b"")
    run, chance, at, seen = open_run(directory), random.Random(1), 0, []
    while at < len(whole):
        length = chance.randrange(1, 40_000)
        with path.open("ab") as file:
            file.write(whole[at : at + length])
        at += length
        run.look()
        seen.append(run.now().facts.last_step)
        assert screen(run.now(), width=80, height=24)
    assert seen == sorted(seen)
    followed = run.now().facts.intervals
    for name, values in _now(directory).facts.intervals.values.items():
        assert np.array_equal(followed[name], values, equal_nan=True), name
    assert not run.look()


def test_alerts_come_first_and_stay_one_line(tmp_path: Path) -> None:
    alert = Alert(severity="warning", cause="two\nlines", remedy="")
    run = _recorded()
    directory = replace(run, extra=[*run.extra, (0, alert)]).write(tmp_path / "run")
    lines = [line.plain for line in screen(_now(directory), width=80, height=24)]
    assert any(line.startswith("! step 4,300: two lines") for line in lines)
    assert lines[-1].startswith("  and ")


@pytest.mark.parametrize("words", [25, 60])
@pytest.mark.parametrize("height", [24, 40])
def test_an_alert_keeps_its_begin_and_its_end(height: int, words: int, tmp_path: Path) -> None:
    alert = Alert(severity="warning", cause="slow " * words, remedy="look at " + "it " * 20)
    run = replace(_recorded(), extra=[*_recorded().extra, (0, alert)])
    now = _now(run.write(tmp_path / "run"))
    lines = [line.plain for line in screen(now, width=80, height=height)]
    begin = next(n for n, line in enumerate(lines) if line.startswith("! step 4,300: slow"))
    end = next(n for n, line in enumerate(lines) if n > begin and line.endswith(" it it it"))
    assert "look at it it" in lines[end]
    assert end - begin < height // 12
    assert max(map(len, lines)) <= 80
    low = [line.plain for line in screen(now, width=80, height=12)]
    assert any(line.startswith("! step 4,300: slow") for line in low)


@pytest.mark.parametrize("last", ["warning", "info"])
def test_of_alerts_about_one_state_only_the_last_stands(last: str, tmp_path: Path) -> None:
    run = _recorded()
    alerts = [
        (0, Alert(severity=severity, cause=f"slow {number}", remedy="", about="slow steps"))
        for number, severity in enumerate(("warning", "warning", last))
    ]
    now = _now(replace(run, extra=[*run.extra, *alerts]).write(tmp_path / "run"))
    shown = [text for text in now.alerts if "slow " in text]
    assert shown == (["step 4,300: slow 2"] if last == "warning" else [])


def test_old_warnings_and_good_news_are_no_alerts(tmp_path: Path) -> None:
    slow = Recorded(steps=8000, max_steps=9000, reason=None, sync_s=(0.4, 0.4))
    run = slow.write(tmp_path / "run")
    path = run / "events" / "log.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for place, severity in ((20, "warning"), (-1, "warning"), (-1, "info")):
        said = {
            "kind": "alert",
            "cause": f"{severity} at {place}",
            "severity": severity,
            "remedy": "",
        }
        near = {name: lines[place][name] for name in ("v", "time", "mono_s", "host", "rank")}
        lines.insert(len(lines) if place < 0 else place + 1, near | said | {"step": 1})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    now = _now(run)
    assert len(now.facts.alerts) == 3
    assert [text for text in now.alerts if " at " in text] == ["step 1: warning at -1"]


def test_a_redraw_does_not_judge_the_whole_run_anew(tmp_path: Path) -> None:
    directory = _recorded().write(tmp_path / "run")
    path = directory / "events" / "log.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:-8]))
    run = open_run(directory)
    run.look()
    first = run.now()
    # The last eight lines are an interval, and what is sampled after it.
    news = []
    for line in (whole[-7], whole[-8]):
        with path.open("ab") as file:
            file.write(line)
        assert run.look()
        news.append(run.now().facts.intervals is not first.facts.intervals)
    assert news == [False, True], "only the interval"
    assert run.now().hosts[0].machine != {}
    (directory / "session.json").write_text(
        Session(
            pid=1, machine=gethostname(), started=0, state="failed", problem="no disk"
        ).model_dump_json()
    )
    assert run.now().alerts[0] == "no disk", "how it ended is looked up each time"
    run.close()


def test_hosts_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    many = _now(_recorded(8).write(tmp_path / "many"))
    shown = _plain(screen(many, width=80, height=14))
    hidden = 8 - shown.count("host-")
    assert f"and {hidden} more hosts" in shown
    one = Recorded(world_size=1, compute_s=(0.4,), sync_s=(0.0,))
    single = _now(replace(one, extra=[(0, HOST)]).write(tmp_path / "one"))
    heights = {height: _plain(screen(single, width=80, height=height)) for height in range(7, 24)}
    assert any("and 1 host" in text for text in heights.values())
    assert not any("hosts" in text for text in heights.values())


def test_the_newest_run_is_watched_if_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no run here yet"):
        some_runs(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.toml").write_text("")
    os.utime(tmp_path / "one" / "recipe.toml", (1, 1))
    (tmp_path / "one" / "report").mkdir()  # a later look at an old run starts nothing
    assert some_runs(tmp_path)[0] == tmp_path / "two"
    (tmp_path / "opus").mkdir()  # an imported model beside the runs is none
    for name in ("recipe.toml", "bundle.json"):
        (tmp_path / "opus" / name).write_text("")
    assert some_runs(tmp_path)[0] == tmp_path / "two"
    with pytest.raises(CheckpointError, match="there is no such run directory"):
        open_run(tmp_path / "three")


def test_a_chart_shows_where_the_curve_is() -> None:
    rising = Series("one", [(n, n * n) for n in range(50)])
    plot = LinePlot([rising], STEPS, Axis("squares", "{:.0f}".format))
    lines = chart(plot, ["red"], width=40, height=10)
    assert [len(line.plain) <= 40 for line in lines] == [True] * 10
    assert lines[0].plain == "squares"
    assert lines[1].plain.startswith("2401 ")
    assert lines[-1].plain.startswith("   0 ⣀")
    assert lines[1].plain.rstrip()[-1] != " "


@pytest.mark.parametrize("points", [[], [(1.0, 2.0)], [(1.0, 2.0), (2.0, 2.0)], [(1.0, math.nan)]])
def test_a_chart_of_nearly_nothing(points: list[tuple[float, float]]) -> None:
    plot = LinePlot([Series("a", points)], STEPS, Axis("loss", "{:.1f}".format))
    lines = chart(plot, ["red"], width=30, height=6)
    assert len(lines) == 6


def test_bars_and_sparks() -> None:
    assert bar([(0.5, "red"), (0.25, "blue")], width=8).plain == "██████░░"
    assert bar([(2.0, "red")], width=4).plain == "████"
    assert spark([0, 1, 2, 4], width=6) == "   ▂▄█"
    assert spark([0, 0], width=3) == "   "
    assert spark([5, 9], width=2, most=4) == "██"
