"""Pauses in a report: each once, the longest first, and steps without them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dragoman.reporting.checks import BY_KEY
from dragoman.reporting.facts import Pause, RecordedValidation
from dragoman.reporting.pauses import (
    known_pauses,
    still,
    validations_without,
    without_pauses,
)
from dragoman.reporting.reading import read_facts
from dragoman.reporting.record import IntervalRows, summed
from dragoman.telemetry.events import TrainInterval, as_values
from recorded_runs import Recorded

PAUSE = Pause(rank=0, host="a", began=1000.0, seconds_s=9.0, step=150, during="forward", own=True)
AT_END = replace(PAUSE, began=1041.0)
Phases = dict[str, float | None]
PHASES: Phases = {
    "interval_s": 49.0,
    "data_wait_s": 1.0,
    "forward_s": 19.0,
    "backward_s": 20.0,
    "sync_s": 4.0,
    "optimizer_s": 5.0,
    "step_median_s": 0.3,
}


def shortened(
    pause: Pause, *ranks: Phases, wire_s: float | None = None, steps: int = 100
) -> list[Phases]:
    """The phases of each rank in the second of two intervals alike, without a pause."""
    values = {name: tuple(phases[name] for phases in ranks) for name in PHASES}
    payload = TrainInterval(steps=steps, train_loss=2.0, wire_s=wire_s, **values)  # type: ignore[arg-type]
    rows = IntervalRows()
    for step, time in ((100, 1001.0 - 49.0), (200, 1050.0)):
        rows.add(as_values(payload), step=step, time=time, life=0)
    before = rows.intervals()
    after = without_pauses(before, [pause])
    for name in PHASES:
        assert np.array_equal(after[name][0], before[name][0], equal_nan=True), "another interval"
    return [
        {name: summed(after.of(name, rank)[1:]) for name in (*PHASES, "wire_s")}
        for rank in range(len(ranks))
    ]


def test_a_pause_recorded_by_two_ranks_counts_once() -> None:
    seen = replace(PAUSE, own=False, began=1000.5, seconds_s=8.0)
    later = replace(PAUSE, began=PAUSE.ended, seconds_s=3.0)
    assert known_pauses([seen, later, PAUSE]) == [PAUSE, later]
    another = replace(seen, rank=1)
    assert known_pauses([PAUSE, another]) == [PAUSE, another]


def test_a_pause_is_taken_from_the_phase_it_was_in() -> None:
    (paused,) = shortened(PAUSE, PHASES)
    assert paused == PHASES | {"forward_s": 10.0, "interval_s": 40.0, "wire_s": None}


def test_a_pause_that_its_phase_cannot_hold_is_taken_from_the_longest() -> None:
    (paused,) = shortened(replace(PAUSE, during="optimizer"), PHASES)
    assert paused == PHASES | {"backward_s": 11.0, "interval_s": 40.0, "wire_s": None}
    unknown = PHASES | {"forward_s": None}
    (paused,) = shortened(replace(PAUSE, began=1002.0, seconds_s=1.0), unknown)
    assert paused == unknown | {"backward_s": 19.0, "interval_s": 48.0, "wire_s": None}
    untimed = PHASES | {"interval_s": None}
    assert shortened(PAUSE, untimed) == [untimed | {"wire_s": None}]


def test_a_pause_between_two_phases_is_taken_from_the_interval_alone() -> None:
    short: Phases = {**dict.fromkeys(PHASES, 0.05), "interval_s": 9.25, "step_median_s": 0.0025}
    waits: Phases = short | {"sync_s": 9.05}
    paused, other = shortened(AT_END, short, waits)
    assert paused == pytest.approx(short | {"interval_s": 0.25, "wire_s": None})
    assert other == pytest.approx(waits | {"interval_s": 0.25, "sync_s": 0.05, "wire_s": None})


def test_a_pause_between_two_steps_and_one_recorded_too_long_leave_steps_their_usual_time() -> None:
    usual: Phases = {**dict.fromkeys(PHASES, 0.05), "interval_s": 0.25, "step_median_s": 0.0025}
    between, waits = shortened(replace(AT_END, during="sync"), usual, usual)
    assert between == waits == usual | {"wire_s": None}
    held: Phases = usual | {"forward_s": 8.65, "interval_s": 8.85}
    (paused,) = shortened(AT_END, held)
    assert paused == pytest.approx(usual | {"wire_s": None})


def test_a_pause_is_in_no_median_of_one_step() -> None:
    (paused,) = shortened(replace(PAUSE, step=199), PHASES | {"step_median_s": 49.0}, steps=1)
    assert (paused["interval_s"], paused["step_median_s"]) == (40.0, 40.0)


def test_a_silence_counts_in_the_interval_that_it_lengthened() -> None:
    """The last sign of life, which names the step, came some intervals before."""
    rows = IntervalRows()
    for step, time, waited_s in ((5, 1000.0, 0.0), (10, 1001.0, 0.0), (15, 1013.0, 11.0)):
        payload = TrainInterval(
            steps=5,
            train_loss=2.0,
            interval_s=(1.0 + waited_s,) * 2,
            step_median_s=(0.2,) * 2,
            sync_s=(0.1 + waited_s,) * 2,
            forward_s=(0.9,) * 2,
            wire_s=0.1 + waited_s,
        )
        rows.add(as_values(payload), step=step, time=time, life=0)
    silence = replace(PAUSE, began=1000.5, seconds_s=12.0, step=3, own=False)
    after = without_pauses(rows.intervals(), [silence])
    assert after["interval_s"].tolist() == [[1.0, 1.0]] * 3
    assert after["sync_s"] == pytest.approx(0.1)
    assert after["wire_s"] == pytest.approx(0.1)


def test_a_silence_in_which_all_ranks_waited_is_not_a_wait_for_the_wire() -> None:
    """As when a link was out."""
    together = PHASES | {"sync_s": 12.0, "forward_s": 11.0}
    silence = replace(PAUSE, during="sync", own=False)
    for phases in shortened(silence, together, together, wire_s=11.5):
        assert (phases["sync_s"], phases["wire_s"]) == (3.0, 3.0)


def test_the_other_ranks_lose_it_from_their_wait() -> None:
    waits = PHASES | {"sync_s": 12.0, "forward_s": 11.0}
    _, other = shortened(PAUSE, PHASES, waits)
    assert other == waits | {"sync_s": 3.0, "interval_s": 40.0, "wire_s": None}


@pytest.mark.parametrize(
    ("loss_s", "decode_s", "expected"),
    [(20.0, 5.0, (11.0, 5.0)), (5.0, 20.0, (5.0, 11.0)), (12.0, None, (3.0, None))],
)
def test_a_validation_is_shorter_by_its_pause(
    loss_s: float, decode_s: float | None, expected: tuple[float, float | None]
) -> None:
    validation = RecordedValidation(step=150, time=1020.0, loss_s=loss_s, decode_s=decode_s)
    pause = replace(PAUSE, during="validating")
    (shorter,) = validations_without([validation], [pause])
    assert (shorter.loss_s, shorter.decode_s) == expected
    other = validation.model_copy(update={"step": 151})
    assert validations_without([other], [pause]) == (other,)


def test_the_longest_pause_is_named_first(tmp_path: Path) -> None:
    facts = read_facts(Recorded(steps=1000, max_steps=1000).write(tmp_path / "run"))
    long = replace(PAUSE, rank=1, host="b", began=2000.0, seconds_s=60.0)
    facts = replace(facts, pauses=(PAUSE, long))
    assert still(facts) == [long, PAUSE]
    verdict = BY_KEY["pauses"].of(facts)
    assert verdict.answer == "yes"
    assert facts.wall_s is not None
    first = "rank 1 on b stood still for 1 min 00 s from"
    whole = f"Ranks stood still for 1 min 09 s, {69 / facts.wall_s:.1%} of the run"
    assert verdict.says.startswith(f"{whole}: {first}")
    untimed = BY_KEY["pauses"].of(replace(facts, lives=()))
    assert untimed.says.startswith(f"Ranks stood still for 1 min 09 s: {first}")
    assert untimed.answer == "no"
    assert verdict.remedy.startswith("Look for what stopped it then")
    short = BY_KEY["pauses"].of(replace(facts, pauses=(replace(PAUSE, seconds_s=3.44),)))
    assert (short.answer, short.remedy) == ("no", "")
    assert "stood still for 3.40 s from" in short.says
    rows = {row.name: row.value for row in verdict.evidence}
    assert rows.pop("share of the run in pauses") == pytest.approx(69 / facts.wall_s)
    assert rows == {"rank 0 on a": 9.0, "rank 1 on b": 60.0}
    between = BY_KEY["pauses"].of(replace(facts, pauses=(replace(PAUSE, during="saving"),)))
    assert "while saving after step 150" in between.says
