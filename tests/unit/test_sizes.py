"""The model that a budget takes: by the table, the speed of the machine and the text."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.base.errors import ConfigError
from dragoman.recipe.budget import keys_set
from dragoman.recipe.estimate import estimate
from dragoman.recipe.recipe import Recipe, load_recipe
from dragoman.run.sizes import (
    LEAST_STEPS,
    SIZES,
    TOKENS_PER_WEIGHT,
    SizedModel,
    TextFacts,
    choose,
    dropout_for,
    inner_weights,
    vocabulary,
)
from dragoman.run.speed import TIMED_GPU_TOKENS, TrainingMachine

MINI_FLOP_PER_S = 9000 * 7e6
"""Arithmetic of a core that trains `mini` on about 9,000 target tokens a second."""
LARGE_TEXT = TextFacts(pairs=2_000_000, target_tokens=50_000_000)


def own(folder: Path, more: str = "", pairs: int = 20_000) -> Recipe:
    for side in ("en", "de"):
        with (folder / f"a.{side}").open("wb") as file:
            file.truncate(75 * pairs)
    files = '[{source = "a.en", target = "a.de"}]'
    (folder / "own.toml").write_text(f"[corpus]\ntrain = {files}\nvalid = {files}\n{more}")
    return load_recipe(folder / "own.toml")


def machine(flop_per_s: float = MINI_FLOP_PER_S, **changes: object) -> TrainingMachine:
    timed: list[str] = []

    def speed(recipe: Recipe) -> float:
        timed.append(str(recipe.model.d_model))
        return flop_per_s / estimate(recipe).flop_per_target_token

    made = TrainingMachine(False, False, 10**12, speed)
    return replace(made, **changes)  # type: ignore[arg-type]


def chosen(
    recipe: Recipe,
    training_s: float,
    text: TextFacts = LARGE_TEXT,
    place: TrainingMachine | None = None,
    after_s: float = 0.0,
) -> tuple[SizedModel, list[SizedModel]]:
    by_hand = keys_set(recipe)
    recipe = vocabulary(recipe, by_hand=by_hand)
    return choose(
        recipe,
        text,
        place or machine(),
        by_hand=by_hand,
        training_s=training_s,
        after_s=lambda _: after_s,
    )


def test_more_time_takes_larger_models_and_each_sees_enough_tokens(tmp_path: Path) -> None:
    recipe, names = own(tmp_path), list(SIZES)
    taken = []
    for exponent in range(20):
        best, around = chosen(recipe, 60 * 2.0**exponent)
        taken.append(names.index(best.name))
        assert best.name == "mini" or best.tokens_per_weight >= TOKENS_PER_WEIGHT
        indices = [names.index(one.name) for one in around]
        assert indices == list(range(max(taken[-1] - 1, 0), min(taken[-1] + 2, len(names))))
        assert all(one.why for one in around)
        if len(around) > 1 and around[-1] is not best:
            assert around[-1].tokens_per_weight < TOKENS_PER_WEIGHT
    assert taken == sorted(taken)
    assert {taken[0], taken[-1]} == {0, len(names) - 1}


def test_small_text_takes_no_large_model_however_long_it_trains(tmp_path: Path) -> None:
    small = TextFacts(pairs=20_000, target_tokens=400_000)
    best, around = chosen(own(tmp_path), 30 * 86_400.0, small)
    assert inner_weights(best.recipe) <= 10 * small.target_tokens
    assert "too large for" in around[-1].why
    assert best.recipe.model.dropout == 0.3


def test_a_model_that_does_not_fit_is_not_taken(tmp_path: Path) -> None:
    recipe = own(tmp_path)
    best, around = chosen(recipe, 1e8, place=machine(memory_bytes=2 * 10**9))
    assert best.name != "big"
    assert "of memory" in around[-1].why
    with pytest.raises(ConfigError, match="no model fits into 1 MB of memory"):
        chosen(recipe, 1e8, place=machine(memory_bytes=10**6))


def test_the_model_that_is_taken_was_timed(tmp_path: Path) -> None:
    """The arithmetic of the smallest promises too much: then a smaller one is taken."""

    def speed(recipe: Recipe) -> float:
        slow = 1.0 if recipe.model.d_model == 128 else 10.0
        return MINI_FLOP_PER_S / estimate(recipe).flop_per_target_token / slow

    slow = replace(machine(), speed=speed)
    like_its_arithmetic, _ = chosen(own(tmp_path), 4000.0)
    assert like_its_arithmetic.name == "tiny"
    best, _ = chosen(own(tmp_path), 4000.0, place=slow)
    assert best.name == "mini"
    assert best.is_timed


def test_what_the_recipe_sets_stays(tmp_path: Path) -> None:
    sizes = "d_model = 64\nnum_heads = 4\nd_ffn = 64\nencoder_layers = 1\ndecoder_layers = 1\n"
    recipe = own(tmp_path, f"[model]\n{sizes}dropout = 0.25\n[train]\nmax_steps = 300\n")
    best, around = chosen(recipe, 3600.0)
    assert [one.name for one in around] == ["as set"]
    assert best.recipe.model.dropout == 0.25
    assert best.steps == 300
    partly, _ = chosen(own(tmp_path, "[model]\nencoder_layers = 5\n"), 3600.0)
    assert partly.recipe.model.encoder_layers == 5


@pytest.mark.parametrize(("gpus", "memory"), [(1, 10**12), (4, 10**12), (1, 3 * 10**9)])
def test_a_gpu_gets_a_batch_that_keeps_it_busy_and_fits(
    tmp_path: Path, gpus: int, memory: int
) -> None:
    gpu = machine(1e13, on_gpu=True, has_bf16=True, num_gpus=gpus, memory_bytes=memory)
    best, _ = chosen(own(tmp_path), 1200.0, place=gpu)
    batch = best.recipe.data.batch_tokens
    assert batch is not None
    if memory == 10**12:
        assert batch >= min(gpus * TIMED_GPU_TOKENS, 65_536)
    assert estimate(best.recipe).memory.total_bytes <= memory
    assert best.recipe.train.precision == "bf16"


def test_time_after_the_training_is_not_trained(tmp_path: Path) -> None:
    recipe = own(tmp_path)
    best, _ = chosen(recipe, 600.0)
    shorter, _ = chosen(recipe, 600.0, after_s=200.0)
    assert shorter.training_s == pytest.approx(best.training_s - 200)
    assert shorter.tokens == pytest.approx(best.tokens * 2 / 3, rel=0.01)


@pytest.mark.parametrize("pairs", [10, 20_000, 3_000_000])
def test_the_vocabulary_is_a_root_of_the_pairs(tmp_path: Path, pairs: int) -> None:
    recipe = vocabulary(own(tmp_path, pairs=pairs), by_hand=frozenset())
    wanted = min(max(25 * math.sqrt(pairs), 200), 32_000)
    assert recipe.corpus.subword.vocab_size == pytest.approx(wanted, abs=51)


def test_each_character_of_small_text_is_a_piece(tmp_path: Path) -> None:
    recipe = own(tmp_path)
    characters = [chr(0x4E00 + number) for number in range(1000)]
    lines = "".join(f"{character}\n" for character in characters)
    for side in ("en", "de"):
        (tmp_path / f"a.{side}").write_text(lines)
    found = vocabulary(recipe, by_hand=frozenset()).corpus.subword.vocab_size
    assert found > 800
    set_by_hand = vocabulary(recipe, by_hand=frozenset({"corpus.subword.vocab_size"}))
    assert set_by_hand.corpus.subword.vocab_size == recipe.corpus.subword.vocab_size


def test_dropout_grows_with_the_passes_over_the_text() -> None:
    assert [dropout_for(epochs) for epochs in (1, 8, 40, 100)] == [0.0, 0.1, 0.2, 0.3]
    assert LEAST_STEPS == 100
