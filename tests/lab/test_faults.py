"""What happens to a run over hosts when something breaks, and how long until it goes on.

`pytest -rP` shows the measured times.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable
from functools import partial

import pytest

from dragoman.telemetry.events import Event, read_events
from lab.desk import ENDLESS, OFTEN_SAVED, Desk, nothing_left, stop, wait_until, workers

NUM_KILLS = 20
KILLED_RUN = ("--set", "train.max_steps=3000", "--set", "checkpoint.every_steps=20")
STRATEGIES = {
    "sync": (),
    "accum": (
        *("--set", "distributed.strategy=accum"),
        *("--set", "distributed.accum.every=2"),
    ),
    "diloco": (
        *("--set", "distributed.strategy=diloco"),
        *("--set", "distributed.diloco.every=3"),
        *("--set", "distributed.diloco.fragments=3"),
        *("--set", "distributed.diloco.delay=1"),
        *("--set", "distributed.diloco.wire=fp4"),
    ),
}
"""What a break must not matter to; `diloco` is as `auto` takes it behind a slow link, where a
fragment is always on its way."""
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def saved(desk: Desk) -> bool:
    """Whether a checkpoint has come to the desk."""
    return any(desk.folder.glob("runs/*/checkpoints/step-*/digests.json"))


def trained_until(desk: Desk) -> int:
    """The last step that is told of."""
    return desk.events("train_interval")[-1].step or 0


def goes_on(desk: Desk, *, ranks: int, since: float, starts: int = 2) -> float:
    """Wait until it trains on so many ranks, from a checkpoint; seconds since then."""
    wait_until(lambda: len(desk.events("run_started")) >= starts)
    again = desk.events("run_started")[starts - 1]
    assert again.payload["world_size"] == ranks
    assert again.payload["resumed_from_step"] > 0
    wait_until(lambda: desk.events("train_interval")[-1].time > again.time)
    seen = [event for event in desk.events("train_interval") if event.time > again.time]
    taken_s = seen[0].time - since
    print(f"trains again after {taken_s:.0f} s")
    return taken_s


def alerts(desk: Desk, severity: str) -> list[Event]:
    """Those of one severity; that a lab's network is slow is a warning."""
    return [event for event in desk.events("alert") if event.payload["severity"] == severity]


def what_broke(desk: Desk) -> str:
    """The cause that the first alert names, unless it is about the speed."""
    alert = alerts(desk, "error")[0]
    assert alert.payload["remedy"].startswith("training goes on from step-")
    return str(alert.payload["cause"])


@every_strategy
def test_a_worker_is_killed(desk: Desk, strategy: str) -> None:
    training = desk.train(*OFTEN_SAVED, *STRATEGIES[strategy])
    wait_until(lambda: saved(desk))
    beta = desk.lab.host("beta")
    beta.run(["kill", "-9", *map(str, workers(beta))])
    goes_on(desk, ranks=3, since=time.time())
    assert what_broke(desk).startswith("beta: ")
    stop(desk, training)
    nothing_left(desk)


@pytest.mark.parametrize(("dead", "left", "ranks"), [("beta", "alpha", 2), ("alpha", "beta", 1)])
@every_strategy
def test_a_host_dies(desk: Desk, strategy: str, dead: str, left: str, ranks: int) -> None:
    training = desk.train(*OFTEN_SAVED, *STRATEGIES[strategy])
    wait_until(lambda: saved(desk))
    desk.lab.host(dead).power_off()
    goes_on(desk, ranks=ranks, since=time.time())
    assert what_broke(desk).startswith(f"{dead}: the connection was lost")
    assert desk.events("run_started")[1].host == left
    stop(desk, training)
    nothing_left(desk, [desk.lab.host(left)])


def test_a_cut_of_ten_seconds_is_waited_out(desk: Desk) -> None:
    training = desk.train(*OFTEN_SAVED)
    wait_until(desk.trains)
    beta = desk.lab.host("beta")
    beta.plug(plugged=False)
    time.sleep(10)
    cut_at = trained_until(desk)
    beta.plug(plugged=True)
    back = time.time()
    wait_until(lambda: trained_until(desk) > cut_at, limit_s=60)
    print(f"trains again {time.time() - back:.0f} s after the cut")
    assert alerts(desk, "error") == []
    assert len(desk.events("run_started")) == 1
    stop(desk, training)


@pytest.mark.parametrize("verb", ["send", "-c"], ids=["sends nothing", "takes nothing"])
def test_a_host_that_stops_during_a_transfer_is_named(desk: Desk, verb: str) -> None:
    """Its sshd answers all the time. What it has not sent is still there for a resume."""
    alpha, hosts = desk.lab.host("alpha"), desk.folder / "hosts.toml"
    wrapper = alpha.home / "python"
    still = f'case " $* " in *" {verb} "*) test -e {alpha.home}/well || exec sleep 600;; esac'
    wrapper.write_text(f'#!/bin/sh\n{still}\nexec "{sys.executable}" "$@"\n')
    wrapper.chmod(0o755)
    text = hosts.read_text().replace(f'python = "{sys.executable}"', f'python = "{wrapper}"')
    hosts.write_text(text.replace("[defaults]", "[defaults]\nsilence_s = 5"))
    began = time.monotonic()
    training = desk.run("train", "small.toml", "--hosts", "hosts.toml")
    print(f"given up after {time.monotonic() - began:.0f} s")
    said = " ".join((training.stdout + training.stderr).split())
    assert "hardly a byte has passed for 5 s" in said
    assert "see whether its disk, its network or a program there stands still" in said
    assert "Traceback" not in said
    if verb == "send":
        assert "not everything came back: alpha: hardly a byte has passed" in said
        (alpha.home / "well").touch()
        resumed = desk.run("resume", str(desk.run_directory()))
        assert resumed.returncode == 0, resumed.stderr
        assert saved(desk)
    else:
        assert training.returncode == 1
        assert training.stderr.count("\n") == 1


def test_a_network_that_dies_behind_a_shared_connection_is_named(desk: Desk) -> None:
    """The desk's own ssh to the host lives on, and does not know it yet."""
    training = desk.train("--set", "train.max_steps=100000", *OFTEN_SAVED[2:])
    wait_until(lambda: saved(desk))
    for name in ("alpha", "beta"):
        desk.lab.host(name).run(["ip", "link", "set", "eth0", "down"])
    since = time.time()
    wait_until(lambda: bool(alerts(desk, "error")), limit_s=120)
    print(f"noticed after {time.time() - since:.0f} s")
    assert "the connection was lost" in what_broke(desk)
    began = time.monotonic()
    desk.signal("INT")
    _, complaint = training.communicate(timeout=120)
    print(f"ended {time.monotonic() - began:.0f} s after Ctrl-C")
    assert training.returncode == 130, complaint
    assert "Traceback" not in complaint
    assert "cannot log in" not in complaint


@pytest.mark.parametrize(("cut", "ranks"), [("beta", 2), ("alpha", 1)])
def test_a_host_that_was_cut_off_for_a_minute_rejoins(desk: Desk, cut: str, ranks: int) -> None:
    training = desk.train(*OFTEN_SAVED)
    wait_until(lambda: saved(desk))
    host = desk.lab.host(cut)
    host.plug(plugged=False)
    since = time.time()
    goes_on(desk, ranks=ranks, since=since)
    time.sleep(max(0.0, since + 60 - time.time()))
    alone = trained_until(desk)
    host.plug(plugged=True)
    goes_on(desk, ranks=3, since=time.time(), starts=3)
    assert what_broke(desk).startswith(f"{cut}: the connection was lost")
    news = [event.payload["cause"] for event in alerts(desk, "info")]
    assert f"{cut}: answers again" in news
    # What was trained without it is not lost, also where it is the host that saves.
    assert desk.events("run_started")[2].payload["resumed_from_step"] >= alone - 20
    assert desk.events("run_started", rank=0)[2].host == "alpha"
    stop(desk, training)
    nothing_left(desk)


def test_a_host_is_added(desk: Desk) -> None:
    both = (desk.folder / "hosts.toml").read_text()
    (desk.folder / "both.toml").write_text(both)
    (desk.folder / "hosts.toml").write_text(both[: both.rindex("[[host]]")])
    training = desk.train(*OFTEN_SAVED)
    wait_until(lambda: saved(desk))
    since = time.time()
    stop(desk, training)
    larger = desk.start("train", str(desk.run_directory()), "--hosts", "both.toml")
    goes_on(desk, ranks=3, since=since)
    stop(desk, larger)
    nothing_left(desk)


def test_a_rank_that_stands_still_is_named_and_replaced(desk: Desk) -> None:
    training = desk.train(*OFTEN_SAVED)
    wait_until(lambda: saved(desk))
    beta = desk.lab.host("beta")
    beta.run(["kill", "-STOP", *map(str, workers(beta))])
    goes_on(desk, ranks=3, since=time.time())
    assert what_broke(desk).startswith("beta: ")
    assert "rank 2 gave no sign of life" in what_broke(desk)
    stop(desk, training)
    nothing_left(desk)


@pytest.mark.parametrize("full", ["alpha", "beta"])
def test_a_full_disk_ends_it_with_the_name_of_the_host(desk: Desk, full: str) -> None:
    """Alpha saves checkpoints there, beta events only."""
    host = desk.lab.host(full)
    small = host.home / ".dragoman"
    small.mkdir()
    host.mount("-t", "tmpfs", "-o", "size=400m", "lab-small", small)
    training = desk.train(*OFTEN_SAVED)
    wait_until(lambda: saved(desk))
    host.run(["dd", "if=/dev/zero", f"of={small}/much", "bs=1M"], check=False)
    since = time.time()
    _, complaint = training.communicate(timeout=300)
    print(f"ended {time.time() - since:.0f} s after the disk was full")
    assert training.returncode == 1
    assert complaint.startswith(f"dragoman: {full}: ")
    assert "free disk space" in complaint
    assert saved(desk)
    nothing_left(desk)
    host.run(["rm", f"{small}/much"])
    resumed = desk.start("resume", str(desk.run_directory()))
    goes_on(desk, ranks=3, since=since)
    stop(desk, resumed)


def test_the_line_to_the_controller_is_cut(desk: Desk) -> None:
    training = desk.train(*ENDLESS)
    wait_until(desk.trains)
    desk.lab.desk.plug(plugged=False)
    nothing_left(desk)
    assert training.poll() is None
    desk.lab.desk.plug(plugged=True)
    goes_on(desk, ranks=3, since=time.time())
    stop(desk, training)
    nothing_left(desk)


def has_saved(desk: Desk, start: int) -> bool:
    """Whether a checkpoint was written since the training started for this time, from 0."""
    starts = desk.events("run_started")
    saves = desk.events("checkpoint_written")
    return len(starts) > start and bool(saves) and saves[-1].time > starts[start].time


def has_started(desk: Desk, times: int) -> bool:
    """Whether the training has started more often than this."""
    return len(desk.events("run_started")) > times


def newest_events(desk: Desk) -> list[Event]:
    """What rank 0 of the newest run has told."""
    run = max((desk.folder / "runs").iterdir())
    return list(read_events(run / "events" / "rank-0000.jsonl"))


def consumed(events: Iterable[Event]) -> tuple[int, float]:
    """Pairs that the weights at the end have seen, and the loss over the last hundred steps.

    What was trained after a checkpoint that the run went back to is not in the weights.
    """
    intervals: list[Event] = []
    for event in events:
        if event.kind == "run_started":
            start = event.payload["resumed_from_step"] or 0
            intervals = [one for one in intervals if (one.step or 0) <= start]
        elif event.kind == "train_interval":
            intervals.append(event)
    assert sum(one.payload["steps"] for one in intervals) == intervals[-1].step == 3000
    last = [one.payload["train_loss"] for one in intervals[-20:]]
    return sum(one.payload["pairs"] for one in intervals), sum(last) / len(last)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("strategy", ["sync", "diloco"])
def test_twenty_random_kills_change_neither_samples_nor_loss(desk: Desk, strategy: str) -> None:
    rng = random.Random(20)
    settings = (*KILLED_RUN, *STRATEGIES[strategy])
    training = desk.train(*settings)
    for number in range(NUM_KILLS):
        wait_until(partial(has_saved, desk, number), limit_s=600)
        time.sleep(rng.uniform(0.0, 0.5))
        host = rng.choice(desk.lab.hosts)
        host.run(["kill", "-9", str(rng.choice(workers(host)))], check=False)
        since = time.time()
        wait_until(partial(has_started, desk, number + 1), limit_s=600)
        print(f"kill {number + 1} on {host.name}: starts again after {time.time() - since:.0f} s")
    _, complaint = training.communicate(timeout=900)
    assert training.returncode == 0, complaint
    killed = newest_events(desk)
    assert sum(event.kind == "run_started" for event in killed) == NUM_KILLS + 1
    calm = desk.train("--fresh", *settings)
    _, complaint = calm.communicate(timeout=900)
    assert calm.returncode == 0, complaint
    pairs, loss = consumed(killed)
    calm_pairs, calm_loss = consumed(newest_events(desk))
    print(f"{pairs} pairs, loss {loss:.4f}; undisturbed {calm_pairs} pairs, loss {calm_loss:.4f}")
    assert pairs == calm_pairs
    assert loss == pytest.approx(calm_loss, rel=0.02)
