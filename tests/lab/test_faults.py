"""A run over hosts when something breaks: the result, and the time until it resumes.

`pytest -rP` shows the measured times.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterable
from functools import partial

import pytest

from dragoman.telemetry.events import Event, read_events
from lab.controller import ENDLESS, OFTEN_SAVED, Controller, nothing_left, stop, wait_until, workers
from lab.laboratory import INTERFACE

NUM_KILLS = 20
RSYNC = shutil.which("rsync") or ""
KILLED_RUN = ("--set", "train.max_steps=3000", "--set", "checkpoint.every_steps=20")
STRATEGIES = {
    "sync": (),
    "diloco": (
        *("--set", "distributed.strategy=diloco"),
        *("--set", "distributed.diloco.every=3"),
        *("--set", "distributed.diloco.fragments=3"),
        *("--set", "distributed.diloco.delay=1"),
        *("--set", "distributed.diloco.wire=fp4"),
    ),
}
"""Strategies that must survive a break; `diloco` has the settings that `auto` chooses for a slow
link, on which a fragment is always on its way."""
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def saved(controller: Controller) -> bool:
    """Whether a checkpoint has come to the controller."""
    return any(controller.folder.glob("runs/*/checkpoints/step-*/digests.json"))


def trained_until(controller: Controller) -> int:
    """The last step that was reported."""
    return controller.events("train_interval")[-1].step or 0


def goes_on(controller: Controller, *, ranks: int, since: float, starts: int = 2) -> float:
    """Wait until it trains on so many ranks, from a checkpoint; returns the seconds until then."""
    wait_until(lambda: len(controller.events("run_started")) >= starts)
    again = controller.events("run_started")[starts - 1]
    assert again.payload["world_size"] == ranks
    assert again.payload["resumed_from_step"] > 0
    wait_until(lambda: controller.events("train_interval")[-1].time > again.time)
    seen = [event for event in controller.events("train_interval") if event.time > again.time]
    taken_s = seen[0].time - since
    print(f"trains again after {taken_s:.0f} s")
    return taken_s


def alerts(controller: Controller, severity: str) -> list[Event]:
    """Alerts of one severity; a slow network of the lab is a warning."""
    return [event for event in controller.events("alert") if event.payload["severity"] == severity]


def what_broke(controller: Controller) -> str:
    """The cause that the first alert names, unless it is about the speed."""
    alert = alerts(controller, "error")[0]
    assert alert.payload["remedy"].startswith("training goes on from step-")
    return str(alert.payload["cause"])


@every_strategy
def test_a_worker_is_killed(controller: Controller, strategy: str) -> None:
    training = controller.train(*OFTEN_SAVED, *STRATEGIES[strategy])
    wait_until(lambda: saved(controller))
    beta = controller.lab.host("beta")
    beta.run(["kill", "-9", *map(str, workers(beta))])
    goes_on(controller, ranks=3, since=time.time())
    assert what_broke(controller).startswith("beta: ")
    stop(controller, training)
    nothing_left(controller)


@pytest.mark.parametrize(("dead", "left", "ranks"), [("beta", "alpha", 2), ("alpha", "beta", 1)])
@every_strategy
def test_a_host_dies(
    controller: Controller, strategy: str, dead: str, left: str, ranks: int
) -> None:
    training = controller.train(*OFTEN_SAVED, *STRATEGIES[strategy])
    wait_until(lambda: saved(controller))
    controller.lab.host(dead).power_off()
    goes_on(controller, ranks=ranks, since=time.time())
    assert what_broke(controller).startswith(f"{dead}: the connection was lost")
    assert controller.events("run_started")[1].host == left
    stop(controller, training)
    nothing_left(controller, [controller.lab.host(left)])


def test_a_cut_of_ten_seconds_is_waited_out(controller: Controller) -> None:
    training = controller.train(*OFTEN_SAVED)
    wait_until(controller.trains)
    beta = controller.lab.host("beta")
    beta.plug(plugged=False)
    time.sleep(10)
    cut_at = trained_until(controller)
    beta.plug(plugged=True)
    back = time.time()
    wait_until(lambda: trained_until(controller) > cut_at, limit_s=60)
    print(f"trains again {time.time() - back:.0f} s after the cut")
    assert alerts(controller, "error") == []
    assert len(controller.events("run_started")) == 1
    stop(controller, training)


def test_the_first_host_names_its_own_cable(controller: Controller) -> None:
    training = controller.train(*OFTEN_SAVED)
    wait_until(controller.trains)
    alpha = controller.lab.host("alpha")
    alpha.plug(plugged=False)
    time.sleep(10)
    alpha.plug(plugged=True)
    wait_until(lambda: any("no sign of life" in one for one in _remedies(controller)))
    remedies = _remedies(controller)
    (remedy,) = {remedy for cause, remedy in remedies.items() if "no sign of life" in cause}
    assert remedy == f"look at the cable of alpha: its own link {INTERFACE} is down"
    stop(controller, training)


def _remedies(controller: Controller) -> dict[str, str]:
    """The remedy of each warning, by its cause."""
    found = (one.payload for one in alerts(controller, "warning"))
    return {one["cause"]: one["remedy"] for one in found}


@pytest.mark.skipif(not RSYNC, reason="no rsync here")
@pytest.mark.parametrize("sends", [True, False], ids=["sends nothing", "takes nothing"])
def test_a_host_that_stops_during_a_transfer_is_named(controller: Controller, sends: bool) -> None:
    """Its sshd answers all the time. What it has not sent is still there for a resume."""
    alpha, hosts = controller.lab.host("alpha"), controller.folder / "hosts.toml"
    verb = "--sender" if sends else "--server"
    still = f'case " $* " in *" {verb} "*) test -e {alpha.home}/well || exec sleep 600;; esac'
    real, wrapper = alpha.home / "rsync", alpha.home / "wrapper"
    shutil.copy(RSYNC, real)
    wrapper.write_text(f'#!/bin/sh\n{still}\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    alpha.mount("--bind", wrapper, RSYNC)
    hosts.write_text(hosts.read_text().replace("[defaults]", "[defaults]\nsilence_s = 5"))
    began = time.monotonic()
    training = controller.run("train", "small.toml", "--hosts", "hosts.toml")
    print(f"given up after {time.monotonic() - began:.0f} s")
    said = " ".join((training.stdout + training.stderr).split())
    assert "nothing has passed for 5 s" in said
    assert "see whether its disk, its network or a program there stands still" in said
    assert "Traceback" not in said
    if sends:
        assert "not everything came back: alpha: nothing has passed" in said
        (alpha.home / "well").touch()
        resumed = controller.run("train", str(controller.run_directory()))
        assert resumed.returncode == 0, resumed.stderr
        assert saved(controller)
    else:
        assert training.returncode == 1
        assert training.stderr.count("\n") == 1


def test_a_network_that_dies_behind_a_shared_connection_is_named(controller: Controller) -> None:
    """The controller's own ssh to the host still runs, and has not noticed it yet."""
    training = controller.train("--set", "train.max_steps=100000", *OFTEN_SAVED[2:])
    wait_until(lambda: saved(controller))
    for name in ("alpha", "beta"):
        controller.lab.host(name).run(["ip", "link", "set", "eth0", "down"])
    since = time.time()
    wait_until(lambda: bool(alerts(controller, "error")), limit_s=120)
    print(f"noticed after {time.time() - since:.0f} s")
    assert "the connection was lost" in what_broke(controller)
    began = time.monotonic()
    controller.signal("INT")
    _, complaint = training.communicate(timeout=120)
    print(f"ended {time.monotonic() - began:.0f} s after Ctrl-C")
    assert training.returncode == 130, complaint
    assert "Traceback" not in complaint
    assert "cannot log in" not in complaint


@pytest.mark.parametrize(("cut", "ranks"), [("beta", 2), ("alpha", 1)])
def test_a_host_that_was_cut_off_for_a_minute_rejoins(
    controller: Controller, cut: str, ranks: int
) -> None:
    training = controller.train(*OFTEN_SAVED)
    wait_until(lambda: saved(controller))
    host = controller.lab.host(cut)
    host.plug(plugged=False)
    since = time.time()
    goes_on(controller, ranks=ranks, since=since)
    time.sleep(max(0.0, since + 60 - time.time()))
    alone = trained_until(controller)
    host.plug(plugged=True)
    goes_on(controller, ranks=3, since=time.time(), starts=3)
    assert what_broke(controller).startswith(f"{cut}: the connection was lost")
    news = [event.payload["cause"] for event in alerts(controller, "info")]
    assert f"{cut}: answers again" in news
    # The steps that the other host trained alone are kept, even if the cut host saves checkpoints.
    assert controller.events("run_started")[2].payload["resumed_from_step"] >= alone - 20
    # Rank 0 stays where the store is.
    first = "beta" if cut == "alpha" else "alpha"
    assert controller.events("run_started")[2].host == first
    stop(controller, training)
    nothing_left(controller)


def test_a_host_is_added(controller: Controller) -> None:
    both = (controller.folder / "hosts.toml").read_text()
    (controller.folder / "both.toml").write_text(both)
    (controller.folder / "hosts.toml").write_text(both[: both.rindex("[[host]]")])
    training = controller.train(*OFTEN_SAVED)
    wait_until(lambda: saved(controller))
    since = time.time()
    stop(controller, training)
    larger = controller.start("train", str(controller.run_directory()), "--hosts", "both.toml")
    goes_on(controller, ranks=3, since=since)
    stop(controller, larger)
    nothing_left(controller)


def test_a_rank_that_stands_still_is_named_and_replaced(controller: Controller) -> None:
    training = controller.train(*OFTEN_SAVED)
    wait_until(lambda: saved(controller))
    beta = controller.lab.host("beta")
    beta.run(["kill", "-STOP", *map(str, workers(beta))])
    goes_on(controller, ranks=3, since=time.time())
    assert what_broke(controller).startswith("beta: ")
    assert "rank 2 gave no sign of life" in what_broke(controller)
    stop(controller, training)
    nothing_left(controller)


@pytest.mark.parametrize(("full", "strategy"), [("alpha", "sync"), ("beta", "diloco")])
def test_a_full_disk_ends_it_with_the_name_of_the_host(
    controller: Controller, full: str, strategy: str
) -> None:
    """Alpha saves checkpoints there; beta the states of its ranks, which only `diloco` has."""
    host = controller.lab.host(full)
    small = host.home / ".dragoman"
    small.mkdir()
    host.mount("-t", "tmpfs", "-o", "size=400m", "lab-small", small)
    training = controller.train(*OFTEN_SAVED, *STRATEGIES[strategy])
    wait_until(lambda: saved(controller))
    host.run(["dd", "if=/dev/zero", f"of={small}/much", "bs=1M"], check=False)
    since = time.time()
    _, complaint = training.communicate(timeout=300)
    print(f"ended {time.time() - since:.0f} s after the disk was full")
    assert training.returncode == 1
    assert complaint.startswith(f"dragoman: {full}: ")
    assert "free disk space" in complaint
    assert saved(controller)
    nothing_left(controller)
    host.run(["rm", f"{small}/much"])
    resumed = controller.start("train", str(controller.run_directory()))
    goes_on(controller, ranks=3, since=since)
    stop(controller, resumed)


def test_the_line_to_the_controller_is_cut(controller: Controller) -> None:
    training = controller.train(*ENDLESS)
    wait_until(controller.trains)
    controller.lab.controller.plug(plugged=False)
    nothing_left(controller)
    assert training.poll() is None
    controller.lab.controller.plug(plugged=True)
    goes_on(controller, ranks=3, since=time.time())
    stop(controller, training)
    nothing_left(controller)


def has_saved(controller: Controller, start: int) -> bool:
    """Whether a checkpoint was written since the training started for this time, from 0."""
    starts = controller.events("run_started")
    saves = controller.events("checkpoint_written")
    return len(starts) > start and bool(saves) and saves[-1].time > starts[start].time


def has_started(controller: Controller, times: int) -> bool:
    """Whether the training has started more often than this."""
    return len(controller.events("run_started")) > times


def newest_events(controller: Controller) -> list[Event]:
    """The events of rank 0 of the newest run."""
    run = max((controller.folder / "runs").iterdir())
    return list(read_events(run / "events" / "log.jsonl"))


def consumed(events: Iterable[Event]) -> tuple[int, float]:
    """Pairs of text behind the final weights, and the loss over the last hundred steps.

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
def test_twenty_random_kills_change_neither_samples_nor_loss(
    controller: Controller, strategy: str
) -> None:
    rng = random.Random(20)
    settings = (*KILLED_RUN, *STRATEGIES[strategy])
    training = controller.train(*settings)
    for number in range(NUM_KILLS):
        wait_until(partial(has_saved, controller, number), limit_s=600)
        time.sleep(rng.uniform(0.0, 0.5))
        host = rng.choice(controller.lab.hosts)
        host.run(["kill", "-9", str(rng.choice(workers(host)))], check=False)
        since = time.time()
        wait_until(partial(has_started, controller, number + 1), limit_s=600)
        print(f"kill {number + 1} on {host.name}: starts again after {time.time() - since:.0f} s")
    _, complaint = training.communicate(timeout=900)
    assert training.returncode == 0, complaint
    killed = newest_events(controller)
    assert sum(event.kind == "run_started" for event in killed) == NUM_KILLS + 1
    calm = controller.train("--fresh", *settings)
    _, complaint = calm.communicate(timeout=900)
    assert calm.returncode == 0, complaint
    pairs, loss = consumed(killed)
    calm_pairs, calm_loss = consumed(newest_events(controller))
    print(f"{pairs} pairs, loss {loss:.4f}; undisturbed {calm_pairs} pairs, loss {calm_loss:.4f}")
    assert pairs == calm_pairs
    assert loss == pytest.approx(calm_loss, rel=0.02)
