"""Plans: what is recommended and what never is, hours and money, the worth of other hardware."""

from __future__ import annotations

import json
import math
import random
import re
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dragoman.base.errors import ConfigError
from dragoman.cluster.options import RESTART_S, Cluster, Machine, Option, Spot
from dragoman.cluster.plan import Plan
from dragoman.cluster.plan_request import Here, PlanRequest, plan_recipe
from dragoman.cluster.rates import LAYER_S, SEVERAL_GPUS, Link
from dragoman.cluster.workload import Workload, weight_shapes
from dragoman.model.config import ModelConfig
from dragoman.recipe import recipe as recipe_module
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


def plan(
    ranks: tuple[int, ...] = (2, 2), link: str = "215MB/s", price: float | None = 3.06
) -> Plan:
    like = Machine(alone_s=0.61 * sum(ranks), price_per_hour=price)
    machines = tuple(
        replace(like, ranks=count, name=f"host {number}") for number, count in enumerate(ranks, 1)
    )
    return Plan(Cluster(WORKLOAD, machines, Link.parse(link), 0.5e-9), "USD")


def planned(recipe: str, *overrides: str, **request: Any) -> Plan:
    return plan_recipe(load_recipe(recipe, overrides), PlanRequest(**request))


def option(made: Plan, name: str, strategy: str, *, every: int = 1) -> Option:
    wanted = (name, strategy, every)
    (found,) = (
        one for one in made.options if (one.name, one.step.strategy, one.step.every) == wanted
    )
    return found


def printed(made: Plan, *, width: int = 1000, explain: bool = False) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        made.print(console, explain=explain)
    return capture.get()


@given(
    ranks=st.lists(st.integers(1, 8), min_size=1, max_size=8),
    megabits=st.floats(0.1, 1e5),
    compute_s=st.floats(1e-3, 100),
    on_gpu=st.booleans(),
)
def test_no_plan_is_slower_than_one_rank_or_takes_what_was_not_measured(
    ranks: list[int], megabits: float, compute_s: float, on_gpu: bool
) -> None:
    like = Machine(alone_s=compute_s, on_gpu=on_gpu, price_per_hour=1.0)
    machines = tuple(replace(like, ranks=count) for count in ranks)
    made = Plan(Cluster(WORKLOAD, machines, Link.nominal(megabits * 1e6), 18e-9), "USD")
    assert made.quickest.step.step_s <= compute_s / 0.98
    assert made.cheapest.price <= made.options[0].price / 0.98  # type: ignore[operator]
    for recommended in (made.cheapest, made.quickest):
        assert recommended.is_at_hand
        step = recommended.step
        assert step.strategy in ("none", "sync", "diloco")
        if step.strategy == "diloco":
            assert step.every == 3
            assert recommended.cluster.num_hosts <= 4
    assert made.together.cluster.num_hosts == len(ranks)


def test_local_steps_that_nobody_has_measured_are_named_but_not_recommended() -> None:
    """Eight A100 were told to train with 24 local steps on eight hosts; one costs half of that."""
    made = planned("wmt16-ende-big", hosts="8", gpu="a100:1", link="1Gbit", price="3 USD")
    assert made.cheapest is made.quickest is made.options[0]
    unproven = made.unproven
    assert unproven is not None
    assert unproven.step.every > 3
    assert unproven.run_s < made.quickest.run_s
    (line,) = (one for one in made.lines() if one.startswith("Not recommended"))
    assert f"{unproven.run_s / 3600:,.2f} h" in line
    assert "nobody knows" in line
    assert "\n(?): nobody knows" in printed(made)
    assert "(?)" not in printed(planned("wmt16-ende-big", gpu="a100:1"))


def test_a_faster_precision_is_a_hint_and_not_an_assumption() -> None:
    asked = {"hosts": "2", "gpu": "v100:4", "link": "10Gbit"}
    made = planned("wmt16-ende-base", "train.precision=bf16", **asked)
    (hint,) = made.hints
    assert hint in printed(made)
    faster = planned("wmt16-ende-base", "train.precision=fp16", **asked)
    assert hint == f"With train.precision=fp16: {faster.describe(faster.quickest)}."
    assert faster.hints == ()
    asked["gpu"] = "a100:4"
    assert planned("wmt16-ende-base", "train.precision=bf16", **asked).hints == ()
    (hint,) = planned("wmt16-ende-base", "train.precision=fp32", **asked).hints
    assert "train.precision=bf16" in hint


def test_hours_and_money_are_those_of_all_hosts_that_take_part() -> None:
    made = plan()
    every_step = option(made, "all hosts", "sync")
    assert every_step.run_s == pytest.approx(every_step.step.step_s * 300_000)
    assert every_step.price == pytest.approx(every_step.run_s / 3600 * 2 * 3.06)
    alone = made.options[0]
    assert alone.step.step_s == pytest.approx(4 * 0.61)
    assert alone.price == pytest.approx(4 * 0.61 * 300_000 / 3600 * 3.06)
    assert made.speed_up(alone) == 1


def test_without_prices_the_cheapest_has_the_fewest_machine_hours() -> None:
    made = plan((1, 1), "10Gbit", price=None)
    assert made.cheapest.cluster.num_hosts == 1
    assert made.quickest.cluster.num_hosts == 2
    assert "Fewest machine-hours: one GPU alone" in printed(made)
    assert made.cheapest.price is None


def test_a_faster_port_is_worth_what_it_saves() -> None:
    made = plan(link="100Mbit")
    faster = option(made, "10 Gbit/s ports", "sync")
    assert faster in made.faster_ports
    saved = made.quickest.price - faster.price  # type: ignore[operator]
    (line,) = (one for one in made.lines() if one.startswith("With 10 Gbit/s ports"))
    assert f"worth up to {saved / faster.run_s * 3600:.2f} USD an hour" in line
    assert plan((1, 1), "100Gbit").faster_ports == ()


@pytest.mark.parametrize("width", [80, 60])
def test_no_number_is_cut_short_in_a_narrow_terminal(width: int) -> None:
    made = plan((8, 1), "10Mbit")
    text = printed(made, width=width)
    assert "…" not in text
    for one in made.options:
        assert f"{one.run_s / 3600:,.2f} h" in text  # of more than an hour each


def test_a_plan_fits_one_screen() -> None:
    text = printed(plan(link="100Mbit"), width=80)
    assert len(text.splitlines()) <= 24
    assert all(len(line.rstrip()) <= 80 for line in text.splitlines()), text
    assert "Assumptions" not in text


def test_a_run_shorter_than_an_hour_is_in_minutes_or_seconds() -> None:
    short = planned("demo", "train.max_steps=20", gpu="h100:16")
    assert not any(f"{one.run_s / 3600:.2f} h" in printed(short) for one in short.options)


def test_json_says_the_same_with_units_in_its_names() -> None:
    made = plan()
    values = json.loads(made.as_json())
    assert values["link"]["bytes_per_s"] == 215e6
    assert [one["name"] for one in values["options"]] == [one.name for one in made.options]
    quickest = values["options"][values["quickest"]]
    assert quickest["run_s"] == made.quickest.run_s
    assert quickest["ranks_per_host"] == [2, 2]
    assert quickest["interrupted_s"] is None
    assert values["options"][values["cheapest"]]["price"] == made.cheapest.price
    assert values["hosts"][0]["directions"]["sends_bytes_per_s"] is None


def test_the_steps_of_the_reference_run() -> None:
    made = planned("wmt16-ende-reference", hosts="4", link="215MB/s", gpu="v100")
    assert made.workload.num_parameters == 60_880_896
    assert option(made, "other tools", "plain").step.step_s == pytest.approx(1.70, rel=0.10)
    slow = planned("wmt16-ende-reference", hosts="4", link="12.0MB/s", gpu="v100")
    assert option(slow, "other tools", "plain").step.step_s == pytest.approx(30.5, rel=0.05)


def test_a_given_compute_is_that_of_one_rank_of_these() -> None:
    """On GPUs one rank alone has the work of all; ranks of one processor share it."""
    on_cpu = planned("demo", hosts="2", link="1Gbit", compute="0.25s", gpu="cpu")
    assert option(on_cpu, "all hosts", "sync").step.compute_s == 0.25
    assert on_cpu.options[0].step.step_s == 0.5
    shared = planned("demo", gpu="cpu:2", link="1Gbit", compute="1s")
    assert shared.speed_up(option(shared, "all 2 CPUs", "sync")) <= 1
    on_gpu = planned("wmt16-ende-big", gpu="a100:8", compute="400ms")
    assert option(on_gpu, "all 8 GPUs", "sync").step.compute_s == pytest.approx(0.4)
    assert on_gpu.options[0].step.step_s == pytest.approx(3.2)


@pytest.mark.parametrize(("ranks", "on_gpu"), [(1, False), (2, False), (4, True)])
def test_this_machine_takes_as_long_as_it_was_timed(ranks: int, on_gpu: bool) -> None:
    """Up to the sum of the gradients inside it, and half of that processors were busy."""
    here = Here(ranks, on_gpu, step_s=2.0, others_share=0.5)
    made = plan_recipe(load_recipe("demo"), PlanRequest(price="1 USD"), here=here)
    assert made.quickest.step.step_s == pytest.approx(2.0, rel=0.01)
    assert made.quickest.run_s == pytest.approx(2.0 * load_recipe("demo").train.max_steps, rel=0.01)
    assert any("50.0%" in hint for hint in made.hints)
    assert made.cluster.machines[0].source == "measured here, just now"
    idle = replace(here, others_share=0.0)
    assert plan_recipe(load_recipe("demo"), PlanRequest(), here=idle).hints == ()


@pytest.mark.parametrize(("text", "ranks"), [("v100", (1, 1)), ("V100:4", (4, 4))])
def test_numbers_of_gpus(text: str, ranks: tuple[int, ...]) -> None:
    made = planned("demo", gpu=text, hosts="2", link="1Gbit")
    assert made.cluster.ranks_per_host == ranks


def test_eight_gpus_are_not_eight_times_as_fast_and_need_no_local_steps() -> None:
    one_host = planned("wmt16-ende-big", gpu="a100:8")
    assert one_host.speed_up(one_host.quickest) == pytest.approx(8 * SEVERAL_GPUS, rel=0.01)
    two = planned("wmt16-ende-base", hosts="2", gpu="h100:8", link="100Gbit")
    assert two.quickest.step.strategy == "sync"
    # A small share of a batch takes no less than the start of its kernels, in each micro-batch.
    small = planned("wmt16-ende-base", "data.accumulate=4", gpu="h100:8")
    assert small.quickest.step.compute_s == pytest.approx(4 * 12 * LAYER_S)


def test_a_slow_link_inside_a_host_holds_up_its_gpus() -> None:
    """A GeForce 4090 has no NVLink. PCIe 4.0 x16 carries 31.5 GB/s each way (PCI-SIG: 16 lanes of
    16 GT/s, 128 of 130 bits); sums through it get a tenth of that at least.
    """
    made = planned("wmt16-ende-base", gpu="4090:2", compute="1µs")
    # Each of two ranks sends as many bytes as the gradients have; next to no compute hides them.
    plain = option(made, "other tools", "plain").step
    bytes_per_s = made.workload.num_parameters * 4 / plain.exposed_s
    assert 31.5e9 / 10 < bytes_per_s < 31.5e9
    given = planned("wmt16-ende-base", gpu="4090:2", compute="1µs", gpu_link="50GB/s")
    faster = option(given, "other tools", "plain").step
    assert plain.exposed_s / faster.exposed_s == pytest.approx(10, rel=0.01)
    # One ring is no faster than its slowest part.
    two = {"hosts": "2", "gpu": "4090:2", "compute": "1µs"}
    slow_s = [
        option(planned("wmt16-ende-big", **two, **one), "other tools", "plain").step.step_s
        for one in (
            {"link": "1Tbit", "gpu_link": "5GB/s"},
            {"link": "5GB/s", "gpu_link": "300GB/s"},
        )
    ]
    assert slow_s[0] == pytest.approx(slow_s[1])


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (PlanRequest(hosts="2", gpu="v100"), "link"),
        (PlanRequest(hosts="2", link="1Gbit"), "gpu"),
        (PlanRequest(hosts="0", gpu="v100"), "hosts"),
        (PlanRequest(hosts="10000", gpu="v100"), "hosts"),
        (PlanRequest(hosts="a:2,b:1", gpu="v100:2", link="1Gbit"), "gpu"),
        (PlanRequest(gpu="v100:"), "gpu"),
        (PlanRequest(gpu="v100:2+1"), "name unlike hosts: a:2,b:1"),
        (PlanRequest(gpu="a6000"), "tflops"),
        (PlanRequest(gpu="t4", tflops=0.0), "tflops"),
        (PlanRequest(tflops=65), "tflops"),
        (PlanRequest(gpu="t4", tflops=math.nan), "tflops"),
        (PlanRequest(gpu="cpu", compute="0s"), "compute"),
        (PlanRequest(gpu="cpu", compute="1e309s"), "compute"),
        (PlanRequest(hosts="2", link="1e308Gbit", gpu="v100"), "link"),
        (PlanRequest(gpu="v100", gpu_link="nvlink"), "gpu_link"),
        (PlanRequest(gpu="v100", price="3"), "not an amount"),
        (PlanRequest(gpu="v100", price="-3 USD"), "price"),
        (PlanRequest(gpu="v100", price="1e309 USD"), "price"),
        (PlanRequest(link="1Gbit", hosts="a:2,b:1"), "gpu"),
        (PlanRequest(hosts="a:2,b:1", compute="1s"), "run dragoman doctor with these hosts first"),
    ],
)
def test_a_refused_plan_names_the_missing_or_wrong_option(
    request_: PlanRequest, words: str
) -> None:
    with pytest.raises(ConfigError) as error:
        plan_recipe(load_recipe("demo"), request_)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("100Mbit", 11.8125e6),
        ("1 Gbit/s", 118.125e6),
        ("215 MB/s", 215e6),
        ("12MB/s", 12e6),
    ],
)
def test_bits_are_a_port_and_bytes_a_measurement(text: str, bytes_per_s: float) -> None:
    assert Link.parse(text).bytes_per_s == pytest.approx(bytes_per_s)


@pytest.mark.parametrize(
    "text", ["100 MB", "100", "100 Mb/s", "0 Mbit", "-1 MB/s", "fast", "", "1e-300bit/s"]
)
def test_ambiguous_links_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Link.parse(text)


@pytest.mark.parametrize("name", ["a6000", "RTX 3090", "T4"])
def test_an_unknown_gpu_is_called_unknown_and_takes_its_peak(name: str) -> None:
    with pytest.raises(ConfigError, match="is not known") as error:
        planned("wmt16-ende-base", gpu=name)
    assert "did you mean" not in str(error.value)
    a100 = planned("wmt16-ende-base", "train.precision=bf16", gpu="NVIDIA A100-SXM4-80GB")
    peak = planned("wmt16-ende-base", "train.precision=bf16", gpu=name, tflops=156)
    # Half of an A100's peak takes twice its time.
    assert peak.quickest.run_s / a100.quickest.run_s == pytest.approx(2, rel=0.01)


def test_planning_never_imports_torch() -> None:
    program = "import sys, dragoman.cluster.plan_request; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def spot_option(*, steps: int, save_every: int, hours: float) -> Option:
    spot = Spot(hours * 3600, 300.0, 2.5)
    host = Machine(alone_s=1.0, price_per_hour=8.0, spot=spot)
    workload = replace(WORKLOAD, max_steps=steps, save_every_steps=save_every)
    return Plan(Cluster(workload, (host,), Link(1e8)), "USD").quickest


def simulated_s(draw: random.Random, work_s: float, *, every_s: float, mean_s: float) -> float:
    """The wall clock of one run, moment by moment: a clock that rings at random times."""
    clock_s, done_s = 0.0, 0.0
    rings_s = draw.expovariate(1 / mean_s)
    while done_s < work_s:
        if clock_s + every_s <= rings_s:
            clock_s, done_s = clock_s + every_s, done_s + every_s
            continue
        clock_s = rings_s + RESTART_S + 300
        rings_s = clock_s + draw.expovariate(1 / mean_s)
    return clock_s


@pytest.mark.parametrize(("hours", "tolerance"), [(1, 0.1), (10, 0.03)])
def test_the_expected_time_on_spot_hosts_is_that_of_simulated_runs(
    hours: float, tolerance: float
) -> None:
    """Twenty hours of work, saved every ten minutes."""
    found = spot_option(steps=72_000, save_every=600, hours=hours)
    draw = random.Random(12)
    runs = [simulated_s(draw, 72_000.0, every_s=600.0, mean_s=hours * 3600.0) for _ in range(1000)]
    assert found.interrupted_s == pytest.approx(statistics.mean(runs), rel=tolerance)
    (line,) = (one for one in Plan(found.cluster, "USD").lines() if "taken away" in one)
    assert f"{2.5 * found.interrupted_s / 3600:.2f} USD" in line
    assert f"{found.interrupted_s / (hours * 3600):.2g} interruptions" in line


def test_a_run_that_never_gets_to_its_checkpoint_is_named() -> None:
    found = spot_option(steps=72_000, save_every=60_000, hours=1)
    made = Plan(found.cluster, "USD")
    assert "lower checkpoint.every_steps" in printed(made)
    assert json.loads(made.as_json())["options"][0]["interrupted_s"] is None


@pytest.mark.parametrize(
    "request_",
    [
        PlanRequest(gpu="4090"),
        PlanRequest(gpu="a100:8"),
        PlanRequest(gpu="cpu:2", hosts="2", link="12MB/s"),
        PlanRequest(hosts="2", compute="0.3s", link="1Gbit"),
        PlanRequest(hosts="a:2,b:1", gpu="h100", link="100Gbit", gpu_link="300GB/s"),
        PlanRequest(gpu="T4", tflops=65),
    ],
)
def test_every_assumption_is_explained_once_with_the_kind_of_its_source(
    request_: PlanRequest,
) -> None:
    made = plan_recipe(load_recipe("wmt16-ende-base"), request_)
    text = printed(made, explain=True)
    found = list(made.assumptions())
    assert len({one.partition(":")[0] for one in found}) == len(found)
    for one in found:
        assert re.search(r"\((measured|published|calculated|given|assumed).*\)$", one), one
        assert f"  {one}\n" in text


@pytest.mark.parametrize("name", ["wmt16-ende-base", "wmt16-ende-big"])
def test_hours_in_a_recipe_are_those_that_the_plan_says(name: str) -> None:
    text = (Path(recipe_module.__file__).parent / f"shipped/{name}.toml").read_text(
        encoding="utf-8"
    )
    said = text.split(" h of training on one H200: a plan")[0].split()[-1]
    assert f"{planned(name, gpu='h200').quickest.run_s / 3600:.1f}" == said
    assert "`dragoman plan --gpu h200`" in text
