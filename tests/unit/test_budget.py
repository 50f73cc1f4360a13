"""A budget as it is typed, and what it may change in a recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.base.errors import ConfigError
from dragoman.recipe.budget import filled, keys_set, parse_budget
from dragoman.recipe.recipe import Recipe, load_recipe
from dragoman.telemetry.host import HourlyPrice


@pytest.mark.parametrize(
    ("text", "seconds_s"),
    [
        ("90s", 90),
        ("5min", 300),
        ("5m", 300),
        ("1h30m", 5400),
        ("1h30min", 5400),
        ("1 h 30 min", 5400),
        ("6h", 21_600),
        ("2d", 172_800),
        ("0.5 h", 1800),
    ],
)
def test_times(text: str, seconds_s: float) -> None:
    assert parse_budget(text) == pytest.approx(seconds_s)


def test_money_is_the_time_that_it_pays_for() -> None:
    assert parse_budget("50 USD", HourlyPrice(12.5, "USD")) == pytest.approx(4 * 3600)


@pytest.mark.parametrize(
    ("text", "price", "problem"),
    [
        ("0", None, "'0' is not a budget; write a time such as 30min, 1h30m or 6h"),
        ("0min", None, "leaves no time at all"),
        ("-3h", None, "leaves no time at all"),
        ("400d", None, "is more than a year"),
        ("6 fortnights", None, "'6 fortnights' is not a budget; write a time such as"),
        ("6 hours", None, "is not a budget"),
        ("30MIN", None, "'30MIN' is not a budget; write a time such as 30min"),
        ("", None, "is not a budget"),
        ("50 USD", None, "no price turns this money into time; name a hosts.toml with"),
        ("50 EUR", HourlyPrice(3.0, "USD"), "the prices of the hosts are in USD; give the budget"),
        ("50 USD", HourlyPrice(0.0, "USD"), "the hosts cost nothing"),
        ("much USD", HourlyPrice(3.0, "USD"), "is not an amount of money; write a time"),
        ("0 USD", HourlyPrice(3.0, "USD"), "leaves no time at all"),
        ("0 USD", None, "leaves no time at all"),
        ("0 EUR", HourlyPrice(3.0, "USD"), "leaves no time at all"),
    ],
)
def test_bad_budgets_are_refused_in_one_line(
    text: str, price: HourlyPrice | None, problem: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_budget(text, price)
    assert problem in str(raised.value)
    assert str(raised.value).startswith(f"budget {text}:")
    assert "\n" not in str(raised.value)


def written(folder: Path, more: str = "") -> Recipe:
    file = folder / "own.toml"
    file.write_text(
        '[corpus]\ntrain = [{source = "a.en", target = "a.de"}]\nvalid_pairs = 10\n'
        "[model]\nd_model = 64\n" + more
    )
    return load_recipe(file, ["train.seed=7"])


def test_keys_set_by_hand_are_known_even_at_their_default(tmp_path: Path) -> None:
    found = keys_set(written(tmp_path, "num_heads = 8\n"))
    assert {"model.d_model", "model.num_heads", "train.seed", "corpus.valid_pairs"} <= found
    assert not found & {"model.d_ffn", "train.max_steps", "data.batch_tokens"}


def test_a_batch_of_sentences_is_a_batch_that_is_set(tmp_path: Path) -> None:
    recipe = written(tmp_path, "[data]\nbatch_sentences = 20\n")
    by_hand = keys_set(recipe)
    assert filled(recipe, {"data.batch_tokens": 99}, by_hand=by_hand) == recipe


def test_only_keys_that_nobody_set_are_filled_in(tmp_path: Path) -> None:
    recipe = written(tmp_path)
    values = {"model.d_model": 512, "train.max_steps": 40, "schedule.kind": "linear"}
    found = filled(recipe, values, by_hand=keys_set(recipe))
    assert (found.model.d_model, found.train.max_steps, found.schedule.kind) == (64, 40, "linear")
    assert found.corpus == recipe.corpus


def test_values_that_do_not_agree_with_the_rest_are_refused(tmp_path: Path) -> None:
    recipe = written(tmp_path)
    with pytest.raises(ConfigError, match="d_model 64 is not a multiple of num_heads 7"):
        filled(recipe, {"model.num_heads": 7}, by_hand=keys_set(recipe))
