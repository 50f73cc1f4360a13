"""Runs on hosts that may be taken away: the formula against a simulation, and what a plan says."""

from __future__ import annotations

import json
import math
import random
import re
import statistics
from pathlib import Path

import pytest
from rich.console import Console

from dragoman.base.errors import ConfigError
from dragoman.cluster.hosts import load_hosts
from dragoman.cluster.interruptions import best_every_s, expected_s
from dragoman.cluster.plan import Plan
from dragoman.cluster.plan_request import PlanRequest, plan_recipe
from dragoman.cluster.plan_view import plan_as_json, print_plan, worth_of_links
from dragoman.recipe.recipe import load_recipe


def simulated_s(
    draw: random.Random, work_s: float, *, every_s: float, save_s: float, restart_s: float,
    mean_s: float,
) -> float:  # fmt: skip
    """The wall clock of one run, moment by moment: a clock that rings at random times."""
    clock_s, done_s = 0.0, 0.0
    rings_s = draw.expovariate(1 / mean_s)
    while done_s < work_s:
        ends_s = clock_s + every_s + save_s
        if ends_s <= rings_s:
            clock_s, done_s = ends_s, done_s + every_s
            continue
        clock_s = rings_s
        while True:  # until a way back is not interrupted itself
            rings_s = clock_s + draw.expovariate(1 / mean_s)
            if clock_s + restart_s <= rings_s:
                clock_s += restart_s
                break
            clock_s = rings_s
    return clock_s


@pytest.mark.parametrize("mean_s", [900.0, 3600.0, 36_000.0])
def test_the_expected_time_is_that_of_simulated_runs(mean_s: float) -> None:
    """Twenty hours of work, saved every half an hour; from 'hardly ever' to 'all the time'."""
    times = {"every_s": 1800.0, "save_s": 40.0, "restart_s": 300.0, "mean_s": mean_s}
    draw = random.Random(12)
    runs = [simulated_s(draw, 72_000.0, **times) for _ in range(2000)]
    error_s = statistics.stdev(runs) / math.sqrt(len(runs))
    assert expected_s(72_000.0, **times) == pytest.approx(statistics.mean(runs), abs=3 * error_s)
    assert error_s < 0.02 * statistics.mean(runs)


@pytest.mark.parametrize(("mean_min", "best_min"), [(24 * 60, 117.0), (6 * 60, 57.0), (15, 9.1)])
def test_the_best_interval_is_that_of_daly_s_figures(mean_min: float, best_min: float) -> None:
    """Figures 3, 4 and 5 of Daly 2006: a dump of 5 minutes, a restart of 10."""
    found_min = best_every_s(save_s=300, mean_s=mean_min * 60) / 60
    assert found_min == pytest.approx(best_min, abs=0.5 if best_min > 10 else 0.05)
    times = {"save_s": 300.0, "restart_s": 600.0, "mean_s": mean_min * 60}
    best, shorter, longer = (
        expected_s(1e6, every_s=found_min * 60 * times_it, **times) for times_it in (1, 0.8, 1.25)
    )
    assert best < shorter
    assert best < longer


def test_a_run_that_never_gets_to_its_checkpoint_does_not_end() -> None:
    assert math.isinf(expected_s(1e9, every_s=1e9, save_s=1, restart_s=1, mean_s=60))
    assert best_every_s(save_s=300, mean_s=60) == 60


def planned(
    folder: Path, more: str, *settings: str, price: str | None = None, link: str = "10Gbit"
) -> Plan:
    file = folder / "hosts.toml"
    file.write_text(
        "".join(
            f'[[host]]\nname = "{name}"\naddress = "10.0.0.{n}"\ngpus = 2\ngpu = "v100"\n'
            f"price_per_hour = 8\n{more}"
            for n, name in enumerate(("alpha", "beta"), start=1)
        )
    )
    recipe = load_recipe("wmt16-ende-base", settings)
    return plan_recipe(recipe, PlanRequest(hosts=str(file), link=link, price=price))


def test_a_plan_shows_the_expected_time_and_cost_of_spot_hosts(tmp_path: Path) -> None:
    spot = "spot_price_per_hour = 2.5\ninterruption_hours = 6\n"
    made = planned(tmp_path, spot)
    found = made.interrupted
    assert found is not None
    assert found.mean_s == 3 * 3600  # two hosts of six hours each
    assert found.steady_price == pytest.approx(16 * found.steady_s / 3600)
    assert found.price == pytest.approx(5 * found.run_s / 3600)
    assert found.best_run_s <= found.run_s
    assert found.steady_s < found.best_run_s
    console = Console(width=1000, force_terminal=False)
    with console.capture() as capture:
        print_plan(made, console)
    text = capture.get()
    assert "full cost USD" in text
    assert " USD at the full price, because " in text
    assert "If hosts are taken away, one every 3 h 00 min, the run takes" in text
    assert f"and {found.price:,.2f} USD, saving every {found.every_steps:,} steps" in text
    assert f"every {found.best_every_steps:,} steps it would take" in text
    assert f"and {found.steady_price:,.2f} USD.\n" in text
    assert "restart: 5 min 37 s: replacement_s, and 37 s to start again" in text
    assert "a checkpoint: 12 bytes a weight" in text
    assert json.loads(plan_as_json(made))["interrupted"]["run_s"] == found.run_s
    assert planned(tmp_path, "").interrupted is None
    typed = planned(tmp_path, spot, price="1 EUR").interrupted
    assert typed is not None
    assert typed.price == pytest.approx(2 * typed.run_s / 3600)


def test_the_plan_warns_of_a_run_that_is_interrupted_before_it_saves(tmp_path: Path) -> None:
    made = planned(tmp_path, "interruption_hours = 0.01\n", "checkpoint.every_steps=100000")
    console = Console(width=1000, force_terminal=False)
    with console.capture() as capture:
        print_plan(made, console)
    assert "the run is unlikely ever to end, saving every 100,000 steps" in capture.get()
    assert json.loads(plan_as_json(made))["interrupted"]["run_s"] is None


@pytest.mark.parametrize(
    ("more", "settings"),
    [("replacement_s = 1e7\n", ()), ("replacement_s = 20_000\n", ("checkpoint.every_steps=1",))],
)
def test_an_endless_run_has_no_price_and_no_long_number(
    tmp_path: Path, more: str, settings: tuple[str, ...]
) -> None:
    spot = f"spot_price_per_hour = 1e9\ninterruption_hours = 0.01\n{more}"
    made = planned(tmp_path, spot, *settings)
    console = Console(width=1000, force_terminal=False)
    with console.capture() as capture:
        print_plan(made, console)
    text = capture.get()
    assert "the run is unlikely ever to end, saving every" in text
    assert "; nor with any other checkpoint.every_steps. Undisturbed: " in text
    assert not re.search(r"[\d,.]{40}|not finite|\binf\b", text)


@pytest.mark.parametrize("hours", ["5e-324", "1e-300", "1e-6", "0", "-1", "nan"])
def test_no_host_is_taken_away_all_the_time(tmp_path: Path, hours: str) -> None:
    with pytest.raises(ConfigError, match="interruption_hours") as error:
        planned(tmp_path, f"interruption_hours = {hours}\n")
    assert "\n" not in str(error.value)


def test_the_worth_of_a_port_is_at_the_full_price_that_it_names(tmp_path: Path) -> None:
    spot = "spot_price_per_hour = 2.5\ninterruption_hours = 6\n"
    for more, label in ((spot, " less at the full price and end "), ("", " less and end ")):
        saved = worth_of_links(planned(tmp_path, more, link="20Mbit"))
        assert any(label in line for line in saved), saved


def test_the_spot_price_counts_and_needs_interruption_hours(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    entry = '[[host]]\naddress = "a"\ngpus = 1\nprice_per_hour = 8\nspot_price_per_hour = 2.5\n'
    file.write_text(f"{entry}interruption_hours = 6\n")
    assert load_hosts(str(file)).price_per_hour == 2.5
    file.write_text(entry)
    with pytest.raises(ConfigError, match="interruption_hours = 12") as error:
        load_hosts(str(file))
    assert str(error.value).count("\n") == 0
