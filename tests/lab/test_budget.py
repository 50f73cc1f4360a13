"""A budget on two hosts with a slow link between them: it ends in time, with what `auto` takes."""

from __future__ import annotations

import re

import pytest

from budget_text import write_budget_text
from dragoman.training.clock import read_budget
from lab.conftest import OpenLab
from lab.controller import nothing_left, set_up_controller

pytestmark = pytest.mark.timeout(1200)
SECONDS = 240


@pytest.mark.slow
def test_hosts_behind_a_slow_link_end_in_time(make_lab: OpenLab) -> None:
    controller = set_up_controller(make_lab(["alpha", "beta"], rate="20mbit"), slots=(1, 1))
    write_budget_text(controller.folder, "small")
    hosts = controller.folder / "hosts.toml"
    priced = hosts.read_text().replace("[[host]]", "[[host]]\nprice_per_hour = 30.0")
    hosts.write_text(priced)
    money = f"{60 * SECONDS / 3600:g} USD"
    words = ("run", "small.toml", "--budget", money, "--hosts", "hosts.toml")
    refused = controller.run(*words)
    assert refused.returncode == 2
    assert "run dragoman doctor with these hosts first" in refused.stderr
    assert controller.run("doctor", "--hosts", "hosts.toml").returncode in (0, 1)
    done = controller.run(*words)
    assert done.returncode == 0, done.stderr
    nothing_left(controller)
    (path,) = (controller.folder / "runs").iterdir()
    budget = read_budget(path)
    assert budget is not None
    assert budget.used_s is not None
    # The promise is 2%, on machines whose processor is not taken away for seconds.
    assert budget.used_s < 1.3 * SECONDS
    assert budget.price_per_hour == 60.0
    spent = re.search(r"used .*, ([\d.]+) USD of ([\d.]+) USD \(", done.stdout)
    assert spent is not None
    assert float(spent[1]) == pytest.approx(2 * 30.0 * budget.used_s / 3600, rel=0.01)
    assert f"{spent[2]} USD" == money.replace(" ", ".00 ")
    assert (path / "export" / "ctranslate2-int8" / "model.bin").is_file()
    (started, *_) = controller.events("run_started")
    assert started.payload["world_size"] == 2
    assert started.payload["price_per_hour"] == 60.0
    (chosen, *_) = controller.events("strategy_chosen")
    assert chosen.payload["why"]
