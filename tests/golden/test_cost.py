"""The cost of a run in its report: every machine counts, and none is guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.base.errors import ConfigError
from dragoman.reporting.checks import judge
from dragoman.reporting.comparison import compare
from dragoman.reporting.cost import spent_text
from dragoman.reporting.facts import Facts
from dragoman.reporting.reading import read_facts
from dragoman.reporting.verdict import Verdict
from dragoman.telemetry.host import HourlyPrice
from dragoman.training.clock import Budget
from recorded_runs import Recorded, read_ranks, write_ranks

PRICE = HourlyPrice(amount=3.6, currency="USD")


def _cost(facts: Facts) -> Verdict:
    return {one.key: one for one in judge(facts)}["cost"]


def _values(verdict: Verdict) -> dict[str, float | str | None]:
    return {row.name: row.value for row in verdict.evidence}


def test_the_cost_includes_every_machine(tmp_path: Path) -> None:
    facts = read_facts(Recorded().write(tmp_path / "run"), price=PRICE)
    # 8,000 steps of 0.411 s and nine validations of 10.5 s, on two machines at 0.1 cents a second
    wall_s = 8000 * 0.411 + 9 * 10.5
    assert facts.wall_s == pytest.approx(wall_s)
    cost = _cost(facts)
    assert cost.answer == "measured"
    assert _values(cost)["machines"] == 2
    assert _values(cost)["machine time"] == pytest.approx(2 * wall_s / 3600)
    assert f"{2 * wall_s / 1000:.2f} USD" in cost.says


def test_the_remaining_cost_includes_every_machine(tmp_path: Path) -> None:
    facts = read_facts(Recorded(steps=4000, reason=None).write(tmp_path / "run"), price=PRICE)
    assert facts.wall_s is not None
    so_far = 2 * facts.wall_s / 1000
    assert f"{so_far:.2f} USD" in spent_text(facts)
    assert f"{so_far + 2 * 1800 / 1000:.2f} USD" in spent_text(facts, more_s=1800.0)


def test_a_budget_costs_more_than_its_training(tmp_path: Path) -> None:
    run = Recorded().write(tmp_path / "run")
    facts = read_facts(run, price=PRICE)
    assert "its cost" not in _values(_cost(facts))
    started = facts.lives[0].started - 100
    budget = Budget(
        asked="",
        started=started,
        seconds_s=5000.0,
        validation_s=10.0,
        search_s=5.0,
        after_s=10.0,
        after_searches=2.0,
        price_per_hour=2 * PRICE.amount,
        currency=PRICE.currency,
        finished=started + 4000.0,
    )
    budget.save(run)
    known = _values(_cost(read_facts(run, price=PRICE)))
    assert known["with preparation, restarts, scores and export"] == pytest.approx(4000)
    assert known["its cost"] == pytest.approx(2 * PRICE.amount * 4000 / 3600)
    (run / "budget.json").write_text("{}")
    broken = read_facts(run, price=PRICE)
    assert "its cost" not in _values(_cost(broken))
    assert any("budget.json: cannot be read" in problem for problem in broken.problems)


def test_a_life_is_priced_by_its_own_hosts(tmp_path: Path) -> None:
    """Two hosts at 3 and 5 EUR an hour, then the dearer one alone: no flag, and no mean."""
    run = Recorded(
        resume_at=(4000, 4000), started_changes={"price_per_hour": 8.0, "currency": "EUR"}
    ).write(tmp_path / "run")
    first, other = read_ranks(run)
    start = first[_second_start(first)]
    start |= {"world_size": 1, "price_per_hour": 5.0}
    write_ranks(run, [first, other[: _second_start(other)]])
    facts = read_facts(run)
    first_s, then_s = (one.ended - one.started for one in facts.lives)
    amount = (8 * first_s + 5 * then_s) / 3600
    assert f", {amount:.2f} EUR." in _cost(facts).says
    assert _values(_cost(facts))["price of all machines an hour"] == 5.0
    half_hour = f"{amount + 5 / 2:.2f} EUR"
    assert spent_text(facts, more_s=1800) == half_hour
    # A price that is given now counts for every machine.
    given = _cost(read_facts(run, price=PRICE))
    assert f", {(2 * first_s + then_s) / 1000:.2f} USD." in given.says


def _moved_run(
    directory: Path, *lives: tuple[tuple[str, ...], tuple[float, str] | None], steps: int = 8000
) -> Path:
    """Two lives of at most two ranks: hosts by rank, and the recorded price of all of them."""
    reason = "max_steps" if steps == 8000 else None
    run = Recorded(resume_at=(4000, 4000), steps=steps, reason=reason).write(directory)
    ranks = []
    for rank, events in enumerate(read_ranks(run)):
        kept, second = [], _second_start(events)
        for number, event in enumerate(events):
            hosts, price = lives[number >= second]
            if rank >= len(hosts):
                continue
            event["host"] = hosts[rank]
            if event["kind"] == "run_started":
                event["world_size"] = len(hosts)
                if price is not None:
                    event |= {"price_per_hour": price[0], "currency": price[1]}
            kept.append(event)
        ranks.append(kept)
    write_ranks(run, ranks)
    return run


def _hours(facts: Facts) -> tuple[float, float]:
    first, then = ((one.ended - one.started) / 3600 for one in facts.lives)
    return first, then


def test_a_recorded_price_applies_to_its_own_life_only(tmp_path: Path) -> None:
    """Rented hosts at 30 EUR an hour, then two own hosts, whose price is not known."""
    dear, own = ("dear-a", "dear-b"), ("own-a", "own-b")
    facts = read_facts(_moved_run(tmp_path / "run", (dear, (30.0, "EUR")), (own, None)))
    cost = _cost(facts)
    assert cost.answer == "cannot tell"
    assert f"on dear-a, dear-b cost {30 * _hours(facts)[0]:.2f} EUR; no price" in cost.says
    assert cost.says.endswith("on own-a, own-b.")
    assert spent_text(facts) == ""
    # Neither is what is to come at that price, nor what a longer training would cost.
    run = _moved_run(tmp_path / "running", (dear, (30.0, "EUR")), (own, None), steps=6000)
    facts = read_facts(run, now=1.7e9 + 6000)
    cost = _cost(facts)
    assert f"cost {30 * _hours(facts)[0]:.2f} EUR; no price" in cost.says
    assert "price of all machines an hour" not in _values(cost)


def test_a_price_in_another_currency_than_the_newest_is_not_summed(tmp_path: Path) -> None:
    old, new = ("old-a", "old-b"), ("new-a", "new-b")
    run = _moved_run(tmp_path / "run", (old, (8.0, "EUR")), (new, (30.0, "USD")))
    facts = read_facts(run)
    _, then = _hours(facts)
    cost = _cost(facts)
    assert cost.answer == "cannot tell"
    assert f"on new-a, new-b cost {30 * then:.2f} USD; no price" in cost.says
    assert cost.says.endswith("on old-a, old-b.")
    assert "EUR" not in cost.says
    assert len(compare([facts, facts]).budgets) == 4  # money of a part is not a budget


def test_the_cost_in_a_comparison_is_summed_over_lives(tmp_path: Path) -> None:
    """A cheap life of two machines, an expensive one of one: half the time is not half the cost."""
    cheap, dear = (("host-a", "host-b"), (2.0, "EUR")), (("host-a",), (100.0, "EUR"))
    facts = read_facts(_moved_run(tmp_path / "run", cheap, dear))
    first, then = _hours(facts)
    found = compare([facts, facts])
    assert found.budgets[-1].key == "money"
    used = [one.used for one in found.compared[0].validations]
    in_first = [one for one in used if one["wall_s"] <= 3600 * first]
    assert len(in_first) == 5
    for one in in_first:
        assert one["money"] == pytest.approx(2 * one["wall_s"] / 3600)
        assert one["machine_s"] == pytest.approx(2 * one["wall_s"])
    assert used[-1]["money"] == pytest.approx(2 * first + 100 * then, rel=1e-6)
    assert used[-1]["machine_s"] == pytest.approx(3600 * (2 * first + then), rel=1e-6)


def _second_start(events: list[dict[str, Any]]) -> int:
    return next(number for number, one in enumerate(events) if one.get("resumed_from_step"))


def test_ranks_late_by_turns_are_not_blamed_on_the_network(tmp_path: Path) -> None:
    """Each waits for the other in every second interval; neither waits for bytes."""
    run = Recorded(sync_s=(0.2, 0.2)).write(tmp_path / "run")
    ranks = read_ranks(run)
    for rank, lines in enumerate(ranks):
        for one in lines:
            if one["kind"] == "train_interval":
                waits = one["step"] // 100 % 2 == rank
                one["forward_s"] += 0 if waits else 20
                one["sync_s"] = 20 if waits else 0
                one["wire_s"] = 0
    write_ranks(run, ranks)
    facts = read_facts(run)
    answers = {one.key: one for one in judge(facts)}
    assert answers["network"].answer == "no"
    assert "waiting for ranks that compute for longer in turn" in answers["processors"].remedy


def test_a_price_is_an_amount_and_a_currency() -> None:
    assert HourlyPrice.parse("3.6 USD") == PRICE
    for text in ("-3 USD", "1e400 USD", "3", "3 usd", "nan USD"):
        with pytest.raises(ConfigError, match=r'^price: .*; write for example "3 USD"$'):
            HourlyPrice.parse(text)
