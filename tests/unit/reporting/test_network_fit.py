"""What transfers and waits of a step tell, and what the hosts of a run cost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.cluster.hosts import HOSTS_FILE, Hosts
from dragoman.reporting.checks import BY_KEY, judge
from dragoman.reporting.cost import price_per_hour
from dragoman.reporting.reading import read_facts
from dragoman.telemetry.events import LinkMeasured, StrategyChosen
from dragoman.telemetry.host import HourlyPrice
from recorded_runs import Recorded


def test_the_choice_of_auto_is_named(tmp_path: Path) -> None:
    facts = read_facts(Recorded(steps=2000).write(tmp_path / "run"))
    chosen = StrategyChosen.model_construct(strategy="sync", label="sync bf16", why="it is cheap")
    rows = {
        row.name: row.text
        for verdict in judge(replace(facts, chosen=chosen))
        for row in verdict.evidence
    }
    assert rows["strategy, chosen by auto"] == "sync bf16: it is cheap"


@pytest.mark.parametrize(("sync_s", "said"), [(0.0, "bursts"), (3.2, "other traffic"), (2.25, "")])
def test_waits_that_bytes_do_not_explain_have_a_remedy(
    sync_s: float, said: str, tmp_path: Path
) -> None:
    link = LinkMeasured(
        interface="eth0", peer="host-b", bytes_per_s=12e6, latency_s=3e-4, method="test"
    )
    run = Recorded(steps=2000, sync_s=(sync_s, sync_s), extra=[(0, link)])
    remedy = BY_KEY["network_fit"].of(read_facts(run.write(tmp_path / "run"))).remedy
    assert said in remedy
    assert bool(said) == bool(remedy)


def _price_per_hour(run: Path) -> HourlyPrice | None:
    facts = read_facts(run)
    return price_per_hour(facts, facts.lives[-1])


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
