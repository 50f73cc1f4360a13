"""Plans: what `auto` chooses and says, what is never called a speed-up, hours and money."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dragoman.base import units
from dragoman.base.errors import ConfigError
from dragoman.cluster.collect import remember
from dragoman.cluster.facts import ClusterFacts, HostFacts, PairFacts
from dragoman.cluster.hosts import load_hosts
from dragoman.cluster.plan import Plan, choose, make_plan, predict_all
from dragoman.cluster.plan_assumptions import assumptions
from dragoman.cluster.plan_request import PlanRequest, plan_recipe
from dragoman.cluster.plan_view import plan_as_json, print_plan, recommendation, worth_of_links
from dragoman.cluster.rates import Link, parse_ranks
from dragoman.cluster.step_time import DILOCO_WEIGHT_S, GPU_SPREAD, largest_of_draws
from dragoman.cluster.strategies import Cluster, Machine, sync
from dragoman.cluster.workload import Workload, weight_shapes
from dragoman.model.config import ModelConfig
from dragoman.recipe.recipe import load_recipe

WORKLOAD = Workload(
    name="reference",
    shapes=weight_shapes(
        ModelConfig(attention_bias=False), source_vocab_size=32_768, target_vocab_size=32_768
    ),
    flop_per_step=62_400 * 183e6,
    target_tokens_per_step=31_200,
    max_steps=300_000,
)


def chosen(ranks: str, link: str, *, compute_s: float) -> tuple[str, int, str]:
    counts = parse_ranks(ranks)
    like = Machine(alone_s=compute_s * sum(counts))
    choice = choose(Cluster.of(counts, Link.parse(link), like=like), WORKLOAD)
    return choice.prediction.strategy, choice.prediction.every, choice.why


@pytest.mark.parametrize(
    ("link", "strategy", "every"),
    [
        ("100Gbit", "sync", 1),
        ("10Gbit", "sync", 1),
        ("1Gbit", "diloco", 2),
        ("100Mbit", "diloco", 13),
        ("10Mbit", "diloco", 126),
        ("2Mbit", "diloco", 496),
    ],
)
def test_the_rule_of_auto_on_two_ranks(link: str, strategy: str, every: int) -> None:
    found, found_every, why = chosen("2", link, compute_s=0.25)
    assert (found, found_every) == (strategy, every)
    assert "x the compute alone" in why


def test_auto_takes_the_smallest_accumulation_that_hides_the_link() -> None:
    strategy, every, why = chosen("2", "2.5Gbit", compute_s=0.25)
    # 121.8 MB of bf16 take 0.41 s, of which 0.15 s are hidden: 0.26 / (0.15 x 0.25) = 7.1.
    assert (strategy, every) == ("accum", 8)
    assert "249.6k target tokens an update" in why or "250k target tokens an update" in why


def test_a_cluster_slower_than_one_gpu_is_not_recommended() -> None:
    strategy, _every, why = chosen("2", "100kbit", compute_s=0.25)
    assert strategy == "none"
    assert "more ranks are not faster" in why


def uneven(ranks: tuple[int, ...], prices: list[float | None]) -> Plan:
    machines = tuple(
        Machine(count, 0.25, name=f"host {number}", unit="GPU", price_per_hour=price)
        for number, (count, price) in enumerate(zip(ranks, prices, strict=True), start=1)
    )
    return make_plan(WORKLOAD, Cluster(machines, Link.parse("1Mbit")), currency="USD")


def test_one_host_alone_is_taken_if_the_others_only_slow_it_down() -> None:
    made = uneven((8, 1), [3.06, 3.06])
    assert (made.choice.cluster.ranks_per_host, made.choice.hosts) == ((8,), (0,))
    assert "on host 1 alone" in made.choice.why
    assert "more ranks are not faster" in made.choice.why
    first = next(row for row in made.what_ifs if row.name == "host 1 alone")
    assert made.choice.prediction == first.prediction
    assert first.price == pytest.approx(first.run_s / 3600 * 3.06)
    said = recommendation(made)
    assert said.startswith(f"Use {first.prediction.label} on host 1 alone: ")
    assert json.loads(plan_as_json(made))["choice"]["ranks_per_host"] == [8]
    as_it_is = next(row for row in made.what_ifs if row.name == "these hosts")
    assert as_it_is.prediction.label == f"1 host, {first.prediction.label}"
    assert (as_it_is.run_s, as_it_is.price) == (first.run_s, first.price)


def test_the_host_that_is_best_alone_need_not_be_the_first() -> None:
    made = uneven((1, 8), [1.0, 9.0])
    assert (made.choice.cluster.ranks_per_host, made.choice.hosts) == ((8,), (1,))
    alone = next(row for row in made.what_ifs if row.name == "host 2 alone")
    assert alone.price == pytest.approx(alone.run_s / 3600 * 9.0)


def test_one_rank_needs_no_strategy() -> None:
    assert chosen("1", "1Gbit", compute_s=0.25)[0] == "none"


@given(
    ranks=st.lists(st.integers(1, 8), min_size=1, max_size=8),
    megabits=st.floats(0.1, 1e5),
    compute_s=st.floats(1e-3, 100),
)
def test_auto_is_never_slower_than_one_rank(
    ranks: list[int], megabits: float, compute_s: float
) -> None:
    like = Machine(alone_s=compute_s)
    cluster = Cluster.of(ranks, Link.nominal(megabits * 1e6), like=like)
    choice = choose(cluster, WORKLOAD)
    assert choice.prediction.step_s <= compute_s
    assert choice.why
    if choice.cluster.ranks_per_host != cluster.ranks_per_host:
        assert choice.cluster.num_hosts == 1
        return
    if choice.prediction.strategy == "diloco":
        synced = predict_all(cluster, WORKLOAD)[1]
        assert synced.strategy == "sync"
        assert synced.step_s > 1.15 * synced.compute_s


def plan(ranks: str = "2+2", link: str = "215MB/s", price: float | None = 3.06) -> Plan:
    counts = parse_ranks(ranks)
    like = Machine(
        alone_s=0.61 * sum(counts), rate="0.61 s", unit="GPU", price_per_hour=price, name="host 1"
    )
    return make_plan(WORKLOAD, Cluster.of(counts, Link.parse(link), like=like), currency="USD")


def test_hours_and_money_are_those_of_all_hosts() -> None:
    row = plan().strategies[0]
    assert row.run_s == pytest.approx(row.prediction.step_s * 300_000)
    assert row.price == pytest.approx(row.run_s / 3600 * 2 * 3.06)


def test_the_worth_of_a_faster_port_is_shown_in_money() -> None:
    """One that DiLoCo hides is worth nothing to it, and much to who synchronises every step."""
    made = plan_recipe(
        load_recipe("wmt16-ende-big"),
        PlanRequest(ranks="4", link="100Mbit", gpu="v100", price="3 USD"),
    )
    assert made.choice.prediction.strategy == "diloco"
    now = made.strategies[1]
    faster = replace(made.cluster, link=Link.nominal(1e9))
    then_s = sync(faster, made.workload).step_s * made.workload.max_steps
    saved = 12 * (now.run_s - then_s) / 3600
    sooner = units.DURATION.text(now.run_s - then_s)
    assert worth_of_links(made)[0] == (
        "With 1 Gbit/s ports the run would cost no less; if it synchronised every step, "
        f"{saved:,.2f} USD less and end {sooner} sooner, worth {saved / then_s * 3600:,.2f} USD an "
        "hour."
    )
    links = json.loads(plan_as_json(made))["faster_links"]
    assert [one["name"] for one in links] == ["1 Gbit/s ports", "10 Gbit/s ports"]
    assert links[0]["sync"]["saved"] == pytest.approx(saved)


def test_a_faster_port_saves_the_time_that_sync_waits() -> None:
    like = Machine(alone_s=5.0, price_per_hour=2)
    made = make_plan(WORKLOAD, Cluster.of((1, 1), Link.parse("1Gbit"), like=like), currency="EUR")
    assert made.choice.prediction.strategy == "sync"
    (faster,) = made.faster_links
    saved = 4 * (made.chosen.run_s - faster.chosen.run_s) / 3600
    assert saved > 1
    sooner = units.DURATION.text(made.chosen.run_s - faster.chosen.run_s)
    hourly = saved / faster.chosen.run_s * 3600
    assert worth_of_links(made) == [
        f"With 10 Gbit/s ports the run would cost {saved:,.2f} EUR less and end {sooner} sooner, "
        f"worth {units.money(hourly, currency='EUR')} an hour."
    ]


def test_without_prices_the_worth_of_a_faster_port_is_not_shown() -> None:
    free = plan_recipe(load_recipe("demo"), PlanRequest(ranks="2", link="9Gbit", gpu="cpu"))
    assert worth_of_links(free) == []


def test_one_gpu_alone_is_paid_for_alone() -> None:
    alone = plan().what_ifs[0]
    assert alone.prediction.step_s == pytest.approx(4 * 0.61)
    assert alone.price == pytest.approx(4 * 0.61 * 300_000 / 3600 * 3.06)
    assert alone.speed_up == 1


def test_an_unknown_price_of_one_host_makes_the_sum_unknown() -> None:
    machines = Machine(alone_s=1.0, price_per_hour=1.0), Machine(alone_s=1.0)
    unknown = make_plan(WORKLOAD, Cluster(machines, Link.parse("1Gbit")), currency="USD")
    assert unknown.strategies[0].price is None
    assert unknown.what_ifs[0].price is not None


def test_more_ranks_than_a_batch_has_sentences_make_nothing_faster() -> None:
    recipe = load_recipe("demo")
    made = plan_recipe(recipe, PlanRequest(ranks="2", link="10Gbit", gpu="cpu"))
    assert recipe.data.batch_tokens is not None
    assert max(row.speed_up for row in made.what_ifs) <= recipe.data.batch_tokens / 25
    assert made.what_ifs[-1].name == "512 ranks"


def test_a_plan_lists_its_what_ifs() -> None:
    names = [row.name for row in plan(link="100Mbit").what_ifs]
    assert names == [
        "one GPU alone",
        "host 1 alone",
        "these hosts",
        "1 Gbit/s ports",
        "10 Gbit/s ports",
        "two more hosts",
        "16 ranks",
        "32 ranks",
        "64 ranks",
        "128 ranks",
        "256 ranks",
        "512 ranks",
    ]


def test_the_text_fits_a_terminal_and_names_slower_things_so() -> None:
    console = Console(width=80, record=True, force_terminal=False, quiet=False)
    with console.capture() as capture:
        print_plan(plan("4", "100Mbit", 3.06), console)
    text = capture.get()
    assert "…" not in text
    assert "x slower" in text
    assert "Use diloco H=" in text
    table = [line for line in text.splitlines() if line.startswith(("plain", "sync", "512"))]
    assert all(len(line) <= 80 for line in table)


@pytest.mark.parametrize("width", [80, 60])
def test_no_number_is_cut_short_in_a_narrow_terminal(width: int) -> None:
    made = plan("8+1", "10Mbit", 3.06)
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        print_plan(made, console)
    lines = capture.get().splitlines()
    assert "…" not in capture.get()
    for row in made.strategies:
        (line,) = (one for one in lines if one.startswith(f"{row.name}  "))
        assert f"{row.run_s / 3600:,.2f} h" in line  # of more than an hour each
        assert line.endswith(("x slower", " x"))


def test_the_recommendation_for_a_hopeless_link() -> None:
    assert recommendation(plan("2", "100kbit")).startswith("Train on one GPU alone (host 1): 101 h")


def test_json_says_the_same_with_units_in_its_names() -> None:
    made = plan()
    values = json.loads(plan_as_json(made))
    assert values["ranks_per_host"] == [2, 2]
    assert values["link_bytes_per_s"] == 215e6
    assert [row["label"] for row in values["strategies"]] == [
        row.prediction.label for row in made.strategies
    ]
    assert values["choice"]["strategy"] == made.choice.prediction.strategy
    for row in values["strategies"]:
        assert row["faster_than_one_rank"] == (row["step_s"] < 4 * 0.61)


def test_the_command_for_a_shipped_recipe() -> None:
    recipe = load_recipe("wmt16-ende-reference")
    request = PlanRequest(link="215MB/s", ranks="4", gpu="v100", price="3.06 USD")
    made = plan_recipe(recipe, request)
    assert made.workload.num_parameters == 60_880_896
    assert made.strategies[0].prediction.step_s == pytest.approx(1.70, rel=0.10)
    slow = plan_recipe(recipe, PlanRequest(link="12.0MB/s", ranks="4", gpu="v100"))
    assert slow.strategies[0].prediction.step_s == pytest.approx(30.5, rel=0.05)


def test_a_measured_compute_counts_for_one_rank_of_these() -> None:
    recipe = load_recipe("wmt16-ende-reference")
    request = PlanRequest(link="1Gbit", ranks="2", compute="0.25s", gpu="cpu")
    made = plan_recipe(recipe, request)
    assert made.strategies[0].prediction.compute_s == 0.25
    assert made.what_ifs[0].prediction.step_s == 0.5


def _printed(made: Plan) -> str:
    console = Console(width=200, force_terminal=False)
    with console.capture() as capture:
        print_plan(made, console)
    return capture.get()


def test_a_given_compute_that_is_multiplied_is_printed_with_its_factor() -> None:
    request = PlanRequest(link="10Gbit", ranks="1x4", compute="2s", gpu="v100")
    made = plan_recipe(load_recipe("wmt16-ende-reference"), request)
    text = _printed(made)
    factor = made.cluster.compute_s / 2
    assert factor == pytest.approx(1.13, abs=0.005)
    assert f"{factor:.2f} x --compute: all wait for the slowest of 4 ranks" in text
    assert "--compute is taken for the mean, and multiplied by it" in text
    on_cpu = plan_recipe(load_recipe("wmt16-ende-reference"), replace(request, gpu="cpu"))
    assert "x --compute" not in _printed(on_cpu)
    known = plan_recipe(load_recipe("wmt16-ende-reference"), replace(request, compute=None))
    assert "--compute" not in _printed(known)


def test_a_run_shorter_than_an_hour_is_printed_in_minutes_or_seconds() -> None:
    request = PlanRequest(link="10Gbit", ranks="1x16", gpu="h100")
    short = plan_recipe(load_recipe("demo", ["train.max_steps=20"]), request)
    text = _printed(short)
    assert not re.search(r"\b0\.\d+ h", text)
    (line,) = (one for one in text.splitlines() if one.startswith("sync"))
    assert units.DURATION.text(short.strategies[1].run_s) in line
    long = plan_recipe(load_recipe("wmt16-ende-reference"), request)
    assert f"{long.strategies[0].run_s / 3600:,.2f} h" in _printed(long)


def test_the_slowest_kind_of_gpu_sets_the_pace(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("hosts") / "hosts.toml"
    file.write_text(
        '[[host]]\naddress = "a"\ngpus = 1\ngpu = "a100"\n'
        '[[host]]\naddress = "b"\ngpus = 1\ngpu = "v100"\n'
    )
    recipe = load_recipe("wmt16-ende-reference")
    made = plan_recipe(recipe, PlanRequest(link="1Gbit", hosts=str(file)))
    slow = plan_recipe(recipe, PlanRequest(link="1Gbit", ranks="1+1", gpu="v100"))
    assert made.cluster.compute_s == slow.cluster.compute_s
    assert [one.what for one in assumptions(made)][:2] == ["a rank on a", "a rank on b"]


def test_a_speed_up_is_one_against_the_fastest_gpu(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text(
        '[[host]]\naddress = "a"\ngpus = 4\ngpu = "p100"\nprice_per_hour = 1.0\n'
        '[[host]]\naddress = "b"\ngpus = 1\ngpu = "v100"\nprice_per_hour = 3.0\n'
    )
    recipe = load_recipe("wmt16-ende-reference")
    made = plan_recipe(recipe, PlanRequest(link="1Gbit", hosts=str(file)))
    v100 = plan_recipe(recipe, PlanRequest(link="1Gbit", ranks="1", gpu="v100"))
    alone = made.what_ifs[0]
    assert alone.prediction.step_s == v100.choice.prediction.step_s
    assert alone.price == pytest.approx(alone.run_s / 3600 * 3.0)
    # Four P100s and a V100 that waits for them are slower than the V100 by itself.
    assert all(row.speed_up < 1 for row in made.strategies)
    assert made.choice.prediction == alone.prediction
    assert recommendation(made).startswith("Train on one GPU alone (b): ")


def test_one_host_needs_no_network() -> None:
    recipe = load_recipe("demo")
    made = plan_recipe(recipe, PlanRequest(hosts="10.0.0.1:4", gpu="v100"))
    assert made.cluster.link.source == "assumed: 94.5% of a port of 1 Gbit/s"
    assert str(made.cluster) == "4 ranks on one host"


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (PlanRequest(link="1Gbit", gpu="v100"), "--hosts or --ranks"),
        (PlanRequest(link="1Gbit", gpu="v100", ranks="2", hosts="a,b"), "--hosts or --ranks"),
        (PlanRequest(ranks="2", gpu="v100"), "--link"),
        (PlanRequest(ranks="2", link="1Gbit"), "--gpu"),
        (PlanRequest(ranks="2", link="1Gbit", gpu="v10"), "did you mean v100?"),
        (PlanRequest(ranks="2", link="1Gbit", gpu="abacus"), "p100"),
        (PlanRequest(ranks="2", link="1Gbit", compute="0s"), "--compute"),
        (PlanRequest(ranks="2", link="1Gbit", compute="1e309s"), "--compute"),
        (PlanRequest(ranks="2", link="1e308Gbit", gpu="v100"), "--link"),
        (PlanRequest(ranks="2", link="1Gbit", gpu="v100", price="3"), "not an amount"),
        (PlanRequest(ranks="2", link="1Gbit", gpu="v100", price="-3 USD"), "--price"),
        (PlanRequest(ranks="2", link="1Gbit", gpu="v100", price="1e309 USD"), "--price"),
        (PlanRequest(link="1Gbit", hosts="a:2,b:1"), "--gpu"),
    ],
)
def test_a_refused_plan_names_the_missing_or_wrong_option(
    request_: PlanRequest, words: str
) -> None:
    with pytest.raises(ConfigError) as error:
        plan_recipe(load_recipe("demo"), request_)
    assert words in str(error.value)


def test_planning_never_imports_torch() -> None:
    program = "import sys, dragoman.cluster.plan_request, dragoman.cluster.plan_view as _; "
    program += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_plan_uses_the_measurements_of_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = "10.0.0.1:2,10.0.0.2:1"
    recipe = load_recipe("wmt16-ende-reference")
    with pytest.raises(ConfigError, match="run dragoman doctor --hosts first"):
        plan_recipe(recipe, PlanRequest(hosts=words))
    host = HostFacts(
        host="10.0.0.1",
        gpus_usable=2,
        cpu_cores=8,
        versions={},
        digests={},
        shared_memory_bytes=0,
        disk_free_bytes=0,
        flop_per_s=40e12,
    )
    slower = host.model_copy(update={"host": "10.0.0.2", "gpus_usable": 1, "flop_per_s": 20e12})
    pair = PairFacts(
        hosts=("10.0.0.1", "10.0.0.2"),
        forth_bytes_per_s=12e6,
        back_bytes_per_s=12e6,
        both_bytes_per_s=11.8e6,
        latency_s=1e-3,
    )
    found = ClusterFacts(hosts=(host, slower), pairs=(pair,), diloco_weight_s=3e-9)
    remember(load_hosts(words), found)
    made = plan_recipe(recipe, PlanRequest(hosts=words))
    assert made.cluster.diloco_weight_s == 3e-9
    assert made.cluster.link.bytes_per_s == 11.8e6
    assert made.cluster.link.source.startswith("measured by doctor 20")
    waits = 1 + GPU_SPREAD * largest_of_draws(3)
    slowest_s = made.workload.flop_per_step / 20e12 / 3
    assert made.cluster.compute_s == pytest.approx(slowest_s * waits)
    assert made.what_ifs[0].prediction.step_s == pytest.approx(made.workload.flop_per_step / 40e12)
    given = plan_recipe(recipe, PlanRequest(hosts=words, link="1Gbit", gpu="v100"))
    assert given.cluster.link.source == "given: 94.5% of a port of 1 Gbit/s"
    assert given.cluster.machines[0].rate.startswith("v100")
    assert given.cluster.diloco_weight_s == DILOCO_WEIGHT_S["gpu"]
    # Without its GPU a host was as fast as its processor, which says nothing of the GPU.
    blind = slower.model_copy(update={"gpus_usable": 0, "flop_per_s": 0.1e12})
    remember(load_hosts(words), ClusterFacts(hosts=(host, blind), pairs=(pair,)))
    with pytest.raises(ConfigError, match="the kind of GPU is not known"):
        plan_recipe(recipe, PlanRequest(hosts=words))
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)  # if nothing can be kept, doctor goes on
    remember(load_hosts(words), ClusterFacts(hosts=(host, slower), pairs=(pair,)))
    other = PlanRequest(hosts="10.0.0.1:2,10.0.0.3:1")
    with pytest.raises(ConfigError, match="--link"):
        plan_recipe(recipe, other)
