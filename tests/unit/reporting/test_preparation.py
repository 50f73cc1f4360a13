"""How long preparing took, from the events of `prepare` that a run carries."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.corpus.config import CorpusConfig, SubwordConfig, TextFiles
from dragoman.recipe.recipe import Recipe
from dragoman.recipe.run_directory import PREPARE_EVENTS, RunDirectory
from dragoman.reporting.checks import judge
from dragoman.reporting.reading import prepare_s, read_facts
from dragoman.run.run import prepare
from dragoman.telemetry.events import (
    SCHEMA_VERSION,
    CorpusPrepared,
    CorpusStage,
    Event,
    Payload,
    as_line,
    as_values,
)


def _stage(seconds_s: float) -> Payload:
    return CorpusStage(split="train", stage="clean", pairs_in=9, pairs_out=8, seconds_s=seconds_s)


def _whole(seconds_s: float) -> Payload:
    return CorpusPrepared(digest="d", train_pairs=8, seconds_s=seconds_s)


def _write(directory: Path, *happened: tuple[float, Payload]) -> Path:
    lines = [
        as_line(Event(SCHEMA_VERSION, one.kind, time, time, "h", 0, None, as_values(one)))
        for time, one in happened
    ]
    (directory / PREPARE_EVENTS).write_bytes(b"".join(lines))
    return directory


def test_the_whole_counts_not_the_stages_alone(tmp_path: Path) -> None:
    assert prepare_s(_write(tmp_path, (110, _stage(9)), (130, _whole(31)))) == 31


def test_a_stopped_attempt_counts_too(tmp_path: Path) -> None:
    stopped = ((110, _stage(9)), (120, _stage(10)))
    again = ((500, _stage(0)), (520, _whole(21)))
    assert prepare_s(_write(tmp_path, *stopped, *again)) == 40


def test_an_earlier_corpus_of_the_same_place_does_not_count(tmp_path: Path) -> None:
    before = ((110, _stage(9)), (130, _whole(31)))
    assert prepare_s(_write(tmp_path, *before, (900, _stage(5)), (910, _whole(12)))) == 12


def test_an_unfinished_preparation_takes_the_sum_of_its_stages(tmp_path: Path) -> None:
    assert prepare_s(_write(tmp_path, (110, _stage(9)), (120, _stage(10)))) == 19


def test_without_events_it_is_not_measured(tmp_path: Path) -> None:
    assert prepare_s(tmp_path) is None
    assert prepare_s(_write(tmp_path)) is None


def test_a_run_carries_the_events_of_its_corpus(tmp_path: Path) -> None:
    words = ["sun", "moon", "star", "sea", "hill", "wood", "lake"]
    lines = [f"the {a} and the {b}\tdie {b} und der {a}" for a in words for b in words]
    (tmp_path / "train.tsv").write_text("\n".join(lines))
    recipe = Recipe(
        name="small",
        corpus=CorpusConfig(
            folder=str(tmp_path),
            source_language="en",
            target_language="de",
            train=(TextFiles(tsv="train.tsv"),),
            valid_pairs=5,
            subword=SubwordConfig(vocab_size=60),
        ),
    )
    prepared = prepare(recipe, directory=tmp_path / "prepared", workers=1)
    prepare(recipe, directory=prepared, workers=1)  # nothing left to do, nothing to count
    run = RunDirectory.create(recipe, prepared=prepared, runs=tmp_path / "runs")
    facts = read_facts(run.path)
    assert facts.prepare_s is not None
    assert 0 < facts.prepare_s < 60
    duration = next(one for one in judge(facts) if one.key == "duration")
    row = next(row for row in duration.evidence if row.name.startswith("prepare"))
    assert row.value == pytest.approx(facts.prepare_s)
