"""Pauses in a report: each once, the longest first, and steps without them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.reporting.facts import Interval, Pause, Rank, RecordedValidation, Segment
from dragoman.reporting.pauses import (
    known_pauses,
    pauses,
    still,
    validations_without,
    without_pauses,
)
from dragoman.reporting.reading import read_facts
from recorded_runs import Recorded

PAUSE = Pause(rank=0, host="a", began=1000.0, seconds_s=9.0, step=150, during="forward", own=True)
INTERVAL = Interval(
    step=200,
    steps=100,
    time=1050.0,
    interval_s=49.0,
    data_wait_s=1.0,
    forward_s=19.0,
    backward_s=20.0,
    sync_s=4.0,
    optimizer_s=5.0,
)


LIFE = Segment(
    started=900.0, ended=1060.0, first_step=0, last_step=200, reason=None, accounted=1060.0
)


def rank(number: int, interval: Interval) -> Rank:
    before = replace(interval, step=100, time=1001.0 - 49.0)
    return Rank(rank=number, hosts=("a",), intervals=(before, interval))


def test_a_pause_recorded_by_two_ranks_counts_once() -> None:
    seen = replace(PAUSE, own=False, began=1000.5, seconds_s=8.0)
    later = replace(PAUSE, began=PAUSE.ended, seconds_s=3.0)
    assert known_pauses([seen, later, PAUSE]) == [PAUSE, later]
    another = replace(seen, rank=1)
    assert known_pauses([PAUSE, another]) == [PAUSE, another]


def test_a_pause_is_taken_from_the_phase_it_was_in() -> None:
    (paused,) = without_pauses([rank(0, INTERVAL)], [PAUSE], [LIFE])
    assert paused.intervals[1].forward_s == 10.0
    assert paused.intervals[1].interval_s == 40.0
    assert paused.intervals[1].backward_s == INTERVAL.backward_s


def test_a_pause_that_its_phase_cannot_hold_is_taken_from_the_longest() -> None:
    (paused,) = without_pauses([rank(0, INTERVAL)], [replace(PAUSE, during="optimizer")], [LIFE])
    assert paused.intervals[1].optimizer_s == INTERVAL.optimizer_s
    assert paused.intervals[1].backward_s == 11.0
    unknown = replace(INTERVAL, forward_s=None)
    short = replace(PAUSE, seconds_s=1.0)
    (paused,) = without_pauses([rank(0, unknown)], [short], [LIFE])
    assert paused.intervals[1].forward_s is None
    assert paused.intervals[1].backward_s == 19.0
    untimed = replace(INTERVAL, interval_s=None)
    (paused,) = without_pauses([rank(0, untimed)], [PAUSE], [LIFE])
    assert paused.intervals[1] == untimed


def test_a_silence_in_which_all_ranks_waited_is_not_a_wait_for_the_wire() -> None:
    """As when a link was out."""
    together = replace(INTERVAL, sync_s=12.0, forward_s=11.0, wire_s=11.5)
    silence = replace(PAUSE, during="sync", own=False)
    for one in without_pauses([rank(0, together), rank(1, together)], [silence], [LIFE]):
        assert (one.intervals[1].sync_s, one.intervals[1].wire_s) == (3.0, 3.0)


def test_the_other_ranks_lose_it_from_their_wait() -> None:
    waits = replace(INTERVAL, sync_s=12.0, forward_s=11.0)
    other = without_pauses([rank(0, INTERVAL), rank(1, waits)], [PAUSE], [LIFE])[1]
    assert other.intervals[1].sync_s == 3.0
    assert other.intervals[1].forward_s == 11.0


@pytest.mark.parametrize(
    ("loss_s", "decode_s", "expected"),
    [(20.0, 5.0, (11.0, 5.0)), (5.0, 20.0, (5.0, 11.0)), (12.0, None, (3.0, None))],
)
def test_a_validation_is_shorter_by_its_pause(
    loss_s: float, decode_s: float | None, expected: tuple[float, float | None]
) -> None:
    validation = RecordedValidation(step=150, time=1020.0, loss_s=loss_s, decode_s=decode_s)
    pause = replace(PAUSE, during="validating")
    (shorter,) = validations_without([validation], [pause], [])
    assert (shorter.loss_s, shorter.decode_s) == expected
    other = replace(validation, step=151)
    assert validations_without([other], [pause], []) == (other,)


def test_the_longest_pause_is_named_first(tmp_path: Path) -> None:
    facts = read_facts(Recorded(steps=1000, max_steps=1000).write(tmp_path / "run"))
    long = replace(PAUSE, rank=1, host="b", began=2000.0, seconds_s=60.0)
    facts = replace(facts, pauses=(PAUSE, long))
    assert still(facts) == [long, PAUSE]
    verdict = pauses(facts)
    assert verdict.answer == "yes"
    assert facts.wall_s is not None
    first = "rank 1 on b stood still for 1 min 00 s from"
    whole = f"Ranks stood still for 1 min 09 s, {69 / facts.wall_s:.1%} of the run"
    assert verdict.says.startswith(f"{whole}: {first}")
    untimed = pauses(replace(facts, segments=()))
    assert untimed.says.startswith(f"Ranks stood still for 1 min 09 s: {first}")
    assert untimed.answer == "no"
    assert verdict.remedy.startswith("Look for what stopped it then")
    short = pauses(replace(facts, pauses=(replace(PAUSE, seconds_s=3.44),)))
    assert (short.answer, short.remedy) == ("no", "")
    assert "stood still for 3.40 s from" in short.says
    rows = {row.name: row.value for row in verdict.evidence}
    assert rows.pop("share of the run in pauses") == pytest.approx(69 / facts.wall_s)
    assert rows == {"rank 0 on a": 9.0, "rank 1 on b": 60.0}
    between = pauses(replace(facts, pauses=(replace(PAUSE, during="saving"),)))
    assert "while saving after step 150" in between.says
