"""A finished run goes on with more steps: weights, optimizer, batches and number of ranks stay."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

import dragoman
from dragoman.base.errors import ConfigError
from dragoman.cli.command_line import main
from dragoman.recipe.run_directory import RunDirectory
from dragoman.reporting.reading import read_facts
from dragoman.telemetry.session import last_ranks
from dragoman.training.clock import Budget
from parallel_text import sentences, write_lines
from tiny_recipe import TINY

SETTINGS = [
    *("data.batch_tokens=256", "evaluate.bleu_pairs=0", "train.log_every_steps=1"),
    *("train.validate_every_steps=4", "checkpoint.every_steps=4", "schedule.warmup_steps=2"),
]
SHORT, LONG = 6, 10


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command that trains a small recipe here, without its length."""
    monkeypatch.chdir(tmp_path)
    english, german = sentences(80)
    write_lines(Path("train.en"), english)
    write_lines(Path("train.de"), german)
    Path("r.toml").write_text(f'name = "r"\n{TINY}')
    return ["train", "r.toml", "--workers", "1", *(w for s in SETTINGS for w in ("--set", s))]


def trained(words: list[str], steps: int, *more: str) -> RunDirectory:
    """The run that the command made."""
    before = set(Path("runs").glob("*")) if Path("runs").exists() else set()
    assert main([*words, "--set", f"train.max_steps={steps}", *more]) == 0
    (path,) = set(Path("runs").glob("*")) - before
    return RunDirectory(path)


def weights(run: RunDirectory) -> dict[str, object]:
    (file,) = run.checkpoints.glob(f"step-{LONG:07}/model.safetensors")
    return {name: tensor.tolist() for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_longer_run_goes_on_from_a_finished_one_exactly_and_on_as_many_ranks(
    ranks: int, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    short = trained(words, SHORT, "--ranks", str(ranks))
    capfd.readouterr()
    whole = trained(words, LONG, "--ranks", str(ranks))
    offered = capfd.readouterr().out
    assert f"extend set to\n  {short.path}" in offered
    assert f"{SHORT} of these {LONG} steps" in offered

    longer = trained(words, LONG, "--extend", str(short.path))
    said = capfd.readouterr().out
    assert f"goes on from step {SHORT}" in said
    assert "as in a run of this length" in said
    assert weights(longer) == weights(whole)
    assert last_ranks(longer.path) == ranks
    facts = read_facts(longer.path)
    steps = facts.intervals["step"].tolist()
    assert steps == [*range(1, LONG + 1)], "the record is that of the whole training"
    assert main([*words, "--set", f"train.max_steps={LONG}", "--extend", str(short.path)]) == 0
    assert len([*Path("runs").iterdir()]) == 3, "the same command finds its run"


@pytest.mark.system
def test_a_run_that_went_on_is_offered_and_one_from_another_model_is_not(
    words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    short = trained(words, SHORT)
    longer = trained(words, LONG, "--extend", str(short.path))
    trained(words, LONG + 1, "--from", str(short.path))
    capfd.readouterr()
    trained(words, LONG + 2)
    offered = capfd.readouterr().out
    assert f"extend set to\n  {longer.path}" in offered
    assert f"{LONG} of these {LONG + 2} steps" in offered


def test_a_rate_that_had_fallen_is_said_to_rise(
    words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    words += ["--set", "schedule.kind=linear"]
    short = trained(words, SHORT)
    capfd.readouterr()
    longer = trained(words, LONG, "--extend", str(short.path))
    said = capfd.readouterr().out
    rates = dict(read_facts(longer.path).intervals.points("learning_rate"))
    before, after = rates[SHORT], rates[SHORT + 1]
    assert after > 1.5 * before
    assert "rises to" in said

    words += ["--set", f"schedule.total_steps={SHORT}"]
    short = trained(words, SHORT)
    assert main([*words, "--set", f"train.max_steps={LONG}", "--extend", str(short.path)]) == 2
    assert "schedule.total_steps: the learning rate is 0 from step 6 on" in capfd.readouterr().err


def test_only_the_same_recipe_and_text_go_on(
    words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    short = trained(words, SHORT)
    dry = [*words, "--extend", str(short.path), "--dry-run", "--set", f"train.max_steps={LONG}"]
    assert main(dry) == 0
    assert f"goes on from step {SHORT} of {short.path} to step {LONG}" in capfd.readouterr().out
    assert main([*dry, "--set", "model.dropout=0.3"]) == 2
    assert "differs in more than train.max_steps" in capfd.readouterr().err
    recipe = dragoman.load_recipe("r.toml", [*SETTINGS, f"train.max_steps={LONG}"])
    other = dragoman.load_recipe("r.toml", [*SETTINGS, "model.dropout=0.3", "train.max_steps=10"])
    with pytest.raises(ConfigError, match=r"differs in more than train\.max_steps"):
        dragoman.train(other, extend=short)
    with pytest.raises(ConfigError, match="has made 6 steps already"):
        dragoman.train(short.recipe(), extend=short)
    with pytest.raises(ConfigError, match="starts from one model"):
        dragoman.train(recipe, extend=short, origin=short.path)
    with Path("train.en").open("a") as english, Path("train.de").open("a") as german:
        english.write("One more sentence.\n")
        german.write("Noch ein Satz.\n")
    with pytest.raises(ConfigError, match="its text has changed"):
        dragoman.train(recipe, extend=short)
    assert main(dry) == 2
    assert "its text has changed" in capfd.readouterr().err
    shutil.rmtree(short.checkpoints / f"step-{SHORT:07}")
    with pytest.raises(ConfigError, match="has not finished: it is at step 4 of 6"):
        dragoman.train(recipe, extend=short)


def test_a_run_that_ended_by_a_clock_is_refused_with_a_remedy_that_works(
    words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    run = trained(words, SHORT)
    # A budget plans more steps than its time is enough for.
    run.recipe_file.write_text(
        run.recipe_file.read_text().replace(f"max_steps = {SHORT}", "max_steps = 8")
    )
    Budget(
        asked="",
        started=1.0,
        seconds_s=1.0,
        validation_s=0.1,
        search_s=0.1,
        after_s=0.1,
        after_searches=1.0,
    ).save(run.path)
    longer = ["--set", f"train.max_steps={LONG}"]
    assert main([*words, *longer, "--extend", str(run.path), "--dry-run"]) == 2
    refusal = capfd.readouterr().err
    assert f"ended by the clock of its budget, at step {SHORT}, " in refusal
    assert refusal.rstrip().endswith(f"dragoman train RECIPE --from {run.path}")
    other = ["--set", "train.log_every_steps=7"]  # what holds for every recipe is said first
    assert main([*words, *longer, *other, "--extend", str(run.path), "--dry-run"]) == 2
    assert "ended by the clock" in capfd.readouterr().err
    assert main([*words, *longer, "--from", str(run.path), "--dry-run"]) == 0
