"""A slow link is told, never refused: each direction alone and both, small and large buckets."""

from __future__ import annotations

import sys
import threading
import time
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest

from dragoman.distributed.world import World
from lab.conftest import OpenLab
from lab.controller import set_up_controller
from lab.laboratory import PORT, Lab
from lab.ranks_on_hosts import run_on_hosts
from processes import wait_until

MBIT: Final = 1e6 / 8
PAYLOAD: Final = 1448 / 1514
"""The share of TCP's payload in what a port counts."""
RATES: Final = (1000, 100, 15, 5, 1)
WAYS: Final = ("sends", "receives", "both")
BUCKETS: Final = (64 << 10, 256 << 10)
EXAMPLES: Final = ((15, "sends", 64 << 10), (5, "receives", 256 << 10), (1, "both", 256 << 10))
TOLERANCE: Final = 0.1
FAST: Final = 400 * MBIT
"""With two hosts on two cores, and perhaps other work, a faster link waits for processors."""


def limit(lab: Lab, way: str, rate_mbit: int, bucket_bytes: int) -> None:
    """Limit what beta sends, receives, or both; the rest of the lab has no limit."""
    beta = lab.host("beta")
    rate = f"{rate_mbit}mbit"
    beta.limit_sending(None if way == "receives" else rate, bucket_bytes=bucket_bytes)
    beta.limit_receiving(None if way == "sends" else rate, bucket_bytes=bucket_bytes)


def pairs(world: World, directory: str, num_cases: int) -> Any:
    """Doctor's rates between two hosts for each case, after the test has set its limits."""
    import torch.distributed as dist

    from dragoman.distributed import probe
    from processes import wait_until

    group = dist.new_group([0, 1])
    found = []
    for case in range(num_cases):
        world.barrier()
        if world.is_main:
            (Path(directory) / f"ready-{case}").touch()
            wait_until((Path(directory) / f"go-{case}").exists, limit_s=60)
        world.barrier()
        began = time.monotonic()
        pair = probe._pair(world, (0, 1), group)
        found.append([*(pair[f"{way}_bytes_per_s"] for way in ("back", "forth", "both"))])
        found[-1].append(time.monotonic() - began)
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(EXAMPLES, id="examples"),
        *(
            pytest.param(
                [*product([rate], WAYS, BUCKETS)], marks=pytest.mark.slow, id=f"{rate}mbit"
            )
            for rate in RATES
        ),
    ],
)
def test_doctor_tells_the_rates_of_a_slow_link(
    make_lab: OpenLab, tmp_path: Path, cases: list[tuple[int, str, int]]
) -> None:
    lab = make_lab(["alpha", "beta"])

    def set_limits() -> None:
        for number, (rate_mbit, way, bucket_bytes) in enumerate(cases):
            wait_until((tmp_path / f"ready-{number}").exists)
            limit(lab, way, rate_mbit, bucket_bytes)
            (tmp_path / f"go-{number}").touch()

    threading.Thread(target=set_limits, daemon=True).start()
    measured, _ = run_on_hosts(
        pairs, str(tmp_path), len(cases), hosts=lab.hosts, timeout_s=120 + 60 * len(cases)
    )
    print("Mbit/s  beta      bucket   sends  receives  at once  seconds")
    for (rate_mbit, way, bucket_bytes), (*rates, took_s) in zip(cases, measured, strict=True):
        shown = "".join(f"{rate / MBIT:9.2f}" for rate in rates)
        print(f"{rate_mbit:6}  {way:8} {bucket_bytes >> 10:4} KiB {shown} {took_s:8.1f}")
    for (rate_mbit, way, _), (sent, received, at_once, took_s) in zip(cases, measured, strict=True):
        expected = rate_mbit * MBIT * PAYLOAD
        limited = {"sends": [sent], "receives": [received], "both": [sent, received]}[way]
        for rate in [*limited, at_once]:
            if expected < FAST:
                assert rate == pytest.approx(expected, rel=TOLERANCE)
            else:
                assert rate < expected * (1 + TOLERANCE)
        if way != "both" and expected < FAST:
            assert sent + received - limited[0] > 2 * limited[0]
        assert took_s < 60


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("rate_mbit", "way"),
    [(15, "sends"), pytest.param(1, "both", marks=pytest.mark.slow)],
)
def test_hosts_train_over_a_slow_link_to_the_end(
    make_lab: OpenLab, rate_mbit: int, way: str
) -> None:
    controller = set_up_controller(make_lab(["alpha", "beta"]), slots=(1, 1))
    limit(controller.lab, way, rate_mbit, 64 << 10)
    trained = controller.run(
        "train", "small.toml", "--hosts", "hosts.toml", "--set", "distributed.strategy='auto'"
    )
    assert trained.returncode == 0, trained.stderr
    (finished,) = controller.events("run_finished")
    assert finished.step == 40
    (chosen,) = controller.events("strategy_chosen")
    expected = rate_mbit * MBIT * PAYLOAD
    assert chosen.payload["link_bytes_per_s"] == pytest.approx(expected, rel=0.2)
    alerts = [one.payload for one in controller.events("alert")]
    assert [one for one in alerts if one["severity"] == "error"] == []
    assert not any("no sign of life" in one["cause"] for one in alerts)


def directions(world: World) -> Any:
    """The rate of the sums of training, then of each direction, as an alert names the slow one."""
    from dragoman.distributed.link_rate import measure_directions, measure_link
    from dragoman.distributed.topology import find_topology

    topology = find_topology(world)
    rate = measure_link(world, topology).bytes_per_s
    found = measure_directions(world, topology, bytes_per_s=rate)
    return [rate, found[0, 1], found[1, 0]]


def test_a_full_bucket_does_not_hide_the_second_slow_direction(make_lab: OpenLab) -> None:
    """While one direction was measured, the bucket of the other filled again."""
    lab = make_lab(["alpha", "beta"])
    limit(lab, "both", 1, 256 << 10)
    found, _ = run_on_hosts(directions, hosts=lab.hosts)
    assert found == pytest.approx([MBIT * PAYLOAD] * 3, rel=TOLERANCE)


def broadcast(world: World, size: int) -> float:
    """Begin to train a model of one matrix with a timeout that its whole broadcast would exceed."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch import nn

    from dragoman.distributed import strategies
    from dragoman.distributed.config import DistributedConfig

    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=3), dist.group.WORLD)
    strategies._PIECE = size // 16  # type: ignore[misc]
    model = nn.Linear(size, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(world.rank + 1)
    with strategies.gradient_sync(DistributedConfig(), model, world):
        return float(model.weight.sum()) / size


def test_the_first_weights_may_take_longer_than_a_timeout(make_lab: OpenLab) -> None:
    lab = make_lab(["alpha", "beta"])
    limit(lab, "both", 4, 64 << 10)
    assert run_on_hosts(broadcast, 1 << 20, hosts=lab.hosts) == [1.0, 1.0]


REACH: Final = """
import socket, sys, time
from dragoman.cluster.network import unreachable
address, port = sys.argv[1], int(sys.argv[2])
others = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(8)]
others[0].sendto(b"who has this address?", (address, 9))
time.sleep(0.5)
for other in others:
    for _ in range(60):
        other.sendto(bytes(1400), (address, 9))
began = time.monotonic()
print(unreachable([(address, port)]), time.monotonic() - began)
"""
"""600 KB of other traffic, then a connection."""


def test_a_host_behind_a_full_queue_is_reached(make_lab: OpenLab) -> None:
    """Five seconds of other traffic wait before the run's own."""
    lab = make_lab(["alpha", "beta"])
    alpha, beta = lab.hosts
    beta.limit_sending("1mbit", bucket_bytes=64 << 10, queue="8s")
    said = beta.run([sys.executable, "-c", REACH, alpha.address, str(PORT)]).stdout
    closed, _, waited_s = said.strip().rpartition(" ")
    assert (closed, float(waited_s) > 3) == ("[]", True)
