"""Runs on either side of each limit: a few percent decide, and the answer changes there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dragoman.reporting.checks import examine, judge
from dragoman.reporting.reading import read_facts
from dragoman.reporting.verdict import Verdict
from dragoman.telemetry.events import DeviceMeasured, LinkMeasured, Payload
from example_events import HOST_SAMPLED, NETWORK_SAMPLED, changed
from golden.test_logs_that_fool import edit
from golden_gpu import gpu_sampled
from recorded_runs import Recorded
from well_said import assert_well_said

VOCABULARY = ("corpus.subword.vocab_size=32768",)
CONSTANT = (*VOCABULARY, "schedule.kind=constant", "schedule.warmup_steps=100")
UNIFORM = math.log(32768)
WEIGHTS_BYTES = 4 * 7_420_000
HIDDEN_S = 0.9 * 0.65 * 0.4
"""Nine tenths of the backward pass."""
STEP_S = 0.401
"""Compute and the wait for data; the wait in sums comes on top of it."""
NETWORK = changed(NETWORK_SAMPLED, seconds_s=40.0)


def _judged(folder: Path, run: Recorded) -> dict[str, Verdict]:
    facts = read_facts(run.write(folder))
    found = {one.key: one for one in [*judge(facts), *examine(facts)]}
    for verdict in found.values():
        assert_well_said(verdict)
    return found


def _falls(share: float) -> Callable[[int], float]:
    """A dev loss that ends at 3.0, and of which 10% more steps take this share."""
    slope = 3.0 * share / math.log(1.1)
    return lambda step: 3.0 - slope * math.log(max(step, 100) / 8000)


def _bleu(gain: float) -> Callable[[int], float]:
    """BLEU of 20 at the end, to which 10% more steps add this."""
    return lambda step: 20.0 + gain / math.log(1.1) * math.log(max(step, 100) / 8000)


def _flat(loss: float) -> Callable[[int], float]:
    return lambda step: loss + 1e-5 * math.sin(step) if step else UNIFORM


def _slice_of(share: float) -> Recorded:
    return Recorded(dev_loss=_flat(3.0), train_slice_loss=lambda _step: share * 3.0)


def _losses(*values: float) -> Callable[[int], float]:
    return lambda step: values[step // 1000 - 1] if step else UNIFORM


def _wait(share: float) -> float:
    """Seconds of waiting in sums that are this share of a step."""
    return share * STEP_S / (1 - share)


def _link(bytes_per_s: float) -> tuple[int, Payload]:
    measured = LinkMeasured(
        interface="eth0", peer="host-b", bytes_per_s=bytes_per_s, latency_s=3e-4, method="test"
    )
    return 0, measured


def _bound(share: float) -> Recorded:
    """The bytes of a step explain a wait of this share of it."""
    wait_s = _wait(share)
    return Recorded(sync_s=(wait_s,) * 2, extra=[_link(WEIGHTS_BYTES / (wait_s + HIDDEN_S))])


def _explained_but(share: float) -> Recorded:
    """The bytes explain all but this share of the step, half of which is waiting in sums."""
    step_s, wait_s = 2 * STEP_S, STEP_S
    rate = WEIGHTS_BYTES / (wait_s - share * step_s)
    return Recorded(sync_s=(wait_s,) * 2, extra=[_link(rate)])


def _transfers_of(share: float) -> Recorded:
    """Bytes that take this share of the step."""
    return Recorded(sync_s=(STEP_S,) * 2, extra=[_link(WEIGHTS_BYTES / (share * 2 * STEP_S))])


def _hosts(cpu: float, others: float) -> Recorded:
    sampled = changed(HOST_SAMPLED, cpu_share=cpu, others_cpu_share=others)
    return Recorded(extra=[(0, sampled), (1, sampled)])


def _gpus(power_w: float) -> Recorded:
    return Recorded(device="cuda", extra=[(rank, gpu_sampled(power_w)) for rank in (0, 1)])


def _useful(share: float, **changes: Any) -> Recorded:
    """Devices of whose matrix rate the run uses this share; at 3e11 FLOP/s it uses 44.025%."""
    rate = DeviceMeasured(
        device="cuda", matrix_flop_per_s=3e11 * 0.44025 / share, alone_tokens_per_s=None, method=""
    )
    extra: list[tuple[int, Payload]] = [(0, rate), (1, rate)]
    return Recorded(device="cuda", recipe=VOCABULARY, extra=extra, **changes)


def _validated_for(share: float) -> float:
    """Seconds of each of nine validations that are this share of 8,000 steps and them."""
    return share / (1 - share) * 8000 * (STEP_S + 0.01) / 9


def _checkpoint_of_disk(share: float) -> Recorded:
    free = round(89_040_000 / share)
    return Recorded(extra=[(0, changed(HOST_SAMPLED, disk_free_bytes=free))])


def _creeps(share: float) -> Recorded:
    """Memory that grows evenly after the first quarter of the run."""
    return Recorded(
        peak_memory_bytes=lambda step: round(1e9 * (1 + share * max(step - 2000, 0) / 6000))
    )


# what is near its limit -> (verdict, run, answer, run on the other side, answer)
LIMITS: dict[str, tuple[str, Recorded, str, Recorded, str]] = {
    "the fall of the dev loss by 10% more steps, 0.3%": (
        "trained",
        Recorded(dev_loss=_falls(0.0028), recipe=VOCABULARY),
        "yes",
        Recorded(dev_loss=_falls(0.0032), recipe=VOCABULARY),
        "no",
    ),
    "the rise of BLEU by 10% more steps, 0.1": (
        "trained",
        Recorded(dev_loss=_flat(2.0), bleu=_bleu(0.09), recipe=VOCABULARY),
        "yes",
        Recorded(dev_loss=_flat(2.0), bleu=_bleu(0.11), recipe=VOCABULARY),
        "cannot tell",
    ),
    "the fall of BLEU by 10% more steps, 0.1": (
        "trained",
        Recorded(dev_loss=_flat(2.0), bleu=_bleu(-0.09), recipe=VOCABULARY),
        "yes",
        Recorded(dev_loss=_flat(2.0), bleu=_bleu(-0.11), recipe=VOCABULARY),
        "cannot tell",
    ),
    "the number of validations, four": (
        "trained",
        Recorded(validate_every=2600, dev_loss=_flat(2.0), recipe=VOCABULARY),
        "cannot tell",
        Recorded(validate_every=2000, dev_loss=_flat(2.0), recipe=VOCABULARY),
        "yes",
    ),
    "the number of validations, four, for the training slice": (
        "overfitting",
        Recorded(validate_every=2600),
        "cannot tell",
        Recorded(validate_every=2000),
        "no",
    ),
    "the rise of the last two dev losses, 1%": (
        "overfitting",
        Recorded(
            dev_loss=_losses(2.6, 2.3, 2.1, 2.0, 2.005, 2.01, 2.0185, 2.019),
            train_slice_loss=lambda step: 2.0 - step / 1e5,
        ),
        "no",
        Recorded(
            dev_loss=_losses(2.6, 2.3, 2.1, 2.0, 2.005, 2.01, 2.0205, 2.03),
            train_slice_loss=lambda step: 2.0 - step / 1e5,
        ),
        "yes",
    ),
    "the dev loss of a model that has learnt nothing, 90% of a uniform prediction's": (
        "rate_too_low",
        Recorded(
            dev_loss=_flat(0.89 * UNIFORM),
            train_slice_loss=lambda _step: 0.95 * UNIFORM,
            recipe=VOCABULARY,
        ),
        "no",
        Recorded(
            dev_loss=_flat(0.91 * UNIFORM),
            train_slice_loss=lambda _step: 0.95 * UNIFORM,
            recipe=VOCABULARY,
        ),
        "yes",
    ),
    "the loss on training text of a model that has learnt nothing, 90%": (
        "rate_too_low",
        Recorded(
            dev_loss=_flat(0.99 * UNIFORM),
            train_slice_loss=lambda _step: 0.89 * UNIFORM,
            recipe=VOCABULARY,
        ),
        "no",
        Recorded(
            dev_loss=_flat(0.99 * UNIFORM),
            train_slice_loss=lambda _step: 0.91 * UNIFORM,
            recipe=VOCABULARY,
        ),
        "yes",
    ),
    "learnt nothing, although BLEU is good": (
        "trained",
        Recorded(dev_loss=_flat(0.89 * UNIFORM), recipe=VOCABULARY),
        "yes",
        Recorded(dev_loss=_flat(0.91 * UNIFORM), recipe=VOCABULARY),
        "no",
    ),
    "the frequencies of pieces, 60%, with a BLEU that may be chance": (
        "trained",
        Recorded(dev_loss=_flat(0.59 * UNIFORM), bleu=lambda _step: 2.0, recipe=VOCABULARY),
        "cannot tell",
        Recorded(dev_loss=_flat(0.61 * UNIFORM), bleu=lambda _step: 2.0, recipe=VOCABULARY),
        "no",
    ),
    "the source is needed, 35%, and there is no BLEU": (
        "trained",
        Recorded(dev_loss=_flat(0.34 * UNIFORM), bleu=lambda _step: None, recipe=VOCABULARY),
        "yes",
        Recorded(dev_loss=_flat(0.36 * UNIFORM), bleu=lambda _step: None, recipe=VOCABULARY),
        "cannot tell",
    ),
    "the lower end of BLEU's interval, 5": (
        "trained",
        Recorded(dev_loss=_flat(2.0), bleu=lambda _step: 5.9, recipe=VOCABULARY),
        "cannot tell",
        Recorded(dev_loss=_flat(2.0), bleu=lambda _step: 6.1, recipe=VOCABULARY),
        "yes",
    ),
    "training text by heart, 50% of the dev loss": (
        "overfitting",
        _slice_of(0.51),
        "cannot tell",
        _slice_of(0.49),
        "yes",
    ),
    "a loss on training text that is close, 80%": (
        "overfitting",
        _slice_of(0.79),
        "cannot tell",
        _slice_of(0.81),
        "no",
    ),
    "BLEU that is surely lost, 20%": (
        "translations_worse",
        Recorded(bleu=lambda step: 30.0 if step <= 4000 else 0.81 * 29 - 1),
        "no",
        Recorded(bleu=lambda step: 30.0 if step <= 4000 else 0.79 * 29 - 1),
        "yes",
    ),
    "the dev loss of a trained model that it began with, 1%": (
        "trained",
        Recorded(
            dev_loss=lambda step: 2.018 + 1e-5 * math.sin(step) if step else 2.0, recipe=CONSTANT
        ),
        "yes",
        Recorded(
            dev_loss=lambda step: 2.022 + 1e-5 * math.sin(step) if step else 2.0, recipe=CONSTANT
        ),
        "no",
    ),
    "the intervals of BLEU at the start and now": (
        "trained",
        Recorded(
            dev_loss=lambda step: 2.0 + 1e-5 * math.sin(step),
            bleu=lambda step: 33.1 if step else 35.0,
            recipe=CONSTANT,
        ),
        "yes",
        Recorded(
            dev_loss=lambda step: 2.0 + 1e-5 * math.sin(step),
            bleu=lambda step: 32.9 if step else 35.0,
            recipe=CONSTANT,
        ),
        "no",
    ),
    "a learning rate that will still halve": (
        "trained",
        Recorded(
            steps=3500,
            validate_every=500,
            reason="signal",
            dev_loss=_flat(2.0),
            recipe=(*VOCABULARY, "schedule.kind=linear", "schedule.final_ratio=0.4"),
        ),
        "yes",
        Recorded(
            steps=2250,
            validate_every=250,
            reason="signal",
            dev_loss=_flat(2.0),
            recipe=(*VOCABULARY, "schedule.kind=linear", "schedule.final_ratio=0.4"),
        ),
        "cannot tell",
    ),
    "a learning rate that will still rise by a tenth": (
        "trained",
        Recorded(
            steps=3750,
            validate_every=250,
            log_every=50,
            reason="signal",
            dev_loss=_flat(2.0),
            recipe=(*VOCABULARY, "schedule.kind=constant", "schedule.warmup_steps=4000"),
        ),
        "yes",
        Recorded(
            steps=3500,
            validate_every=250,
            log_every=50,
            reason="signal",
            dev_loss=_flat(2.0),
            recipe=(*VOCABULARY, "schedule.kind=constant", "schedule.warmup_steps=4000"),
        ),
        "cannot tell",
    ),
    "skipped steps, half of them": (
        "trained",
        Recorded(dev_loss=_flat(2.0), interval_changes={"skipped_steps": 50}, recipe=VOCABULARY),
        "yes",
        Recorded(dev_loss=_flat(2.0), interval_changes={"skipped_steps": 51}, recipe=VOCABULARY),
        "cannot tell",
    ),
    "the training loss after the last validation, 1.2 times": (
        "trained",
        Recorded(
            steps=8900,
            max_steps=9000,
            reason="signal",
            dev_loss=_flat(2.0),
            train_loss=lambda step: 2.0 if step <= 8000 else 2.4,
            recipe=CONSTANT,
        ),
        "yes",
        Recorded(
            steps=8900,
            max_steps=9000,
            reason="signal",
            dev_loss=_flat(2.0),
            train_loss=lambda step: 2.0 if step <= 8000 else 2.401,
            recipe=CONSTANT,
        ),
        "cannot tell",
    ),
    "the number of loss spikes, three": (
        "rate_too_high",
        Recorded(train_loss=lambda step: 12.0 if step in (3000, 5000) else 2.0, recipe=VOCABULARY),
        "no",
        Recorded(
            train_loss=lambda step: 12.0 if step in (3000, 5000, 7000) else 2.0, recipe=VOCABULARY
        ),
        "yes",
    ),
    "the number of loss spikes that may be of the text, three": (
        "rate_too_high",
        Recorded(train_loss=lambda step: 3.0 if step in (3000, 5000) else 2.0, recipe=VOCABULARY),
        "no",
        Recorded(
            train_loss=lambda step: 3.0 if step in (3000, 5000, 7000) else 2.0, recipe=VOCABULARY
        ),
        "cannot tell",
    ),
    "the number of training losses after the warm-up, ten": (
        "rate_too_high",
        Recorded(
            steps=2000,
            train_loss=lambda _step: 2.0,
            recipe=(*VOCABULARY, "schedule.warmup_steps=1100"),
        ),
        "cannot tell",
        Recorded(
            steps=2000,
            train_loss=lambda _step: 2.0,
            recipe=(*VOCABULARY, "schedule.warmup_steps=1000"),
        ),
        "no",
    ),
    "the height of loss spikes, 1.2 times": (
        "rate_too_high",
        Recorded(train_loss=lambda step: 2.4 if step % 1000 == 0 else 2.0),
        "no",
        Recorded(train_loss=lambda step: 2.401 if step % 1000 == 0 else 2.0),
        "cannot tell",
    ),
    "the part of the schedule after which it must have learnt, a fifth": (
        "rate_too_low",
        Recorded(
            steps=1900,
            max_steps=10_000,
            reason="signal",
            dev_loss=_flat(0.95 * UNIFORM),
            train_slice_loss=lambda _step: None,
            recipe=VOCABULARY,
        ),
        "cannot tell",
        Recorded(
            steps=2000,
            max_steps=10_000,
            reason="signal",
            dev_loss=_flat(0.95 * UNIFORM),
            train_slice_loss=lambda _step: None,
            recipe=VOCABULARY,
        ),
        "yes",
    ),
    "the schedule that is left on a plateau, a tenth": (
        "plateau",
        Recorded(steps=9100, max_steps=10_000, reason=None, dev_loss=_flat(2.0), recipe=CONSTANT),
        "no",
        Recorded(steps=9000, max_steps=10_000, reason=None, dev_loss=_flat(2.0), recipe=CONSTANT),
        "yes",
    ),
    "the wait for data, 10% of a step": (
        "starved",
        Recorded(data_wait_s=0.099 * 0.41 / 0.901),
        "no",
        Recorded(data_wait_s=0.101 * 0.41 / 0.899),
        "yes",
    ),
    "the number of intervals that show a straggler, three": (
        "straggler",
        Recorded(steps=200),
        "cannot tell",
        Recorded(steps=300),
        "no",
    ),
    "the compute of a straggler, 1.25 times": (
        "straggler",
        Recorded(compute_s=(0.4, 0.499)),
        "no",
        Recorded(compute_s=(0.4, 0.5)),
        "yes",
    ),
    "the checkpoint on a full disk, 30% of what is free": (
        "disk",
        _checkpoint_of_disk(0.29),
        "no",
        _checkpoint_of_disk(0.31),
        "yes",
    ),
    "the growth of memory, 20%": ("memory_creep", _creeps(0.19), "no", _creeps(0.21), "yes"),
    "padding, 20%": (
        "padding",
        Recorded(padding_share=0.19),
        "no",
        Recorded(padding_share=0.21),
        "yes",
    ),
    "validation, 20% of the time": (
        "evaluation",
        Recorded(validation_s=_validated_for(0.19)),
        "no",
        Recorded(validation_s=_validated_for(0.21)),
        "yes",
    ),
    "compute, 90% of a step": (
        "processors",
        replace(_hosts(0.97, 0.02), sync_s=(0.4 / 0.91 - STEP_S,) * 2),
        "yes",
        replace(_hosts(0.97, 0.02), sync_s=(0.4 / 0.89 - STEP_S,) * 2),
        "no",
    ),
    "busy processors, 90%": ("processors", _hosts(0.91, 0.02), "yes", _hosts(0.89, 0.02), "no"),
    "other programs, 10% of the processors": (
        "processors",
        _hosts(0.97, 0.09),
        "yes",
        _hosts(0.97, 0.11),
        "no",
    ),
    "a GPU that waits, half of its power": (
        "processors",
        _gpus(126.0),
        "cannot tell",
        _gpus(124.0),
        "no",
    ),
    "a GPU that is full, 90% of its power": (
        "processors",
        _gpus(225.0),
        "yes",
        _gpus(224.0),
        "cannot tell",
    ),
    "useful FLOPs, 30% of the matrix rate": (
        "processors",
        _useful(0.31),
        "yes",
        _useful(0.29),
        "no",
    ),
    "useful FLOPs, more than possible": (
        "processors",
        _useful(0.99),
        "yes",
        _useful(1.01),
        "cannot tell",
    ),
    "time outside steps, a tenth of the run": (
        "processors",
        _useful(0.5, validation_s=_validated_for(0.09) - 0.5),
        "yes",
        _useful(0.5, validation_s=_validated_for(0.11) - 0.5),
        "cannot tell",
    ),
    "exposed communication that the bytes explain, 20% of a step": (
        "network",
        _bound(0.19),
        "no",
        _bound(0.21),
        "yes",
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_an_answer_changes_at_its_limit(name: str, tmp_path: Path) -> None:
    key, run, answer, other_run, other_answer = LIMITS[name]
    one, other = _judged(tmp_path / "one", run)[key], _judged(tmp_path / "other", other_run)[key]
    assert (one.answer, other.answer) == (answer, other_answer), f"{one.says} / {other.says}"
    assert one.thresholds == other.thresholds != ()


@pytest.mark.parametrize(
    ("run", "other", "word"),
    [
        (_explained_but(0.09), _explained_but(0.11), "do not explain"),
        (_transfers_of(1.24), _transfers_of(1.26), "carried more"),
    ],
)
def test_what_transfers_do_not_explain_needs_another_cause(
    run: Recorded, other: Recorded, word: str, tmp_path: Path
) -> None:
    assert _judged(tmp_path / "one", run)["network_fit"].remedy == ""
    assert word in _judged(tmp_path / "other", other)["network_fit"].remedy


@pytest.mark.parametrize(("share", "answer"), [(0.49, "cannot tell"), (0.51, "yes")])
def test_a_link_is_blamed_if_its_bytes_take_half_of_the_wait(
    share: float, answer: str, tmp_path: Path
) -> None:
    """The other half is hidden, or for what the sums themselves need."""
    wait_s = _wait(0.5)
    run = Recorded(sync_s=(wait_s,) * 2, extra=[_link(WEIGHTS_BYTES / (share * wait_s))])
    assert _judged(tmp_path / "run", run)["network"].answer == answer


@pytest.mark.parametrize(("wait_s", "named"), [(0.009, False), (0.011, True)])
def test_a_wait_of_two_percent_of_a_step_has_a_remedy(
    wait_s: float, named: bool, tmp_path: Path
) -> None:
    """A fifth of each step of 0.5 s is none of its phases."""
    run = Recorded(sync_s=(wait_s,) * 2, interval_changes={"interval_s": 50.0})
    found = _judged(tmp_path / "run", run)["processors"]
    assert found.answer == "no"
    assert bool(found.remedy) is named


@pytest.mark.parametrize(("samples", "answer"), [(3, "no"), (4, "yes")])
def test_a_lowered_clock_counts_from_a_twentieth_of_the_samples(
    samples: int, answer: str, tmp_path: Path
) -> None:
    run = replace(_gpus(240.0), recipe=VOCABULARY).write(tmp_path / "run")

    def lower(event: dict[str, Any]) -> None:
        if event["step"] <= 100 * samples:
            event |= {"throttle_reasons": "thermal", "throttled_share": 1.0}

    edit(run, 1, "gpu_sampled", lower)
    facts = read_facts(run)
    found = {one.key: one for one in [*judge(facts), *examine(facts)]}
    assert found["throttled"].answer == answer
    assert (found["processors"].answer == "no") is (answer == "yes")


@pytest.mark.parametrize(("share", "answer"), [(0.01, "no"), (0.06, "yes")])
def test_a_moment_with_a_lowered_clock_in_each_sample_is_not_all_of_the_time(
    share: float, answer: str, tmp_path: Path
) -> None:
    run = replace(_gpus(240.0), recipe=VOCABULARY).write(tmp_path / "run")

    def lower(event: dict[str, Any]) -> None:
        event |= {"throttle_reasons": "thermal", "throttled_share": share}

    edit(run, 1, "gpu_sampled", lower)
    found = {one.key: one for one in examine(read_facts(run))}
    assert found["throttled"].answer == answer


@pytest.mark.parametrize(("last", "answer"), [(8000, "yes"), (7000, "cannot tell")])
def test_a_dev_loss_is_too_old_after_two_usual_distances(
    last: int, answer: str, tmp_path: Path
) -> None:
    """One step more than two distances is too many."""
    run = Recorded(steps=10_000, max_steps=10_000, dev_loss=_flat(2.0), recipe=CONSTANT).write(
        tmp_path / "run"
    )

    def forget(event: dict[str, Any]) -> None:
        if event["step"] > last:
            event["kind"] = "of_another_version"

    edit(run, 0, "validated", forget)
    facts = read_facts(run)
    found = {one.key: one for one in judge(facts)}
    assert found["trained"].answer == answer, found["trained"].says


@pytest.mark.parametrize(("errors", "answer"), [(0, "no"), (1, "yes")])
def test_one_error_of_an_interface_is_a_fault(errors: int, answer: str, tmp_path: Path) -> None:
    extra: list[tuple[int, Payload]] = [(0, NETWORK), (1, NETWORK)]
    run = Recorded(extra=extra).write(tmp_path / "run")

    def fail(event: dict[str, Any]) -> None:
        event["errors"] = errors * (event["step"] == 4000)

    edit(run, 1, NETWORK.kind, fail)
    facts = read_facts(run)
    found = {one.key: one for one in examine(facts)}
    assert found["network_faults"].answer == answer
