"""How long did it take, how big was the text? Answers for a run of another version."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.corpus.manifest import Manifest
from dragoman.reporting.checks import judge
from dragoman.reporting.facts import Facts
from dragoman.reporting.reading import read_facts
from dragoman.reporting.verdict import Verdict
from dragoman.telemetry.session import Session
from recorded_runs import Recorded

PLACE = Path(__file__).parent / "small_run"
LINES = (PLACE / "train.tsv").read_bytes().splitlines()
SIDES = [[line.split(b"\t")[side] for line in LINES] for side in (0, 1)]


@cache
def run() -> Facts:
    return read_facts(PLACE / "run")


def duration(**changes: Any) -> Verdict:
    return next(one for one in judge(replace(run(), **changes)) if one.key == "duration")


def answer(manifest: Manifest | None = None) -> Verdict:
    facts = run()
    facts = replace(facts, manifest=manifest or facts.manifest)
    return next(one for one in judge(facts) if one.key == "corpus")


def test_sizes_and_lines_are_those_of_the_files() -> None:
    verdict = answer()
    assert verdict.answer == "measured"
    both = sum(len(text) + 1 for side in SIDES for text in side)  # with its line end
    assert (
        verdict.says
        == f"400 pairs, {both / 1e3:.2f} kB (= {both / 1024:.2f} KiB) of text on both sides."
    )
    rows = {row.name: (row.value, row.text) for row in verdict.evidence}
    size = (PLACE / "train.tsv").stat().st_size
    sha256 = hashlib.sha256((PLACE / "train.tsv").read_bytes()).hexdigest()
    shown = f"400 lines, {size / 1e3:.2f} kB (= {size / 1024:.2f} KiB), sha256 {sha256[:12]}"
    assert rows.pop("read train.tsv") == (size, shown)
    source, target = (sum(len(text) + 1 for text in side) for side in SIDES)
    shown = f"400 of 400 pairs, source {source / 1e3:.2f} kB (= {source / 1024:.2f} KiB), "
    shown += f"target {target / 1e3:.2f} kB (= {target / 1024:.2f} KiB)"
    assert rows.pop("after clean") == rows.pop("after encode") == (400, shown)
    pieces = [len(np.load(PLACE / f"shards/train/{side}_ids.npy")) for side in ("source", "target")]
    shown = " + ".join(f"{count:,}" for count in pieces)
    assert rows.pop("source + target pieces") == (sum(pieces), shown)
    digest = json.loads((PLACE / "run/manifest.json").read_text())["digest"][:16]
    assert rows == {"cut short": (0.0, "0.0%"), "digest of the prepared text": (digest, digest)}


def test_dropped_pairs_come_with_their_reason_the_most_frequent_first() -> None:
    record = json.loads((PLACE / "run/manifest.json").read_text())
    first, last = record["splits"]["train"]["stages"]
    first["dropped"] = {"length_ratio": 10, "duplicate": 30}
    first["pairs_out"] = last["pairs_in"] = 360
    last["dropped"] = {"too_long": 20}
    last["pairs_out"] = record["splits"]["train"]["pairs"] = 340
    record["splits"]["train"]["truncated_share"] = 0.1
    rows = [
        (row.name, row.value, row.text)
        for row in answer(Manifest.model_validate(record)).evidence
        if row.name.startswith(("dropped", "cut"))
    ]
    assert rows == [
        ("dropped: duplicate", 30, "30 pairs, 7.5%"),
        ("dropped: too long", 20, "20 pairs, 5.0%"),
        ("dropped: length ratio", 10, "10 pairs, 2.5%"),
        ("cut short", 0.1, "10.0%"),
    ]


def test_the_duration_is_that_of_the_events() -> None:
    lines = (PLACE / "run/events/log.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    times = [one["time"] for one in events if one["kind"] in ("run_started", "run_finished")]
    train_s = sum(one["interval_s"][0] for one in events if one["kind"] == "train_interval")
    verdict = duration()
    assert verdict.says == f"It took 5.00 s for 200 steps, {train_s:.2f} s of it in training."
    rows = {row.name: row.value for row in verdict.evidence}
    assert rows["train"] == pytest.approx(train_s)
    assert rows["wall clock"] == pytest.approx(times[1] - times[0])
    assert "how it ended" not in rows


def test_from_an_hour_on_hours_stand_beside_the_duration() -> None:
    (life,) = run().lives
    assert "h)" not in duration().says
    verdict = duration(lives=(replace(life, ended=life.started + 5400),))
    assert verdict.says.startswith("It took 1 h 30 min (1.50 h) for 200 steps")


def test_the_reason_for_the_end_is_named() -> None:
    ended = Session(
        pid=1, machine="m", started=0.0, state="failed", problem="the GPU fell off the bus"
    )
    rows = {row.name: row.value for row in duration(exit=ended).evidence}
    assert rows["how it ended"] == "the GPU fell off the bus"


def test_steps_that_were_made_again_are_counted(tmp_path: Path) -> None:
    facts = read_facts(Recorded(resume_at=(4000, 3000)).write(tmp_path / "run"))
    (verdict,) = (one for one in judge(facts) if one.key == "duration")
    rows = {row.name: (row.value, row.text) for row in verdict.evidence}
    value, text = rows["steps made again after a resume"]
    assert value == 1000
    assert text.startswith("1,000 in ")


def test_time_since_the_last_interval_is_shown() -> None:
    (life,) = run().lives
    open_ended = replace(life, reason=None, accounted=life.ended - 2.5)
    rows = {row.name: row.value for row in duration(lives=(open_ended,)).evidence}
    assert rows["since the last interval, not recorded"] == pytest.approx(2.5)
