"""Runs are compared by their use of time, text and machines, if that comparison is fair."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.cli import main
from dragoman.reporting.comparison import (
    MACHINES,
    PAIRS,
    TOKENS,
    WALL,
    RunComparison,
    compare,
    totals,
)
from dragoman.reporting.comparison_page import write_comparison
from dragoman.reporting.reading import read_facts
from dragoman.telemetry.events import EventWriter
from dragoman.telemetry.host import HourlyPrice
from example_events import TEST_SCORED, changed
from recorded_runs import Recorded
from small_run import small_run

PRICE = HourlyPrice(amount=3.6, currency="USD")


def _loss(step: int) -> float:
    return 2.0 + 4.0 / (1 + step / 1000)


SMALL = Recorded(dev_loss=_loss, compute_s=(0.1, 0.1), sync_s=(0.0, 0.0), data_wait_s=0.0)
"""4,100 tokens a step of 0.1 s, 8,000 steps."""
LARGE = Recorded(
    steps=2000,
    max_steps=2000,
    validate_every=500,
    dev_loss=lambda step: _loss(4 * step),
    compute_s=(0.6, 0.6),
    sync_s=(0.0, 0.0),
    data_wait_s=0.0,
    interval_changes={"pairs": 51_200, "source_tokens": 800_000, "target_tokens": 840_000},
)
"""Four times the tokens a step and as good for each token, but six times as long."""


def _compare(directory: Path, *runs: Recorded) -> RunComparison:
    return compare(
        [
            read_facts(run.write(directory / f"run-{number}"), price=PRICE)
            for number, run in enumerate(runs)
        ]
    )


def test_runs_that_learn_alike_from_each_token_are_level_by_tokens(tmp_path: Path) -> None:
    found = _compare(tmp_path, SMALL, LARGE)
    levels = {level.budget: level for level in found.levels}
    assert [level.budget for level in found.levels[:4]] == [PAIRS, TOKENS, WALL, MACHINES]
    assert levels[TOKENS].amount == 8000 * 4100
    assert levels[TOKENS].losses["A"] == pytest.approx(levels[TOKENS].losses["B"])
    assert levels[TOKENS].answer == "cannot tell"
    assert "level" in levels[TOKENS].says


def test_by_time_and_money_the_faster_one_is_ahead(tmp_path: Path) -> None:
    found = _compare(tmp_path, SMALL, LARGE)
    for level in found.levels:
        if level.budget in (WALL, MACHINES):
            assert level.losses["A"] < level.losses["B"]
            assert level.says.startswith("A is ahead")
    wall = next(level for level in found.levels if level.budget is WALL)
    # A: 8,000 steps of 0.1 s, nine validations and checkpoints of 10.5 s, the first of them before
    assert wall.amount == pytest.approx(800 + 9 * 10.5)


def test_how_much_lower_a_loss_is_is_of_the_other(tmp_path: Path) -> None:
    half = replace(SMALL, dev_loss=lambda step: _loss(step) / 2)
    (level, *_) = _compare(tmp_path, half, SMALL).levels
    assert "its dev loss is 50.0% lower" in level.says


def test_no_run_is_ahead_if_validations_are_far_apart(tmp_path: Path) -> None:
    stopped, seldom = replace(SMALL, steps=4500, reason=None), replace(SMALL, validate_every=8000)
    level = next(one for one in _compare(tmp_path, stopped, seldom).levels if one.budget is TOKENS)
    assert level.losses["A"] < level.losses["B"]  # on a straight line from the untrained model
    assert level.answer == "cannot tell"
    assert "too far apart" in level.says


@pytest.mark.parametrize(
    ("differing", "note", "hidden"),
    [
        (["target.model"], "losses cannot be compared", ["dev loss"]),
        (
            ["target.model", "valid/source.txt"],
            "neither loss nor BLEU can be compared",
            ["dev loss", "dev BLEU", "last BLEU", "losses cannot"],
        ),
        (["test/source.txt"], "The test sets differ", ["BLEU on test"]),
    ],
    ids=["subword models", "dev sets and subword models", "test sets"],
)
def test_scores_that_cannot_be_compared_are_told_once_and_not_shown(
    differing: list[str], note: str, hidden: list[str], tmp_path: Path
) -> None:
    manifest = read_facts(small_run().path).manifest
    assert manifest is not None
    file = manifest.files["target.model"]
    files = {
        name: file.model_copy(update={"sha256": "1" * 64})
        for name in (
            *("target.model", "valid/source.txt", "valid/target.txt"),
            *("test/source.txt", "test/target.txt"),
        )
    }
    other_files = {name: file.model_copy(update={"sha256": "0" * 64}) for name in differing}
    runs = []
    for number, (run, changed_files) in enumerate(((SMALL, {}), (LARGE, other_files))):
        path = run.write(tmp_path / f"run-{number}")
        with EventWriter(path / "events") as events:
            events.write(changed(TEST_SCORED, name="test"))
        listed = manifest.model_copy(update={"files": manifest.files | files | changed_files})
        runs.append(replace(read_facts(path), manifest=listed))
    found = compare(runs)
    if differing != ["test/source.txt"]:
        assert found.target is None
        assert all(not level.losses and not level.says for level in found.levels)
    text = "\n".join(
        path.read_text(encoding="utf-8") for path in write_comparison(found, tmp_path)[1:2]
    )
    assert text.count(note) == 1
    assert not [words for words in hidden if words in text]
    assert ("BLEU on test" in text) == ("BLEU on test" not in hidden)


def test_without_manifests_the_dev_sets_of_the_losses_are_unknown(tmp_path: Path) -> None:
    half = replace(SMALL, dev_loss=lambda step: _loss(step) / 2)
    (level, *_) = _compare(tmp_path, half, SMALL).levels
    assert level.answer == "cannot tell"
    assert level.says.endswith("if their dev sets are the same.")


def test_money_is_a_budget_if_all_prices_are_in_one_currency(tmp_path: Path) -> None:
    prices = {"usd": PRICE, "dear": HourlyPrice(amount=36.0, currency="USD"), "none": None}
    prices["eur"] = HourlyPrice(amount=3.6, currency="EUR")
    facts = {
        name: read_facts(SMALL.write(tmp_path / name), price=price)
        for name, price in prices.items()
    }
    found = compare([facts["usd"], facts["dear"]])
    level = found.levels[-1]
    assert level.budget.text(level.amount) == "1.79 USD"
    assert level.says.startswith("A is ahead")  # for a tenth of the price
    for other in ("none", "eur"):
        assert len(compare([facts["usd"], facts[other]]).budgets) == 4


def test_the_cost_of_reaching_the_same_loss_is_computed(tmp_path: Path) -> None:
    found = _compare(tmp_path, SMALL, LARGE)
    assert found.target is not None
    assert found.target.loss == pytest.approx(_loss(8000))
    used = found.target.used
    assert used["A"]["tokens"] == used["B"]["tokens"] == 8000 * 4100
    longer_s = 2000 * 0.6 - 8000 * 0.1 - 4 * 10.5  # B was validated four times less
    assert used["B"]["wall_s"] - used["A"]["wall_s"] == pytest.approx(longer_s)
    assert used["A"]["machine_s"] == 2 * used["A"]["wall_s"]


def test_a_loss_between_two_validations_lies_on_a_straight_line(tmp_path: Path) -> None:
    half = replace(SMALL, steps=4500, reason=None)
    found = _compare(tmp_path, half, replace(SMALL, steps=8000))
    level = next(level for level in found.levels if level.budget is TOKENS)
    assert level.amount == 4000 * 4100  # the last validation of A
    assert level.losses["A"] == pytest.approx(level.losses["B"])


def test_steps_of_another_size_are_said_so(tmp_path: Path) -> None:
    assert any("steps are not compared" in note for note in _compare(tmp_path, SMALL, LARGE).notes)
    same = _compare(tmp_path / "same", SMALL, SMALL)
    assert not any("steps are not compared" in note for note in same.notes)


def test_time_between_two_lives_is_not_used(tmp_path: Path) -> None:
    killed = replace(SMALL, resume_at=(4700, 4000))
    found = _compare(tmp_path, SMALL, killed)
    wall = next(level for level in found.levels if level.budget is WALL)
    last = [one_run.validations[-1].used["wall_s"] for one_run in found.compared]
    assert last[1] - last[0] < 200  # not the hour between
    assert wall.losses["A"] < wall.losses["B"]


def test_without_validations_nothing_is_guessed(tmp_path: Path) -> None:
    blind = replace(SMALL, dev_loss=lambda _step: None, bleu=lambda _step: None)
    found = _compare(tmp_path, SMALL, blind)
    assert found.levels == ()
    assert found.target is None


def test_the_command_writes_three_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(run.write(tmp_path / name)) for name, run in (("s", SMALL), ("l", LARGE))]
    output = tmp_path / "out"
    prices = ["--price", "3.6 USD", "--price", "12 USD"]
    assert main(["report", *runs, "--output", str(output), *prices]) == 0
    assert capsys.readouterr().out.count(str(output)) == 3
    html = (output / "comparison.html").read_text()
    assert html.count("<figure class='wide'>") == 1
    assert "> step<" not in html
    assert "http" not in html
    text = (output / "comparison.md").read_text()
    assert "| money | 1.79 USD |" in text
    assert "| tokens a step | 4,100 | 16,400 |" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4}
    values = json.loads((output / "comparison.json").read_text())
    assert [run["letter"] for run in values["runs"]] == ["A", "B"]
    assert {level["budget"] for level in values["levels"]} >= {"tokens", "wall_s"}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["a", "b", "c", "--price", "1 USD", "--price", "2 USD"], "2 prices for 3 runs"),
        (list("abcdefghi"), "cannot compare 9 runs"),
    ],
)
def test_impossible_comparisons_are_an_error(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *arguments]) == 2
    assert problem in capsys.readouterr().err


def test_scores_of_another_search_or_checkpoint_are_not_set_beside_each_other(
    tmp_path: Path,
) -> None:
    runs = [SMALL.write(tmp_path / name) for name in ("one", "two")]
    greedy = "search.beam_size=1"
    more = [[TEST_SCORED], [TEST_SCORED, changed(TEST_SCORED, checkpoint="last", settings=greedy)]]
    for run, scores in zip(runs, more, strict=True):
        with EventWriter(run / "events") as events:
            for score in scores:
                events.write(score)
    compared = compare([read_facts(run) for run in runs]).compared
    first, second = (
        {name for name, _ in totals(one_run, []) if "test2016" in name} for one_run in compared
    )
    assert first == {"BLEU on test2016"}
    assert second == {"BLEU on test2016", f"BLEU on test2016 (checkpoint last, {greedy})"}
