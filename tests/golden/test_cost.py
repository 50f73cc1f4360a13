"""What a run cost, through the report: every machine counts, and none is guessed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.cluster.hosts import HOSTS_FILE, Hosts
from dragoman.reporting import measures
from dragoman.reporting.cost import spent_text
from dragoman.reporting.facts import Facts, Price
from dragoman.reporting.reading import read_facts
from dragoman.reporting.verdict import Verdict
from dragoman.reporting.verdicts import judge
from recorded_runs import Recorded

PRICE = Price(amount=3.6, currency="USD")


def _cost(facts: Facts) -> Verdict:
    return {one.key: one for one in judge(facts)}["cost"]


def _values(verdict: Verdict) -> dict[str, float | str | None]:
    return {row.name: row.value for row in verdict.evidence}


def test_every_machine_is_paid_for(tmp_path: Path) -> None:
    facts = read_facts(Recorded().write(tmp_path / "run"), price=PRICE)
    # 8,000 steps of 0.411 s and nine validations of 10.5 s, on two machines at 0.1 cents a second
    wall_s = 8000 * 0.411 + 9 * 10.5
    assert facts.wall_s == pytest.approx(wall_s)
    cost = _cost(facts)
    assert cost.answer == "measured"
    assert _values(cost)["machines"] == 2
    assert _values(cost)["machine time"] == pytest.approx(2 * wall_s / 3600)
    assert f"{2 * wall_s / 1000:.2f} USD" in cost.says
    ahead = {row.name: row.text for one in judge(facts) for row in one.evidence}
    text = next(text for name, text in ahead.items() if name.endswith("by the fitted curve"))
    assert f"for {2 * 2000 * 0.411 / 1000:.2f} USD" in text


def test_what_is_left_is_paid_for_on_every_machine(tmp_path: Path) -> None:
    facts = read_facts(Recorded(steps=4000, reason=None).write(tmp_path / "run"), price=PRICE)
    assert facts.wall_s is not None
    so_far = 2 * facts.wall_s / 1000
    assert f"{so_far:.2f} USD" in spent_text(facts)
    assert f"{so_far + 2 * 1800 / 1000:.2f} USD" in spent_text(facts, more_s=1800.0)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_rank_without_events_may_have_had_a_machine_of_its_own(
    missing: int, tmp_path: Path
) -> None:
    run = Recorded().write(tmp_path / "run")
    (run / "events" / f"rank-000{missing}.jsonl").unlink()
    cost = _cost(read_facts(run, price=PRICE))
    assert cost.answer == "cannot tell"
    assert "USD" not in cost.says
    assert "events of all ranks" in cost.remedy


def test_hosts_that_were_written_down_are_known_without_their_events(tmp_path: Path) -> None:
    run = Recorded().write(tmp_path / "run")
    whole = _values(_cost(read_facts(run, price=PRICE)))
    (run / "events" / "rank-0001.jsonl").unlink()
    host = {"address": "10.0.0.1", "slots": 1}
    hosts = {"host": [host, {**host, "address": "10.0.0.2"}], "currency": "EUR"}
    text = Hosts.model_validate_json(json.dumps(hosts)).model_dump_json()
    (run / HOSTS_FILE).write_text(text)
    cost = _cost(read_facts(run, price=PRICE))
    assert _values(cost)["machine time"] == pytest.approx(whole["machine time"])


def test_a_first_line_that_is_lost_hides_how_many_ranks_there_were(tmp_path: Path) -> None:
    run = Recorded().write(tmp_path / "run")
    for path in (run / "events").iterdir():
        path.write_bytes(path.read_bytes().split(b"\n", 1)[1])
    facts = read_facts(run, price=PRICE)
    assert _cost(facts).answer == "cannot tell"
    # What its first event tells of, a validation of 10 s, was before it.
    assert facts.wall_s == pytest.approx(8000 * 0.411 + 8 * 10.5 + 10)


def test_machines_that_left_are_not_paid_for_afterwards(tmp_path: Path) -> None:
    """The first life had two machines; rank 1 did not come back for the second."""
    run = Recorded(resume_at=(4000, 4000)).write(tmp_path / "run")
    events = run / "events"
    lines = [json.loads(line) for line in (events / "rank-0001.jsonl").read_text().splitlines()]
    second = next(n for n, one in enumerate(lines) if one.get("resumed_from_step"))
    (events / "rank-0001.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines[:second]))
    lines = [json.loads(line) for line in (events / "rank-0000.jsonl").read_text().splitlines()]
    for one in lines:
        if one.get("resumed_from_step"):
            one["world_size"] = 1
    (events / "rank-0000.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    facts = read_facts(run, price=PRICE)
    first, then = (one.ended - one.started for one in facts.segments)
    cost = _values(_cost(facts))
    assert cost["machine time"] == pytest.approx((2 * first + then) / 3600)
    assert cost["machines"] == 1


def test_a_life_is_paid_by_what_its_hosts_cost_then(tmp_path: Path) -> None:
    """Two hosts at 3 and 5 EUR an hour, then the dearer one alone: no flag, and no mean."""
    run = Recorded(
        resume_at=(4000, 4000), started_changes={"price_per_hour": 8.0, "currency": "EUR"}
    ).write(tmp_path / "run")
    (run / "events" / "rank-0001.jsonl").write_text(
        "".join(line + "\n" for line in _lines(run, 1)[: _second_start(run, 1)])
    )
    events = [json.loads(line) for line in _lines(run, 0)]
    events[_second_start(run, 0)] |= {"world_size": 1, "price_per_hour": 5.0}
    (run / "events" / "rank-0000.jsonl").write_text(
        "".join(json.dumps(one) + "\n" for one in events)
    )
    facts = read_facts(run)
    first_s, then_s = (one.ended - one.started for one in facts.segments)
    amount = (8 * first_s + 5 * then_s) / 3600
    assert f", {amount:.2f} EUR." in _cost(facts).says
    assert _values(_cost(facts))["price of all machines an hour"] == 5.0
    half_hour = f"{amount + 5 / 2:.2f} EUR"
    assert spent_text(facts, more_s=1800) == half_hour
    # A price that is given now counts for every machine.
    given = _cost(read_facts(run, price=PRICE))
    assert f", {(2 * first_s + then_s) / 1000:.2f} USD." in given.says


def test_prices_in_two_currencies_are_no_sum(tmp_path: Path) -> None:
    run = Recorded(
        resume_at=(4000, 4000), started_changes={"price_per_hour": 8.0, "currency": "EUR"}
    ).write(tmp_path / "run")
    events = [json.loads(line) for line in _lines(run, 0)]
    events[_second_start(run, 0)] |= {"currency": "USD"}
    (run / "events" / "rank-0000.jsonl").write_text(
        "".join(json.dumps(one) + "\n" for one in events)
    )
    assert _cost(read_facts(run)).answer == "cannot tell"


def _lines(run: Path, rank: int) -> list[str]:
    return (run / "events" / f"rank-{rank:04d}.jsonl").read_text().splitlines()


def _second_start(run: Path, rank: int) -> int:
    told = [json.loads(line) for line in _lines(run, rank)]
    return next(number for number, one in enumerate(told) if one.get("resumed_from_step"))


def test_two_machines_of_one_name_are_two(tmp_path: Path) -> None:
    one = read_facts(Recorded(one_host=True).write(tmp_path / "one"), price=PRICE)
    two = read_facts(Recorded(one_host=True, boots=2).write(tmp_path / "two"), price=PRICE)
    assert [_values(_cost(facts))["machines"] for facts in (one, two)] == [1, 2]
    assert two.hosts == ("host-a", "host-a (2)")
    assert any("more than one machine has the name host-a" in what for what in two.problems)
    assert one.problems == ()


def test_ranks_that_are_late_in_turn_are_not_the_network(tmp_path: Path) -> None:
    """Each waits for the other in every second interval; neither waits for bytes."""
    run = Recorded(sync_s=(0.2, 0.2)).write(tmp_path / "run")
    for rank in (0, 1):
        path = run / "events" / f"rank-{rank:04d}.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for one in lines:
            if one["kind"] == "train_interval":
                waits = one["step"] // 100 % 2 == rank
                one["forward_s"] += 0 if waits else 20
                one["sync_s"] = 20 if waits else 0
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    facts = read_facts(run)
    assert measures.exposed_share(facts) == 0
    assert {one.key: one.answer for one in judge(facts)}["network"] == "no"
    without = replace(facts, ranks=facts.ranks[:1])
    assert {one.key: one.answer for one in judge(without)}["network"] == "cannot tell"
