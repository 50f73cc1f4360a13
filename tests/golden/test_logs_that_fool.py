"""Logs that record only a part of a run, or on which a simple rule would be wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dragoman.reporting.checks import examine, judge
from dragoman.reporting.facts import Facts
from dragoman.reporting.reading import read_facts
from dragoman.reporting.verdict import Verdict
from dragoman.telemetry.events import (
    DeviceMeasured,
    LinkMeasured,
    Payload,
    RankPaused,
    TrainInterval,
    as_values,
)
from example_events import HOST_SAMPLED, changed
from golden_gpu import gpu_sampled
from recorded_runs import Recorded, read_ranks, write_ranks
from well_said import assert_well_said

VOCABULARY = ("corpus.subword.vocab_size=32768",)
CONSTANT = (*VOCABULARY, "schedule.kind=constant", "schedule.warmup_steps=100")
Change = Callable[[dict[str, Any]], None]


def link(bytes_per_s: float) -> tuple[int, Payload]:
    measured = LinkMeasured(
        interface="eth0", peer="host-b", bytes_per_s=bytes_per_s, latency_s=3e-4, method="test"
    )
    return 0, measured


def edit(run: Path, rank: int, kind: str, change: Change) -> None:
    """Change the events of one kind, as one rank sees them."""
    ranks = read_ranks(run)
    for event in ranks[rank]:
        if event["kind"] == kind:
            change(event)
    write_ranks(run, ranks)


def answers(facts: Facts) -> dict[str, Verdict]:
    found = {one.key: one for one in [*judge(facts), *examine(facts)]}
    for verdict in found.values():
        assert_well_said(verdict)
    return found


# The run, what question 4 must blame, and whether that is the network.
SHARED: dict[str, tuple[Recorded, str, bool]] = {
    "ranks late in turn by 18% on a link of 10 GB/s": (
        Recorded(sync_s=(0.09, 0.09), late_in_turn_s=0.085, extra=[link(10e9)]),
        "waiting for ranks that compute for longer in turn",
        False,
    ),
    "ranks late in turn by 43%": (
        Recorded(sync_s=(0.3, 0.3), late_in_turn_s=0.25, extra=[link(10e9)]),
        "waiting for ranks that compute for longer in turn",
        False,
    ),
    "17% that the bytes explain": (
        Recorded(sync_s=(0.09, 0.09), extra=[link(92e6)]),
        "the network (see question 5)",
        True,
    ),
    "71%, which the bytes explain": (
        Recorded(sync_s=(2.24, 2.24), extra=[link(12e6)]),
        "the network (see question 5)",
        True,
    ),
    "the only interval there is": (
        Recorded(steps=100, sync_s=(2.24, 2.24), extra=[link(12e6)]),
        "the network (see question 5)",
        True,
    ),
    "a rank that is slower than the other": (
        Recorded(compute_s=(0.4, 0.8), sync_s=(0.41, 0.01), extra=[link(10e9)]),
        "waiting for ranks that compute for longer",
        False,
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_questions_4_5_and_11_blame_the_same(name: str, tmp_path: Path) -> None:
    run, blamed, is_network = SHARED[name]
    found = answers(read_facts(run.write(tmp_path / "run")))
    assert blamed in found["processors"].remedy
    assert ("the network (see question 5)" in found["processors"].remedy) == is_network
    assert not found["network_fit"].remedy
    if not is_network:
        assert found["network"].answer == "no"


def test_slow_sums_on_a_fast_link_are_not_blamed_on_the_network(tmp_path: Path) -> None:
    """Both ranks wait for three quarters of a step, and the bytes need 3 ms: packing, adding?"""
    run = Recorded(sync_s=(1.2, 1.2), extra=[link(10e9)], recipe=VOCABULARY).write(tmp_path / "run")
    found = answers(read_facts(run))
    assert found["network"].answer == "cannot tell"
    assert "sums themselves may be slow" in found["network"].says


def test_a_run_that_ends_on_one_rank_may_have_had_more_before(tmp_path: Path) -> None:
    """Two ranks up to step 4,000, then one: the first part used the network."""
    run = Recorded(resume_at=(4000, 4000), sync_s=(1.2, 1.2), recipe=VOCABULARY).write(
        tmp_path / "run"
    )
    edit(
        run,
        0,
        "run_started",
        lambda event: event.update(world_size=1 if event["resumed_from_step"] else 2),
    )
    first, other = read_ranks(run)
    second = [n for n, line in enumerate(other) if line["kind"] == "run_started"][1]
    write_ranks(run, [first, other[:second]])
    found = answers(read_facts(run))
    assert (found["network"].answer, found["network_fit"].answer) == ("no", "measured")
    assert found["network"].says.startswith("Since step 4,001, ")
    assert "on host-a: One process trained alone" in found["network"].says
    assert "Steps 1 to 4,000 on host-a, host-b: " in found["network"].says


def test_a_wait_for_data_is_not_blamed_on_the_network(tmp_path: Path) -> None:
    run = Recorded(sync_s=(0.41, 0.01), extra=[link(10e9)]).write(tmp_path / "run")

    def wait(event: dict[str, Any]) -> None:
        event["data_wait_s"] += 40.0
        event["interval_s"] += 40.0

    edit(run, 1, TrainInterval.kind, wait)
    found = answers(read_facts(run))
    assert "data (rank 1 on host-b)" in found["processors"].remedy
    assert found["network"].answer == "no"
    assert found["straggler"].answer == "no"
    assert found["starved"].answer == "yes"
    shares = {row.name: row.value for row in found["processors"].evidence}
    assert shares["waiting for data"] == pytest.approx(0.4001 / 0.811, rel=1e-2)


def _healthy(step: int) -> float:
    return 1.5 + 6 * math.exp(-step / 300)


# The events, and the right answers to questions 2 and 3 and about the learning rate.
LEARNT: dict[str, tuple[Recorded, dict[str, str], str]] = {
    "the training slice was measured in the first steps alone": (
        Recorded(
            dev_loss=lambda step: 3 + 6 * math.exp(-step / 300),
            train_slice_loss=lambda step: 3.0 if step <= 1000 else None,
        ),
        {"overfitting": "cannot tell"},
        "not measured after step 1,000",
    ),
    "the dev loss turned after the training slice was given up": (
        Recorded(
            dev_loss=lambda step: 2.0 + 0.3 * abs(math.log(max(step, 1) / 3000)),
            train_slice_loss=lambda step: 2.0 + step / 1e4 if step <= 4000 else None,
            train_loss=lambda step: 2.0 - step / 1e4,
        ),
        {"overfitting": "cannot tell", "trained": "yes"},
        "not measured after step 4,000",
    ),
    "the training loss explodes after the last validation": (
        Recorded(
            steps=8900,
            max_steps=9000,
            reason="signal",
            dev_loss=_healthy,
            train_loss=lambda step: 2.0 if step < 8300 else 50.0,
            recipe=VOCABULARY,
        ),
        {"trained": "no", "plateau": "no", "rate_too_high": "yes"},
        "After the last validation, at step 8,000, the training loss has risen from 2.0000 to 50",
    ),
    "the dev loss is not a number any more": (
        Recorded(
            dev_loss=lambda step: _healthy(step) if step < 5000 else None,
            train_loss=lambda step: 2.0 if step < 5000 else None,
            recipe=VOCABULARY,
        ),
        {"trained": "cannot tell", "overfitting": "cannot tell", "plateau": "cannot tell"},
        "No dev loss is known for the last 4,000 steps, after step 4,000.",
    ),
    "BLEU fell from 30 to 0.1 while the dev loss is flat": (
        Recorded(
            dev_loss=_healthy, bleu=lambda step: 30.0 if step < 4000 else 0.1, recipe=VOCABULARY
        ),
        {"trained": "cannot tell", "plateau": "cannot tell", "translations_worse": "yes"},
        "yet BLEU has fallen since step 3,000 from 30.0 to 0.1",
    ),
    "BLEU falls slowly while the dev loss is flat": (
        Recorded(dev_loss=_healthy, bleu=lambda step: 30.0 - step / 2000, recipe=VOCABULARY),
        {"trained": "cannot tell"},
        "yet BLEU has fallen since step 3,000 from 28.5 to 26.0",
    ),
    "BLEU falls while the dev loss falls": (
        Recorded(
            dev_loss=lambda step: 1.4 + 30 * max(step, 1) ** -0.5 if step else 9.4,
            bleu=lambda step: 30.0 - max(step - 3000, 0) / 400,
            recipe=VOCABULARY,
        ),
        {"trained": "cannot tell", "translations_worse": "yes", "plateau": "no"},
        "yet BLEU has fallen since step 3,000 from 30.0 to 17.5",
    ),
    "BLEU moves within its confidence interval while the dev loss falls": (
        Recorded(
            dev_loss=lambda step: 1.4 + 30 * max(step, 1) ** -0.5 if step else 9.4,
            bleu=lambda step: 25.0 if step == 6000 else 24.5,
            recipe=VOCABULARY,
        ),
        {"trained": "no", "translations_worse": "no"},
        "The dev loss still falls",
    ),
    "BLEU of one in a flat loss": (
        Recorded(dev_loss=_healthy, bleu=lambda _step: 1.01, recipe=VOCABULARY),
        {"trained": "cannot tell", "plateau": "cannot tell", "translations_worse": "cannot tell"},
        "its best BLEU is 1.0 (0.0 to 2.0), which may be chance",
    ),
    "BLEU of one, and no better than frequent words": (
        Recorded(
            dev_loss=lambda step: 7.4 + 3 * math.exp(-step / 300),
            bleu=lambda _step: 1.41,
            recipe=VOCABULARY,
        ),
        {"trained": "no"},
        "it has not learnt to translate",
    ),
    "a language model of the target that ignores its source, and no BLEU": (
        Recorded(
            dev_loss=lambda step: 0.41 * math.log(32768) + 6 * math.exp(-step / 300),
            bleu=lambda _step: None,
            recipe=VOCABULARY,
        ),
        {"trained": "cannot tell", "plateau": "cannot tell"},
        "whatever the source: no BLEU was measured",
    ),
    "the dev loss has turned, BLEU still rises": (
        Recorded(
            dev_loss=lambda step: 2.0 + 0.3 * abs(math.log(max(step, 1) / 3000)),
            train_slice_loss=lambda step: 2.0 - step / 1e4,
            bleu=lambda step: 8 * math.log(step + 1),
            recipe=VOCABULARY,
        ),
        {"trained": "cannot tell", "overfitting": "yes"},
        "yet BLEU still rises",
    ),
    "trained from another model, its recipe lost: the first loss says nothing": (
        Recorded(dev_loss=lambda step: 2.0 + 2.0 * math.exp(-step / 500), bleu=lambda _step: None),
        {"trained": "cannot tell", "rate_too_low": "cannot tell"},
        "no BLEU was measured",
    ),
    "trained from another model, and worse than it, by its dev loss": (
        Recorded(
            dev_loss=lambda step: 1.5 if step == 0 else 2.4 + 1e-4 * math.sin(step),
            train_slice_loss=lambda _step: 2.3,
            bleu=lambda step: 35.0 if step == 0 else 20.0,
            recipe=CONSTANT,
        ),
        {"trained": "no", "translations_worse": "yes", "plateau": "cannot tell"},
        "worse now: dev loss 1.5000 at step 0, now 2.4",
    ),
    "trained from another model, and worse than it, by BLEU alone": (
        Recorded(
            dev_loss=lambda step: 2.0 + 1e-4 * math.sin(step),
            bleu=lambda step: 35.0 if step == 0 else 30.0,
            recipe=CONSTANT,
        ),
        {"trained": "no"},
        "worse now: BLEU 35.0 (34.0 to 36.0) at step 0, now 30.0 (29.0 to 31.0)",
    ),
    "trained from another model, and as good as it": (
        Recorded(dev_loss=lambda step: 2.0 + 1e-4 * math.sin(step), recipe=CONSTANT),
        {"trained": "yes", "translations_worse": "no"},
        "The dev loss is flat",
    ),
    **{
        f"flat during a warm-up of {kind}": (
            Recorded(
                steps=800,
                reason="signal",
                log_every=20,
                validate_every=100,
                dev_loss=lambda step: 2.0 + 1e-4 * math.sin(step),
                train_slice_loss=lambda _step: 1.9,
                bleu=lambda _step: 30.0,
                recipe=(*VOCABULARY, f"schedule.kind={kind}", *settings),
            ),
            {"trained": "cannot tell", "plateau": "no"},
            "",
        )
        for kind, settings in (
            ("constant", ("schedule.warmup_steps=4000",)),
            ("inverse_sqrt", ("schedule.warmup_steps=4000",)),
            ("linear", ("schedule.warmup_steps=4000", "schedule.final_ratio=0.5")),
        )
    },
    "the weights no longer change since step 3,000": (
        Recorded(dev_loss=lambda step: _healthy(min(step, 3000)), recipe=VOCABULARY),
        {"trained": "cannot tell", "plateau": "cannot tell"},
        "to the last digit",
    ),
    "97 of 100 steps are skipped": (
        Recorded(
            dev_loss=lambda step: 2.0 + 1e-4 * math.sin(step) if step else 9.4,
            interval_changes={"skipped_steps": 97},
            recipe=VOCABULARY,
        ),
        {"trained": "cannot tell", "plateau": "cannot tell"},
        "97.0% of the later steps were skipped",
    ),
    "the loss explodes, and a person ends it": (
        Recorded(
            dev_loss=lambda step: _healthy(step) if step < 5000 else 40.0 + step / 1000,
            train_slice_loss=lambda step: _healthy(step) if step < 5000 else 40.0,
            train_loss=lambda step: 2.0 if step <= 4000 else 50.0,
            bleu=lambda step: 30.0 if step < 5000 else 0.0,
            reason="signal",
            recipe=VOCABULARY,
        ),
        {"trained": "no", "diverged": "cannot tell"},
        "it gets worse, not better",
    ),
    "the last validation gave no number": (
        Recorded(dev_loss=lambda step: _healthy(step) if step < 8000 else None, recipe=VOCABULARY),
        {"trained": "cannot tell", "overfitting": "cannot tell"},
        "No dev loss is known for the last 1,000 steps",
    ),
    "dev text of another kind, in the first epoch": (
        Recorded(
            dev_loss=lambda step: 2.9 + 30 * max(step, 1) ** -0.5 if step else 9.4,
            train_slice_loss=lambda step: 1.2 + 10 * max(step, 1) ** -0.5,
            epoch=lambda _step: 0,
            recipe=VOCABULARY,
        ),
        {"trained": "no", "overfitting": "cannot tell"},
        "Nothing shows that training text was seen twice",
    ),
    "corpora in order, of which every other is harder, while the dev loss falls": (
        Recorded(
            dev_loss=lambda step: 1.4 + 30 * max(step, 1) ** -0.5 if step else 9.4,
            train_loss=lambda step: (2.0, 3.2)[step // 1000 % 2] + 0.02 * math.sin(step),
            recipe=VOCABULARY,
        ),
        {"rate_too_high": "cannot tell", "trained": "no"},
        "The dev loss still falls",
    ),
    "one interval in twenty is 1.35 times as hard": (
        Recorded(
            train_loss=lambda step: 2.0 + 0.02 * math.sin(step) + 0.7 * (step % 2000 == 0),
            recipe=VOCABULARY,
        ),
        {"rate_too_high": "cannot tell", "trained": "yes"},
        "The dev loss is flat",
    ),
    "other text after the last validation": (
        Recorded(
            steps=8900,
            max_steps=9000,
            reason="signal",
            dev_loss=_healthy,
            train_loss=lambda step: (2.0 if step <= 8000 else 3.0) + 0.02 * math.sin(step),
            recipe=CONSTANT,
        ),
        {"trained": "cannot tell", "diverged": "cannot tell"},
        "the model has become worse, or the text harder",
    ),
    "nothing learnt after an explosion at the start, its recipe lost": (
        Recorded(
            dev_loss=lambda step: 10.4 + 1e-4 * math.sin(step) if step else 20.0,
            bleu=lambda _step: 0.2,
        ),
        {"trained": "cannot tell", "rate_too_low": "cannot tell", "plateau": "cannot tell"},
        "which may be chance",
    ),
}


@pytest.mark.parametrize("name", LEARNT)
def test_learning_is_judged_by_how_the_run_ends(name: str, tmp_path: Path) -> None:
    run, expected, said = LEARNT[name]
    found = answers(read_facts(run.write(tmp_path / "run")))
    assert {key: found[key].answer for key in expected} == expected
    assert said in found["trained"].says + found["overfitting"].says


def _device(rank: int, flop_per_s: float, alone: float | None = None) -> tuple[int, Payload]:
    measured = DeviceMeasured(
        device="cuda", matrix_flop_per_s=flop_per_s, alone_tokens_per_s=alone, method="test"
    )
    return rank, measured


@pytest.mark.parametrize(
    ("devices", "answer"),
    [
        ([_device(0, 3e11), _device(1, 3e11)], "yes"),
        ([_device(0, 3e11), _device(1, 9e11)], "no"),
        ([_device(0, 3e11)], "cannot tell"),
        ([_device(0, 1e11), _device(1, 1e11)], "cannot tell"),
    ],
)
def test_useful_flops_count_if_every_host_measured_its_device(
    devices: list[tuple[int, Payload]], answer: str, tmp_path: Path
) -> None:
    run = Recorded(device="cuda", recipe=VOCABULARY, extra=devices).write(tmp_path / "run")
    assert answers(read_facts(run))["processors"].answer == answer


def test_a_rate_measured_on_a_shared_device_is_called_impossible(tmp_path: Path) -> None:
    devices = [_device(rank, 1e11, alone=3000.0) for rank in (0, 1)]
    run = Recorded(device="cuda", recipe=VOCABULARY, extra=devices).write(tmp_path / "run")
    rows = {row.name: row.text for row in answers(read_facts(run))["processors"].evidence}
    for name in ("scaling efficiency", "useful FLOPs over the rate of matrix products (MFU)"):
        assert "more than possible: the device was measured while" in rows[name]


def test_ranks_slow_by_turns_are_neither_a_straggler_nor_the_network(
    tmp_path: Path,
) -> None:
    run = Recorded(extra=[link(10e9)]).write(tmp_path / "run")

    def in_turn(rank: int) -> Change:
        def change(event: dict[str, Any]) -> None:
            is_slow = event["step"] // 100 % 2 == rank
            for name in ("forward_s", "backward_s", "optimizer_s"):
                event[name] *= 2 if is_slow else 1
            event["sync_s"] += 0 if is_slow else 40.0
            event["interval_s"] += 40.0

        return change

    for rank in (0, 1):
        edit(run, rank, TrainInterval.kind, in_turn(rank))
    found = answers(read_facts(run))
    assert (found["straggler"].answer, found["network"].answer) == ("no", "no")
    assert "waiting for ranks that compute for longer" in found["processors"].remedy


def _gpus(power_w: float, *, ranks: tuple[int, ...] = (0, 1)) -> list[tuple[int, Payload]]:
    return [(rank, gpu_sampled(power_w)) for rank in ranks]


FAST = [_device(0, 3e11), _device(1, 3e11)]
USED: dict[str, tuple[Recorded, str, str]] = {
    "it computes all the time at little power": (
        Recorded(extra=[*_gpus(112.0), *FAST]),
        "cannot tell",
        "drew 44.8% of its power",
    ),
    "most of the run is evaluation": (
        Recorded(validation_s=5000.0, extra=FAST),
        "cannot tell",
        "of the run was outside steps",
    ),
    "two GPUs of one host, and none of the other": (
        Recorded(extra=[*_gpus(240.0, ranks=(0,)), (0, changed(gpu_sampled(240.0), gpu=1))]),
        "cannot tell",
        "power of every GPU",
    ),
    "full all the time": (Recorded(extra=_gpus(240.0)), "yes", "96.0% of the power"),
}


@pytest.mark.parametrize("name", USED)
def test_a_gpu_counts_as_full_only_if_it_was_full_throughout_the_run(
    name: str, tmp_path: Path
) -> None:
    run, answer, said = USED[name]
    found = replace(run, device="cuda", recipe=VOCABULARY).write(tmp_path / "run")
    verdict = answers(read_facts(found))["processors"]
    assert (verdict.answer, said in verdict.says) == (answer, True), verdict.says


@pytest.mark.parametrize("after", [500, 7500])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_samples_at_the_ends_do_not_cover_the_run(device: str, after: int, tmp_path: Path) -> None:
    """Up to step 500 alone, or then and after step 7,500."""
    busy = changed(HOST_SAMPLED, cpu_share=0.97)
    sampled: list[tuple[int, Payload]] = [(0, busy), (1, busy)]
    extra = _gpus(240.0) if device == "cuda" else sampled
    run = Recorded(device=device, recipe=VOCABULARY, extra=extra).write(tmp_path / "run")
    assert answers(read_facts(run))["processors"].answer == "yes"
    kind = extra[0][1].kind

    def forget(event: dict[str, Any]) -> None:
        if event["step"] > 500 and (after == 500 or event["step"] <= after):
            event["kind"] = "of_another_version"

    for rank in (0, 1):
        edit(run, rank, kind, forget)
    found = answers(read_facts(run))
    assert found["processors"].answer == found["throttled"].answer == "cannot tell"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_pause_does_not_lengthen_a_validation(rank: int, tmp_path: Path) -> None:
    run = Recorded(recipe=VOCABULARY).write(tmp_path / "run")
    whole = answers(read_facts(run))
    validated = {"step": 0, "time": 0.0}
    edit(run, 0, "validated", lambda one: validated.update(one) if one["step"] == 4000 else None)

    def later(one: dict[str, Any]) -> None:
        if one["time"] >= validated["time"]:
            one["time"] += 1200.0
            one["mono_s"] += 1200.0
            if one["kind"] == "validated" and one["step"] == 4000:
                one["decode_s"] += 1200.0

    for number in (0, 1):
        for kind in ("validated", "checkpoint_written", "train_interval", "run_finished"):
            edit(run, number, kind, later)
    ranks = read_ranks(run)
    lines = ranks[rank]
    place = next(n for n, line in enumerate(lines) if (line["step"] or 0) > 4000)
    envelope = {key: lines[place][key] for key in ("v", "mono_s", "host", "rank")}
    envelope["mono_s"] += validated["time"] + 1200.0 - lines[place]["time"]
    paused = RankPaused(
        paused_rank=rank,
        seconds_s=1200.0,
        during="validating",
        own=True,
    )
    event = envelope | {"kind": paused.kind, "time": validated["time"] + 1200.0, "step": 4000}
    place = next(n for n, line in enumerate(lines) if line["time"] >= event["time"])
    lines.insert(place, event | as_values(paused))
    write_ranks(run, ranks)
    found = answers(read_facts(run))
    assert found["pauses"].answer == "yes"
    assert found["evaluation"] == whole["evaluation"]
    rows = {row.name: row.text for row in found["duration"].evidence}
    assert (rows["evaluate"], rows["stand still"]) == ("1 min 30 s", "20 min 00 s")
