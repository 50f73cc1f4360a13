"""The report of a run with a budget: time left, overfitting, and whose translations it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.base.errors import CheckpointError
from dragoman.reporting import measures
from dragoman.reporting.checks import judge
from dragoman.reporting.facts import Facts
from dragoman.reporting.reading import read_facts
from dragoman.reporting.verdict import Verdict
from dragoman.telemetry.events import ClockRead, Payload, SampleTranslation
from recorded_runs import Recorded

HELD_OUT = ("corpus.valid=[]", "corpus.valid_pairs=200", "corpus.test=[]", "corpus.test_pairs=200")


def verdict(facts: Facts, key: str) -> Verdict:
    return next(verdict for verdict in judge(facts) if verdict.key == key)


def test_the_clock_of_a_budget_tells_the_time_left(tmp_path: Path) -> None:
    read: list[tuple[int, Payload]] = [(0, ClockRead(progress=0.4, left_s=300.0))]
    directory = Recorded(steps=2000, reason=None, extra=read).write(tmp_path)
    last = read_facts(directory).lives[-1].ended
    assert measures.left_s(read_facts(directory, now=last + 5)) == pytest.approx(295, abs=12)


def test_a_gap_to_dev_text_held_out_of_the_same_text_is_usual(tmp_path: Path) -> None:
    answers = []
    for name, recipe in (("own", HELD_OUT), ("other", ())):
        run = Recorded(
            recipe=recipe,
            dev_loss=lambda _step: 3.0,
            train_slice_loss=lambda _step: 0.7 * 3.0,
        ).write(tmp_path / name)
        answers.append(verdict(read_facts(run), "overfitting").answer)
    assert answers == ["no", "cannot tell"]


def test_the_translations_are_those_of_the_model_with_the_best_bleu(tmp_path: Path) -> None:
    directory = Recorded(
        steps=3000,
        bleu=lambda step: 20.0 if step == 2000 else 10.0,
        extra=[(0, SampleTranslation(source="a", hypothesis="b", reference="c"))],
    ).write(tmp_path)
    assert {sample.step for sample in read_facts(directory).samples} == {2000}


def test_prepared_text_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "log.jsonl").touch()
    with pytest.raises(CheckpointError, match="prepared text"):
        read_facts(tmp_path)
