"""`plan --hosts` with a file of hosts: their GPUs and prices, and what doctor has measured."""

from __future__ import annotations

import json
import os
import socket
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from dragoman.base.errors import ConfigError
from dragoman.cluster.collect import remember
from dragoman.cluster.facts import ClusterFacts, HostFacts, PairFacts
from dragoman.cluster.hosts import load_hosts
from dragoman.cluster.plan import Plan
from dragoman.cluster.plan_request import PlanRequest, plan_recipe
from dragoman.cluster.rates import DEVICES, DILOCO_WEIGHT_S, SEVERAL_GPUS
from dragoman.recipe.recipe import load_recipe


@pytest.fixture(autouse=True)
def _own_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def planned(recipe: str, *overrides: str, **request: Any) -> Plan:
    return plan_recipe(load_recipe(recipe, overrides), PlanRequest(**request))


def hosts_file(folder: Path, *hosts: str) -> str:
    """A file with the lines of each host; its name is a, b, c."""
    file = folder / "hosts.toml"
    file.write_text(
        "".join(
            f'[[host]]\nname = "{name}"\naddress = "10.0.0.{number}"\n{host}\n'
            for number, (name, host) in enumerate(zip("abc", hosts, strict=False), 1)
        )
    )
    return str(file)


def facts(name: str, **measured: Any) -> HostFacts:
    return HostFacts(
        host=name,
        cpu_cores=8,
        versions={},
        digests={},
        shared_memory_bytes=0,
        disk_free_bytes=0,
        **measured,
    )


def pair(first: str, second: str, *, forth: float = 100e6, back: float = 100e6) -> PairFacts:
    return PairFacts(
        hosts=(first, second),
        forth_bytes_per_s=forth,
        back_bytes_per_s=back,
        both_bytes_per_s=0.98 * min(forth, back),
        latency_s=1e-3,
    )


def test_the_slowest_kind_of_gpu_sets_the_pace(tmp_path: Path) -> None:
    hosts = hosts_file(
        tmp_path,
        'gpus = 4\ngpu = "p100"\nprice_per_hour = 1.0',
        'gpus = 1\ngpu = "v100"\nprice_per_hour = 3.0',
    )
    made = planned("wmt16-ende-reference", link="1Gbit", hosts=hosts)
    alone = made.options[0]
    assert alone.step.step_s == planned("wmt16-ende-reference", gpu="v100").quickest.step.step_s
    assert alone.price == pytest.approx(alone.run_s / 3600 * 3.0)
    # Four P100s and a V100 that waits for them are slower than the V100 by itself.
    assert made.quickest is alone


def test_hosts_that_hold_up_the_others_are_left_out(tmp_path: Path) -> None:
    kinds = ('gpus = 8\ngpu = "a100"', 'gpus = 1\ngpu = "4090"', 'gpus = 8\ngpu = "a100"')
    hosts = hosts_file(tmp_path, *kinds)
    made = planned("wmt16-ende-big", hosts=hosts, link="100Gbit")
    assert made.quickest.name == "a and c alone"
    twice = planned("wmt16-ende-big", hosts="2", gpu="a100:8", link="100Gbit")
    assert made.quickest.step.step_s == twice.quickest.step.step_s
    slow = planned("wmt16-ende-big", hosts=hosts, link="1Mbit")
    assert slow.quickest.name == "a alone"
    assert slow.quickest.step.step_s == planned("wmt16-ende-big", gpu="a100:8").quickest.step.step_s


def test_the_device_of_the_command_line_replaces_that_of_the_file(tmp_path: Path) -> None:
    """The work of diloco for a weight then takes the time of a GPU, not of a processor."""
    hosts = hosts_file(tmp_path, "slots = 1", "slots = 1")
    asked = {"hosts": hosts, "link": "100Mbit"}
    on_gpu = planned("wmt16-ende-base", **asked, gpu="v100")
    assert on_gpu.cluster.diloco_weight_s == DILOCO_WEIGHT_S["GPU"][0]
    for given in ({"gpu": "cpu"}, {"compute": "0.25s"}):
        made = planned("wmt16-ende-base", **asked, **given)
        assert made.cluster.diloco_weight_s == DILOCO_WEIGHT_S["CPU"][0]
    alike = planned("wmt16-ende-base", hosts="2", link="100Mbit", gpu="v100")
    assert on_gpu.quickest.step == alike.quickest.step


@pytest.mark.parametrize("given", [{}, {"compute": "0.25s"}])
def test_hosts_that_cannot_train_together_are_not_planned(
    given: dict[str, Any], tmp_path: Path
) -> None:
    """A GPU was called a CPU that is sixty times as fast as both together."""
    hosts = hosts_file(tmp_path, 'gpus = 1\ngpu = "v100"', "slots = 2")
    with pytest.raises(ConfigError, match="one of a and b computes on GPUs"):
        planned("demo", hosts=hosts, link="1Gbit", **given)


@pytest.mark.parametrize("hosts", ["localhost:1,127.0.0.1:1", f"{socket.gethostname()},127.0.1.1"])
def test_two_names_of_this_machine_are_not_two_hosts(hosts: str) -> None:
    with pytest.raises(ConfigError, match="are one machine, this one") as error:
        planned("demo", hosts=hosts, gpu="cpu", link="1Gbit")
    assert "give each machine one entry" in str(error.value)


def test_ranks_of_one_machine_share_its_cores(tmp_path: Path) -> None:
    """Two ranks were promised twice the speed of one that uses all cores already."""
    for hosts, times in (("localhost:2", 1), ("a:2,b:2", 2), ("a:3,b:1", 4 / 3)):
        made = planned("demo", hosts=hosts, gpu="cpu", link="100Gbit")
        together = made.options[-1].step
        assert together.compute_s == pytest.approx(made.options[0].step.step_s / times)
    hosts = hosts_file(tmp_path, "slots = 2")
    remember(load_hosts(hosts), ClusterFacts(hosts=(facts("a", flop_per_s=60e9),)))
    measured = planned("demo", hosts=hosts)
    whole_s = measured.workload.flop_per_step / 120e9  # doctor measures one rank of the two
    assert measured.options[-1].step.compute_s == pytest.approx(whole_s)
    assert measured.options[0].step.step_s == pytest.approx(whole_s)


def test_a_host_without_a_price_is_named_if_others_have_one(tmp_path: Path) -> None:
    hosts = hosts_file(tmp_path, "slots = 1\nprice_per_hour = 2", "slots = 1")
    made = planned("demo", hosts=hosts, link="1Gbit")
    assert "The cost is not known: b has no price_per_hour." in made.lines()
    with_prices = planned("demo", hosts=hosts, link="1Gbit", price="3.50 USD")
    every = next(one for one in with_prices.options if one.name == "all hosts")
    assert every.price == pytest.approx(7 * every.run_s / 3600)


@pytest.mark.parametrize("hours", ["5e-324", "1e-300", "1e-6", "0", "-1", "nan"])
def test_no_host_is_taken_away_all_the_time(tmp_path: Path, hours: str) -> None:
    hosts = hosts_file(tmp_path, f"gpus = 2\ninterruption_hours = {hours}")
    with pytest.raises(ConfigError, match="interruption_hours") as error:
        load_hosts(hosts)
    assert "\n" not in str(error.value)


def test_the_spot_price_counts_and_needs_interruption_hours(tmp_path: Path) -> None:
    entry = "gpus = 1\nprice_per_hour = 8\nspot_price_per_hour = 2.5\n"
    hosts = hosts_file(tmp_path, f"{entry}interruption_hours = 6")
    assert load_hosts(hosts).price_per_hour == 2.5
    with pytest.raises(ConfigError, match="interruption_hours = 12") as error:
        load_hosts(hosts_file(tmp_path, entry))
    assert str(error.value).count("\n") == 0


def test_a_link_inside_a_host_is_that_of_the_file_or_of_its_gpu(tmp_path: Path) -> None:
    hosts = hosts_file(
        tmp_path, 'gpus = 4\ngpu = "a100"\ngpu_link = "20GB/s"', 'gpus = 4\ngpu = "a100"'
    )
    asked = {"hosts": hosts, "link": "10Gbit"}
    made = planned("wmt16-ende-big", **asked)
    assert [one.inside.bytes_per_s for one in made.cluster.machines] == [20e9, 230e9]
    given = planned("wmt16-ende-big", **asked, gpu_link="180GB/s")
    assert [one.inside.bytes_per_s for one in given.cluster.machines] == [180e9] * 2
    hosts_file(tmp_path, 'gpus = 4\ngpu = "a100"\ngpu_link = "pcie9"')
    with pytest.raises(ConfigError, match="gpu_link of a: 'pcie9'"):
        planned("wmt16-ende-big", **asked)


def test_a_plan_uses_the_measurements_of_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "10.0.0.1:2,10.0.0.2:1"
    faster = facts("10.0.0.1", gpus_usable=2, flop_per_s=40e12, inside_bytes_per_s=201e9)
    slower = facts("10.0.0.2", gpus_usable=1, flop_per_s=20e12)
    between = pair("10.0.0.1", "10.0.0.2", forth=12e6, back=12e6)
    found = ClusterFacts(hosts=(faster, slower), pairs=(between,), diloco_weight_s=3e-9)
    remember(load_hosts(words), found)
    made = planned("wmt16-ende-reference", hosts=words)
    assert made.cluster.diloco_weight_s == 3e-9
    assert made.cluster.link.bytes_per_s == 0.98 * 12e6
    assert made.cluster.link.source.startswith("measured by doctor 20")
    assert made.cluster.machines[0].inside.bytes_per_s == 201e9
    slowest_s = made.workload.flop_per_step / 20e12 / 3
    assert made.cluster.exchange.compute_s == pytest.approx(slowest_s / SEVERAL_GPUS)
    assert made.options[0].step.step_s == pytest.approx(made.workload.flop_per_step / 40e12)
    given = planned("wmt16-ende-reference", hosts=words, link="1Gbit", gpu="v100")
    assert given.cluster.link.source == "given: 94.5% of a port of 1 Gbit/s"
    assert given.cluster.machines[0].rate.startswith("v100")
    assert given.cluster.diloco_weight_s == DILOCO_WEIGHT_S["GPU"][0]
    # Without its GPU a host was as fast as its processor, which says nothing of the GPU.
    blind = slower.model_copy(update={"gpus_usable": 0, "flop_per_s": 0.1e12})
    remember(load_hosts(words), ClusterFacts(hosts=(faster, blind), pairs=(between,)))
    with pytest.raises(ConfigError, match="the kind of GPU is not known"):
        planned("wmt16-ende-reference", hosts=words)
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)  # if nothing can be kept, doctor goes on
    remember(load_hosts(words), found)


@pytest.mark.parametrize(
    ("doctor", "compiled", "expected"),
    [
        (100e12, True, DEVICES["half"]["h100"].flop_per_s),
        (100e12, False, 100e12),
        (300e12, True, 300e12),
    ],
)
def test_doctor_s_steps_without_the_compiler_do_not_slow_a_plan_with_it(
    tmp_path: Path, doctor: float, compiled: bool, expected: float
) -> None:
    """The table has a rate of compiled steps for an H100; doctor has no minute to compile."""
    hosts = hosts_file(tmp_path, 'gpus = 8\ngpu = "h100"')
    measured = facts("a", gpus_usable=8, flop_per_s=doctor, step_s=1e-3)
    remember(load_hosts(hosts), ClusterFacts(hosts=(measured,)))
    made = planned("wmt16-ende-big", f"train.compile={str(compiled).lower()}", hosts=hosts)
    alone_s = made.workload.flop_per_step / expected
    assert made.cluster.machines[0].alone_s == pytest.approx(alone_s)
    # Doctor's whole step, for each of eight micro-batches.
    assert made.cluster.machines[0].least_s == pytest.approx(8e-3)


def measured_hosts(folder: Path, names: str, *, sends: float) -> str:
    """Hosts that compute alike and of which b sends at so many bytes/s, as doctor finds them."""
    hosts = hosts_file(folder, *["slots = 1"] * len(names))
    pairs = tuple(
        pair(
            first,
            second,
            forth=sends if first == "b" else 100e6,
            back=sends if second == "b" else 100e6,
        )
        for first, second in combinations(names, 2)
    )
    known = tuple(facts(name, flop_per_s=100e9) for name in names)
    remember(
        load_hosts(hosts),
        ClusterFacts(hosts=known, pairs=pairs, all_reduce_bytes_per_s=0.95 * sends),
    )
    return hosts


def test_a_plan_names_the_host_that_sends_slowly_and_knows_the_others_without_it(
    tmp_path: Path,
) -> None:
    hosts = measured_hosts(tmp_path, "abc", sends=2e6)
    made = planned("wmt16-ende-base", hosts=hosts)
    assert made.cluster.link.bytes_per_s == 1.9e6
    assert "b sends 2 MB/s and receives 100 MB/s." in made.lines()
    runs_s = {one.name: one.run_s for one in made.options if one.step.strategy == "sync"}
    assert runs_s["no slow direction"] < runs_s["a and c alone"] * 1.01 < runs_s["all hosts"]
    ways = [one["directions"] for one in json.loads(made.as_json())["hosts"]]
    assert [one["sends_bytes_per_s"] for one in ways] == [100e6, 2e6, 100e6]
    assert "b sends" not in planned("demo", hosts=hosts, link="1Gbit", gpu="cpu").as_json()
    two = planned("demo", hosts=measured_hosts(tmp_path, "ab", sends=2e6))
    assert [machine.name for machine in two.cluster.one_sided] == ["b"]


def test_fast_senders_train_alone_if_a_slow_one_delays_them(tmp_path: Path) -> None:
    made = planned("demo", hosts=measured_hosts(tmp_path, "abc", sends=2e3))
    assert made.quickest.name == "a and c alone"
    assert made.quickest.cluster.link.bytes_per_s == pytest.approx(95e6)
