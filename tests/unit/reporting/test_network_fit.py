"""The expected wait for the network in a step, by strategy: the planner's formulas on records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.cluster.hosts import HOSTS_FILE, Hosts
from dragoman.recipe.recipe import load_recipe
from dragoman.reporting.cost import price_per_hour
from dragoman.reporting.facts import Chosen, Facts
from dragoman.reporting.network import computed_exposed_s, network_fit
from dragoman.reporting.reading import read_facts
from dragoman.reporting.verdicts import judge
from dragoman.telemetry.events import LinkMeasured
from dragoman.telemetry.host import HourlyPrice
from recorded_runs import Recorded

NETWORK_S = 10.0
BACKWARD_S = 0.26  # of a step of a Recorded run


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return read_facts(Recorded(steps=2000).write(tmp_path_factory.mktemp("runs") / "run"))


def _with(facts: Facts, *settings: str) -> Facts:
    return replace(facts, recipe=load_recipe("demo", settings))


def test_backward_hides_all_but_the_last_bucket(facts: Facts) -> None:
    demo = _with(facts)
    hidden_s = 0.9 * BACKWARD_S
    assert computed_exposed_s(demo, NETWORK_S) == pytest.approx(NETWORK_S - hidden_s)
    # All but the first 1 MiB of the demo's gradients leave in one bucket, when backward has ended.
    assert computed_exposed_s(demo, 0.1) == pytest.approx(0.1, rel=0.15)
    assert computed_exposed_s(facts, 0.1) == 0.0  # without a recipe nobody knows the buckets


def test_several_batches_of_a_step_wait_once(facts: Facts) -> None:
    several = _with(facts, "data.accumulate=4")
    assert computed_exposed_s(several, NETWORK_S) == pytest.approx(NETWORK_S - 0.9 * BACKWARD_S / 4)


def test_strategies_that_hide_nothing_or_everything(facts: Facts) -> None:
    numbers = {"every": 100, "fragments": 1}
    diloco = [f"distributed.diloco.{key}={number}" for key, number in numbers.items()]
    diloco.append("distributed.strategy=diloco")
    blocking = _with(facts, *diloco, "distributed.diloco.delay=0")
    assert computed_exposed_s(blocking, NETWORK_S) == pytest.approx(NETWORK_S)
    streaming = _with(facts, *diloco, "distributed.diloco.delay=50")  # 50 x 0.4 s = 20 s
    assert computed_exposed_s(streaming, 0.2) == pytest.approx(0.0, abs=1e-12)
    assert computed_exposed_s(streaming, 0.3) == pytest.approx(0.1)


def test_the_choice_of_auto_is_named_and_computed_if_possible(facts: Facts) -> None:
    auto = _with(facts, "distributed.strategy=auto")
    sync = Chosen(strategy="sync", label="sync bf16", why="it is cheap")
    local = Chosen(strategy="diloco", label="diloco H=4", why="it is cheaper")
    hidden_s = 0.9 * BACKWARD_S
    chosen = replace(auto, chosen=sync)
    assert computed_exposed_s(chosen, NETWORK_S) == pytest.approx(NETWORK_S - hidden_s)
    assert computed_exposed_s(replace(auto, chosen=local), NETWORK_S) is None
    rows = {row.name: row.text for verdict in judge(chosen) for row in verdict.evidence}
    assert rows["strategy, chosen by auto"] == "sync bf16: it is cheap"


@pytest.mark.parametrize(("sync_s", "said"), [(0.0, "bursts"), (3.2, "other traffic"), (2.25, "")])
def test_waits_that_bytes_do_not_explain_have_a_remedy(
    sync_s: float, said: str, tmp_path: Path
) -> None:
    link = LinkMeasured(
        interface="eth0", peer="host-b", bytes_per_s=12e6, latency_s=3e-4, method="test"
    )
    run = Recorded(steps=2000, sync_s=(sync_s, sync_s), extra=[(0, link)])
    remedy = network_fit(read_facts(run.write(tmp_path / "run"))).remedy
    assert said in remedy
    assert bool(said) == bool(remedy)


def _price_per_hour(run: Path) -> HourlyPrice | None:
    facts = read_facts(run)
    return price_per_hour(facts, facts.segments[-1])


def test_the_price_of_its_hosts_is_that_of_the_run(tmp_path: Path) -> None:
    run = Recorded(steps=2000).write(tmp_path / "run")
    host = {"address": "10.0.0.1", "slots": 1, "price_per_hour": 3.0}
    two = {"host": [host, {**host, "price_per_hour": 5.0}], "currency": "EUR"}
    record = run / HOSTS_FILE
    record.write_text(Hosts.model_validate_json(json.dumps(two)).model_dump_json())
    assert _price_per_hour(run) == HourlyPrice(amount=8.0, currency="EUR")
    # Trained here after all, one without a price, a record that is broken: nobody knows.
    here = Recorded(steps=2000, one_host=True).write(tmp_path / "here")
    (here / HOSTS_FILE).write_bytes(record.read_bytes())
    assert _price_per_hour(here) is None
    two["host"] = [host, {"address": "10.0.0.2", "slots": 1}]
    record.write_text(Hosts.model_validate_json(json.dumps(two)).model_dump_json())
    assert _price_per_hour(run) is None
    record.write_text("{")
    assert any(HOSTS_FILE in problem for problem in read_facts(run).problems)
