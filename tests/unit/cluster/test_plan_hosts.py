"""`plan --hosts` if the file and the command line name different processors or GPUs; `auto`."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dragoman.base.errors import ConfigError
from dragoman.cluster.collect import remember
from dragoman.cluster.facts import ClusterFacts, HostFacts, PairFacts
from dragoman.cluster.hosts import load_hosts
from dragoman.cluster.plan import choose_for_all_ranks
from dragoman.cluster.plan_request import PlanRequest, plan_recipe
from dragoman.cluster.plan_view import plan_as_json, print_plan
from dragoman.cluster.rates import Link
from dragoman.cluster.step_time import DILOCO_WEIGHT_S
from dragoman.cluster.strategies import Cluster, Machine, sync
from dragoman.cluster.workload import workload_of
from dragoman.recipe.recipe import load_recipe


def test_cpu_hosts_are_planned_with_the_gpu_that_the_request_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work of diloco for a weight then takes the time of a GPU, not of a processor."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "hosts.toml"
    file.write_text("".join(f'[[host]]\naddress = "10.0.0.{n}"\nslots = 1\n' for n in (1, 2)))
    recipe = load_recipe("wmt16-ende-base")
    asked = {
        given: plan_recipe(recipe, PlanRequest(hosts=str(file), link="100Mbit", **{name: given}))
        for name, given in (("gpu", "v100"), ("gpu", "cpu"), ("compute", "0.25s"))
    }
    weight_s = {given: made.cluster.diloco_weight_s for given, made in asked.items()}
    on_cpu, on_gpu = DILOCO_WEIGHT_S["cpu"], DILOCO_WEIGHT_S["gpu"]
    assert weight_s == {"v100": on_gpu, "cpu": on_cpu, "0.25s": on_cpu}
    alike = plan_recipe(recipe, PlanRequest(ranks="2", link="100Mbit", gpu="v100"))
    assert asked["v100"].choice.prediction == alike.choice.prediction


@pytest.mark.parametrize("given", [{}, {"compute": "0.25s"}])
def test_hosts_that_cannot_train_together_are_not_planned(
    given: dict[str, str], tmp_path: Path
) -> None:
    """A GPU was called a CPU that is sixty times as fast as both together."""
    file = tmp_path / "hosts.toml"
    gpu, cpu = 'address = "10.0.0.1"\ngpus = 1\ngpu = "v100"', 'address = "10.0.0.2"\nslots = 2'
    file.write_text(f"[[host]]\n{gpu}\n[[host]]\n{cpu}\n")
    with pytest.raises(ConfigError, match="cannot train together") as error:
        plan_recipe(load_recipe("demo"), PlanRequest(hosts=str(file), link="1Gbit", **given))
    assert "10.0.0.1 and 10.0.0.2" in str(error.value)


def speed_up(recipe: str, **asked: str) -> float:
    return plan_recipe(load_recipe(recipe), PlanRequest(**asked)).strategies[1].speed_up


def test_a_given_compute_is_shared_and_waited_for_like_any_other(tmp_path: Path) -> None:
    """Two ranks on one processor were promised 1.99 x, eight GPUs 7.98 x."""
    file = tmp_path / "hosts.toml"
    file.write_text('[[host]]\naddress = "localhost"\nslots = 2\n')
    assert speed_up("demo", hosts=str(file), compute="1s") <= 1
    assert speed_up("demo", ranks="1x2", gpu="cpu", compute="1s", link="1Gbit") <= 1
    known = speed_up("wmt16-ende-big", ranks="1x8", gpu="a100")
    asked = {"ranks": "1x8", "gpu": "a100", "compute": "401ms"}
    assert speed_up("wmt16-ende-big", **asked) == pytest.approx(known, rel=0.01)
    file.write_text('[[host]]\naddress = "a"\nslots = 3\n[[host]]\naddress = "b"\nslots = 1\n')
    uneven = plan_recipe(
        load_recipe("demo"), PlanRequest(hosts=str(file), compute="3s", link="10Gbit")
    )
    assert uneven.cluster.compute_s == pytest.approx(3.0)
    assert uneven.what_ifs[0].prediction.step_s == pytest.approx(4.0)  # all four thirds of it


def test_a_given_compute_does_not_shrink_below_the_time_of_kernel_launches() -> None:
    asked = PlanRequest(ranks="1x4", gpu="h100", compute="60ms", link="100Gbit")
    made = plan_recipe(load_recipe("wmt16-ende-base"), asked)
    assert min(row.prediction.compute_s for row in made.what_ifs) == made.cluster.least_s > 0.02
    shorter = plan_recipe(load_recipe("wmt16-ende-base"), replace(asked, compute="5ms"))
    assert shorter.cluster.compute_s == pytest.approx(0.005 * shorter.cluster.waits)


@pytest.mark.parametrize("hosts", ["localhost:1,127.0.0.1:1", f"{socket.gethostname()},127.0.1.1"])
def test_two_names_of_this_machine_are_not_two_hosts(hosts: str) -> None:
    with pytest.raises(ConfigError, match="are one machine, this one") as error:
        plan_recipe(load_recipe("demo"), PlanRequest(hosts=hosts, gpu="cpu", link="1Gbit"))
    assert "give each machine one entry" in str(error.value)


def test_a_recipe_in_fp32_is_not_planned_at_the_rate_of_half_precision() -> None:
    """The default is fp32; a V100 was planned 3.8 times as fast as NVIDIA's table has it."""
    step_s = {
        precision: plan_recipe(
            load_recipe("wmt16-ende-big", [f"train.precision={precision}"]),
            PlanRequest(ranks="1", gpu="v100"),
        ).choice.prediction.step_s
        for precision in ("fp32", "fp16", "bf16")
    }
    assert step_s["fp32"] / step_s["fp16"] == pytest.approx(32_942 / 8_742)
    assert step_s["bf16"] == step_s["fp32"]  # a V100 has none


@given(megabits=st.floats(10, 1e5), compute_s=st.floats(1e-3, 10), weight_ns=st.floats(0.1, 100))
def test_auto_takes_nothing_that_is_slower_than_sync(
    megabits: float, compute_s: float, weight_ns: float
) -> None:
    """Small batches on a processor: what diloco does with the weights was more than it saved."""
    workload = workload_of(load_recipe("demo", ["data.batch_tokens=512"]))
    link = Link.nominal(megabits * 1e6)
    like = Machine(alone_s=2 * compute_s)
    cluster = Cluster.of((1, 1), link, like=like, diloco_weight_s=weight_ns * 1e-9)
    choice = choose_for_all_ranks(cluster, workload)
    assert choice.prediction.step_s <= sync(cluster, workload).step_s
    assert choice.why


def test_a_processor_trains_as_fast_as_other_programs_show_that_it_can() -> None:
    """Two hardware threads train this model, with 7.57 million weights, at 2,022 target tokens a
    second with fairseq, 2,155 with Eole and 5,208 with ours (benchmarks/README.md).
    """
    size = ["d_model=256", "d_ffn=1024", "encoder_layers=3", "decoder_layers=3"]
    overrides = [f"model.{word}" for word in size]
    recipe = load_recipe("multi30k-tiny", [*overrides, "corpus.subword.vocab_size=8000"])
    made = plan_recipe(recipe, PlanRequest(ranks="1", link="1Gbit", gpu="cpu"))
    assert made.workload.num_parameters == pytest.approx(7.57e6, rel=0.01)
    (alone,) = made.strategies
    tokens_per_s = made.workload.target_tokens_per_step / alone.prediction.step_s
    assert 2_022 / 1.5 < tokens_per_s < 5_208 * 1.5


def test_ranks_of_one_host_sum_no_faster_than_its_bus_and_not_much_slower(tmp_path: Path) -> None:
    """A GeForce 4090 has no NVLink. PCIe 4.0 x16 carries 31.5 GB/s each way (PCI-SIG: 16 lanes of
    16 GT/s, 128 of 130 bits); sums through it get a tenth of that at least.
    """
    file = tmp_path / "hosts.toml"
    file.write_text('[[host]]\naddress = "10.0.0.1"\ngpus = 2\ngpu = "4090"\n')
    recipe = load_recipe("wmt16-ende-base", [])
    made = plan_recipe(recipe, PlanRequest(hosts=str(file), compute="1µs"))
    plain = next(row for row in made.strategies if row.prediction.strategy == "plain")
    # Each of two ranks sends as many bytes as the gradients have; next to no compute hides them.
    bytes_per_s = made.workload.num_parameters * 4 / plain.prediction.exposed_s
    assert 31.5e9 / 10 < bytes_per_s < 31.5e9


def measured_hosts(
    folder: Path, names: tuple[str, ...], slow_sender: str, *, sends: float = 2e6
) -> Path:
    """Hosts that compute alike and of which one sends at so many bytes/s, as doctor finds them."""
    file = folder / "hosts.toml"
    file.write_text(
        "".join(
            f'[[host]]\nname = "{name}"\naddress = "10.0.0.{n}"\nslots = 1\n'
            for n, name in enumerate(names, start=1)
        )
    )
    hosts = tuple(
        HostFacts(
            host=name,
            cpu_cores=2,
            versions={},
            digests={},
            shared_memory_bytes=0,
            disk_free_bytes=0,
            flop_per_s=100e9,
        )
        for name in names
    )
    pairs = tuple(
        PairFacts(
            hosts=(first, second),
            forth_bytes_per_s=sends if first == slow_sender else 100e6,
            back_bytes_per_s=sends if second == slow_sender else 100e6,
            both_bytes_per_s=sends if slow_sender in (first, second) else 98e6,
            latency_s=0.2e-3,
        )
        for first, second in combinations(names, 2)
    )
    remember(
        load_hosts(str(file)),
        ClusterFacts(hosts=hosts, pairs=pairs, all_reduce_bytes_per_s=0.95 * sends),
    )
    return file


def test_a_plan_names_the_host_that_sends_slowly_and_knows_the_others_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = measured_hosts(tmp_path, ("alpha", "beta", "gamma"), "beta")
    made = plan_recipe(load_recipe("wmt16-ende-base"), PlanRequest(hosts=str(file)))
    assert made.cluster.link.bytes_per_s == 1.9e6
    assert made.cluster.only([0, 2]).link.bytes_per_s == pytest.approx(1.9e6 / 2e6 * 100e6)
    console = Console(width=1000, force_terminal=False)
    with console.capture() as capture:
        print_plan(made, console)
    assert "  beta sends 2 MB/s and receives 100 MB/s\n" in capture.get()
    rows = {row.name: row.run_s for row in made.what_ifs}
    assert rows["beta sends as it receives"] < rows["these hosts"]
    hosts = json.loads(plan_as_json(made))["hosts"]
    ways = [(one["sends_bytes_per_s"], one["receives_bytes_per_s"]) for one in hosts]
    assert ways == [(100e6, 100e6), (2e6, 100e6), (100e6, 100e6)]
    asked = PlanRequest(hosts=str(file), link="1Gbit", gpu="cpu")
    assert "beta sends" not in plan_as_json(plan_recipe(load_recipe("demo"), asked))


def test_fast_senders_train_alone_if_a_slow_one_delays_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = measured_hosts(tmp_path, ("alpha", "beta", "gamma"), "beta", sends=2e3)
    made = plan_recipe(load_recipe("demo"), PlanRequest(hosts=str(file)))
    assert made.choice.who == "alpha and gamma alone"
    assert made.choice.cluster.link.bytes_per_s == pytest.approx(95e6)


def test_a_host_without_a_price_is_named_if_others_have_one(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    entry = '[[host]]\nname = "{}"\naddress = "10.0.0.{}"\nslots = 1\n'
    priced = entry.format("alpha", 1) + "price_per_hour = 2\n"
    file.write_text(priced + entry.format("beta", 2))
    made = plan_recipe(load_recipe("demo"), PlanRequest(hosts=str(file), link="1Gbit"))
    console = Console(width=1000, force_terminal=False)
    with console.capture() as capture:
        print_plan(made, console)
    assert "The cost is not known: hosts.toml has no price_per_hour for beta.\n" in capture.get()
    file.write_text(priced + entry.format("beta", 2) + "price_per_hour = 5\n")
    made = plan_recipe(load_recipe("demo"), PlanRequest(hosts=str(file), link="1Gbit"))
    row = made.strategies[0]
    assert row.price == pytest.approx(7 * row.run_s / 3600)


def test_the_slow_sender_of_two_hosts_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = measured_hosts(tmp_path, ("alpha", "beta"), "beta")
    made = plan_recipe(load_recipe("demo"), PlanRequest(hosts=str(file)))
    assert [machine.name for machine in made.cluster.one_sided] == ["beta"]
