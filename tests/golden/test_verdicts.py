"""Labelled runs: every verdict is right, none is guessed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dragoman.reporting import measures
from dragoman.reporting.checks import examine, judge
from dragoman.reporting.reading import read_facts
from dragoman.telemetry.events import DeviceMeasured, LinkMeasured, Payload
from example_events import HOST_SAMPLED, changed
from golden_gpu import gpu_sampled
from recorded_runs import Recorded
from well_said import assert_well_said


def _link(bytes_per_s: float) -> Payload:
    return LinkMeasured(
        interface="eth0", peer="host-b", bytes_per_s=bytes_per_s, latency_s=3e-4, method="test"
    )


def _wire_s(bytes_per_s: float) -> float:
    """How much longer gradients make a step, if 90% of the backward pass hides transfers."""
    return max(4 * 7_420_000 / bytes_per_s - 0.9 * 0.65 * 0.4, 0.0)


def _power_law(step: int) -> float:
    return 1.4 + 30 * max(step, 1) ** -0.5 if step else 9.4


def _turned(step: int) -> float:
    return 2.0 + 0.3 * abs(math.log(max(step, 1) / 3000))


def _noise(step: int) -> float:
    return 1.5 + 0.05 * math.sin(step * 1.7) if step else 9.4


def _frequencies(step: int) -> float:
    return 7.4 + 3 * math.exp(-step / 300) + 1e-4 * math.sin(step)


_BUSY = changed(HOST_SAMPLED, cpu_share=0.97, others_cpu_share=0.02)
_BUSY_HOSTS: list[tuple[int, Payload]] = [(0, _BUSY), (1, _BUSY)]
_VOCABULARY = ("corpus.subword.vocab_size=32768",)
"""A uniform prediction has a loss of 10.4."""
_STUDENT = (
    'corpus.train=[{tsv="synthetic.tsv", translated="target"}]',
    'corpus.valid=[{source="dev.en", target="dev.de"}]',
)


# name -> (the run, what must be answered)
RUNS: dict[str, tuple[Recorded, dict[str, str]]] = {
    "healthy and trained": (
        Recorded(extra=_BUSY_HOSTS, recipe=_VOCABULARY),
        {
            "trained": "yes",
            "overfitting": "no",
            "network": "no",
            "processors": "yes",
            "step_time": "measured",
            "duration": "measured",
            "diverged": "no",
            "starved": "no",
            "straggler": "no",
            "padding": "no",
            "evaluation": "no",
            "memory_creep": "no",
            "rate_too_high": "no",
            "rate_too_low": "no",
            "plateau": "no",
            "throttled": "cannot tell",
            "cost": "cannot tell",
            "corpus": "cannot tell",
            "learning_rate": "measured",
        },
    ),
    "still improving": (Recorded(dev_loss=_power_law), {"trained": "no", "overfitting": "no"}),
    "still improving, stopped half-way": (
        Recorded(dev_loss=_power_law, steps=4000, reason="signal"),
        {"trained": "no", "plateau": "no", "duration": "measured"},
    ),
    "noisy": (
        Recorded(dev_loss=_noise, bleu=lambda _step: 20.0),
        {"trained": "cannot tell", "overfitting": "cannot tell"},
    ),
    "flat loss, BLEU still rising": (
        Recorded(bleu=lambda step: 8 * math.log(step + 1)),
        {"trained": "cannot tell"},
    ),
    "plateau": (
        Recorded(steps=8000, max_steps=100_000, reason=None),
        {"trained": "yes", "plateau": "yes"},
    ),
    "too short": (
        Recorded(steps=2000),
        {"trained": "cannot tell", "overfitting": "cannot tell", "plateau": "cannot tell"},
    ),
    "overfitting": (
        Recorded(dev_loss=_turned, train_slice_loss=lambda step: 2 - step / 10_000),
        {"trained": "yes", "overfitting": "yes", "plateau": "no"},
    ),
    "both losses rise": (
        Recorded(dev_loss=_turned, train_slice_loss=_turned),
        {"overfitting": "no"},
    ),
    "training slice not measured": (
        Recorded(train_slice_loss=lambda _step: None),
        {"trained": "yes", "overfitting": "cannot tell"},
    ),
    "diverged": (
        Recorded(steps=3000, reason="diverged", train_loss=lambda step: 2 + step / 500),
        {"trained": "no", "diverged": "yes", "rate_too_high": "yes"},
    ),
    "learning rate too low": (
        Recorded(
            dev_loss=lambda step: 10.4 - step / 10_000,
            train_loss=lambda _s: 10.3,
            train_slice_loss=lambda _s: 10.3,
            recipe=_VOCABULARY,
        ),
        {"rate_too_low": "yes", "trained": "no"},
    ),
    "nothing learnt, and flat": (
        Recorded(
            dev_loss=lambda _step: 10.4,
            train_slice_loss=lambda _s: 10.4,
            train_loss=lambda _s: 10.4,
            recipe=_VOCABULARY,
        ),
        {"rate_too_low": "yes", "trained": "no", "plateau": "no"},
    ),
    "nothing learnt, flat, and not validated at the start": (
        Recorded(
            dev_loss=lambda step: 10.4 + 1e-4 * math.sin(step),
            train_loss=lambda _s: 10.4,
            train_slice_loss=lambda _s: 10.4,
            validate_at_start=False,
            recipe=_VOCABULARY,
        ),
        {"rate_too_low": "yes", "trained": "no", "plateau": "no"},
    ),
    "flat, and nobody knows the vocabulary": (
        Recorded(dev_loss=lambda step: 10.4 + 1e-4 * math.sin(step), validate_at_start=False),
        {"rate_too_low": "cannot tell", "trained": "cannot tell", "plateau": "cannot tell"},
    ),
    "learnt the frequencies of pieces alone": (
        Recorded(dev_loss=_frequencies, bleu=lambda _step: 0.2, recipe=_VOCABULARY),
        {"rate_too_low": "no", "trained": "no", "plateau": "cannot tell"},
    ),
    "weights that never change": (
        Recorded(dev_loss=lambda _step: 1.5, train_slice_loss=lambda _s: 1.4, recipe=_VOCABULARY),
        {"trained": "cannot tell"},
    ),
    "fine-tuned: step 0 was a trained model": (
        Recorded(
            dev_loss=lambda step: 1.95 + 0.05 * math.exp(-step / 500),
            train_slice_loss=lambda step: 1.8 + 0.05 * math.exp(-step / 500),
            train_loss=lambda step: 2.1,
            bleu=lambda _step: 33.0,
            recipe=_VOCABULARY,
        ),
        {"trained": "yes", "rate_too_low": "no", "overfitting": "no"},
    ),
    "fine-tuned, its recipe lost": (
        Recorded(
            dev_loss=lambda step: 1.95 + 0.05 * math.exp(-step / 500),
            train_loss=lambda step: 2.1,
        ),
        {"trained": "cannot tell", "rate_too_low": "cannot tell"},
    ),
    "training and dev loss both rise": (
        Recorded(dev_loss=_turned, train_slice_loss=_turned, train_loss=_turned),
        {"trained": "no", "overfitting": "no", "plateau": "no"},
    ),
    "both rise, training text only as it is trained on": (
        Recorded(dev_loss=_turned, train_slice_loss=lambda _step: None, train_loss=_turned),
        {"trained": "no", "overfitting": "cannot tell"},
    ),
    "dev loss rises, and nothing tells of training text": (
        Recorded(
            dev_loss=_turned, train_slice_loss=lambda _step: None, train_loss=lambda _step: None
        ),
        {"trained": "yes", "overfitting": "cannot tell"},
    ),
    "dev loss rises, and the loss in training moves by chance": (
        Recorded(
            dev_loss=_turned,
            train_slice_loss=lambda _step: None,
            train_loss=lambda step: 2.0 + 0.1 * math.sin(step**2),
        ),
        {"trained": "yes", "overfitting": "cannot tell"},
    ),
    "dev loss rises by 3%, training text falls": (
        Recorded(
            dev_loss=lambda step: 2.0 + 6 * math.exp(-step / 500) + step * 1e-5,
            train_slice_loss=lambda step: 2 - step / 50_000,
        ),
        {"trained": "yes", "overfitting": "yes"},
    ),
    "dev loss creeps up after its best": (
        Recorded(dev_loss=lambda step: 2.0 + 0.08 * max(step - 6000, 0) / 5000 if step else 9.4),
        {"trained": "cannot tell", "plateau": "cannot tell"},
    ),
    "training text learnt by heart, the dev loss high and flat": (
        Recorded(
            dev_loss=lambda step: 3.0 + 6 * math.exp(-step / 300),
            train_slice_loss=lambda step: 0.05 + 6 * math.exp(-step / 300),
        ),
        {"overfitting": "yes"},
    ),
    "a student that learns from a teacher's translations, which are easier than the dev text": (
        Recorded(
            dev_loss=lambda step: 3.0 + 6 * math.exp(-step / 300),
            train_slice_loss=lambda step: 0.9 + 6 * math.exp(-step / 300),
            recipe=_STUDENT,
        ),
        {"overfitting": "no"},
    ),
    "a student whose dev loss rises while it learns its teacher's text better and better": (
        Recorded(
            dev_loss=_turned, train_slice_loss=lambda step: 0.9 - step / 50_000, recipe=_STUDENT
        ),
        {"overfitting": "yes"},
    ),
    "training text by heart while both rise": (
        Recorded(dev_loss=_turned, train_slice_loss=lambda step: 0.05 + step * 1e-6),
        {"overfitting": "yes", "trained": "no"},
    ),
    "training text by heart, and nothing learnt for other text": (
        Recorded(
            dev_loss=lambda step: 10.4 + 1e-4 * math.sin(step),
            train_slice_loss=lambda step: 0.05 + 10 * math.exp(-step / 300),
            recipe=_VOCABULARY,
        ),
        {"overfitting": "yes", "trained": "no", "rate_too_low": "no"},
    ),
    "a gap that may be one of domains": (
        Recorded(
            dev_loss=lambda step: 3.0 + 6 * math.exp(-step / 300),
            train_slice_loss=lambda step: 1.9 + 6 * math.exp(-step / 300),
        ),
        {"overfitting": "cannot tell", "trained": "yes"},
    ),
    "loss spikes": (
        Recorded(
            train_loss=lambda step: 12.0 if step % 1000 == 0 else 2.0,
            recipe=("corpus.subword.vocab_size=32768",),
        ),
        {"rate_too_high": "yes", "diverged": "no"},
    ),
    "loss spikes that may be of the text": (
        Recorded(train_loss=lambda step: 3.0 if step % 1000 == 0 else 2.0),
        {"rate_too_high": "cannot tell", "diverged": "no"},
    ),
    "noisy training loss": (
        Recorded(train_loss=lambda step: 2.0 + 0.35 * math.sin(step**2)),
        {"rate_too_high": "no", "diverged": "no"},
    ),
    "network-bound at 100 Mbit/s": (
        Recorded(sync_s=(_wire_s(12e6),) * 2, extra=[(0, _link(12e6))]),
        {"network": "yes", "processors": "no", "network_fit": "measured", "starved": "no"},
    ),
    "network-bound at 60 MB/s": (
        Recorded(sync_s=(_wire_s(60e6),) * 2, extra=[(0, _link(60e6))]),
        {"network": "yes", "processors": "no", "network_fit": "measured"},
    ),
    "the link known, and a part of compute not measured": (
        Recorded(sync_s=(0.3, 0.3), extra=[(0, _link(60e6))], interval_changes={"forward_s": None}),
        {"network": "yes", "processors": "cannot tell", "network_fit": "measured"},
    ),
    "network-bound at 10 Mbit/s": (
        Recorded(sync_s=(_wire_s(1.2e6),) * 2, extra=[(0, _link(1.2e6))]),
        {"network": "yes", "network_fit": "measured", "processors": "no"},
    ),
    "how late ranks are was not measured, nor the link": (
        Recorded(sync_s=(0.3, 0.3), interval_changes={"wire_s": None}),
        {"network": "cannot tell", "network_fit": "cannot tell"},
    ),
    "network-bound, capacity unknown": (
        Recorded(sync_s=(0.3, 0.3)),
        {"network": "yes", "network_fit": "cannot tell"},
    ),
    "ranks late in turn, within each interval, on a link of 10 GB/s": (
        Recorded(sync_s=(0.3, 0.3), late_in_turn_s=0.29, extra=[(0, _link(10e9))]),
        {"network": "no", "network_fit": "measured", "straggler": "no"},
    ),
    "ranks late in turn, and a link that was measured at less than the run sent": (
        Recorded(sync_s=(0.3, 0.3), late_in_turn_s=0.29, extra=[(0, _link(1e6))]),
        {"network": "no", "network_fit": "cannot tell"},
    ),
    "one interval alone": (
        Recorded(steps=100, sync_s=(1.1, 1.1), extra=[(0, _link(12e6))]),
        {"network": "cannot tell"},
    ),
    "two hosts of one name": (
        Recorded(sync_s=(_wire_s(12e6),) * 2, extra=[(0, _link(12e6))]),
        {"network": "yes", "network_fit": "measured"},
    ),
    "network hidden behind compute": (
        Recorded(sync_s=(0.002, 0.002), extra=[(0, _link(1e9)), *_BUSY_HOSTS]),
        {"network": "no", "processors": "yes", "network_fit": "measured"},
    ),
    "one process": (
        Recorded(world_size=1, compute_s=(0.4,), sync_s=(0.0,)),
        {"network": "no", "network_fit": "measured", "straggler": "no"},
    ),
    "two ranks of one host that wait for each other": (
        Recorded(one_host=True, sync_s=(0.3, 0.3)),
        {"network": "no", "network_fit": "measured", "processors": "no"},
    ),
    "straggler, not the network": (
        Recorded(compute_s=(0.4, 0.8), sync_s=(0.41, 0.01)),
        {"straggler": "yes", "network": "no"},
    ),
    "data-starved": (
        Recorded(data_wait_s=0.4),
        {"starved": "yes", "processors": "no", "network": "no"},
    ),
    "padding waste": (Recorded(padding_share=0.46), {"padding": "yes"}),
    "evaluated too often": (
        Recorded(validate_every=100, validation_s=30),
        {"evaluation": "yes"},
    ),
    "memory creeps": (
        Recorded(peak_memory_bytes=lambda step: 10**9 + step * 200_000),
        {"memory_creep": "yes"},
    ),
    "memory jumps once, late": (
        Recorded(peak_memory_bytes=lambda step: 10**9 + (step > 5000) * 6 * 10**8),
        {"memory_creep": "no"},
    ),
    "memory grows with the longest batch so far": (
        Recorded(peak_memory_bytes=lambda step: int(10**9 * (1 + math.log(step) / 10))),
        {"memory_creep": "no"},
    ),
    "half of the processors are others'": (
        Recorded(extra=[(0, changed(HOST_SAMPLED, cpu_share=0.99, others_cpu_share=0.5))]),
        {"processors": "no", "network": "no"},
    ),
    "others use processors that are left over": (
        Recorded(extra=[(0, changed(HOST_SAMPLED, cpu_share=0.6, others_cpu_share=0.5))]),
        {"processors": "no"},
    ),
    "in the middle of compute, and 7% of the processors busy": (
        Recorded(
            extra=[(0, _BUSY), (1, changed(HOST_SAMPLED, cpu_share=0.07, others_cpu_share=0.01))]
        ),
        {"processors": "no"},
    ),
    "processors of one host not sampled": (
        Recorded(extra=[(0, _BUSY)]),
        {"processors": "cannot tell"},
    ),
    "processors busy, nobody knows for whom": (
        Recorded(extra=[(rank, changed(_BUSY, others_cpu_share=None)) for rank in (0, 1)]),
        {"processors": "cannot tell"},
    ),
    "one rank of two waits for the other": (
        Recorded(compute_s=(0.4, 0.36), sync_s=(0.0, 0.04), extra=_BUSY_HOSTS),
        {"processors": "no"},
    ),
    "GPU at half of its power": (
        Recorded(device="cuda", extra=[(0, gpu_sampled(128)), (1, gpu_sampled(128))]),
        {"processors": "cannot tell", "network": "no"},
    ),
    "one GPU at full power, the other idle": (
        Recorded(device="cuda", extra=[(0, gpu_sampled(245)), (1, gpu_sampled(40))]),
        {"processors": "no"},
    ),
    "one GPU at full power, the other not sampled": (
        Recorded(device="cuda", extra=[(0, gpu_sampled(245))]),
        {"processors": "cannot tell"},
    ),
    "GPU busy-waiting at 100% and 43 W": (
        Recorded(
            sync_s=(1.1, 1.1), device="cuda", extra=[(0, gpu_sampled(43)), (1, gpu_sampled(43))]
        ),
        {"processors": "no", "network": "yes", "throttled": "no"},
    ),
    "GPU busy at full power": (
        Recorded(device="cuda", extra=[(0, gpu_sampled(231)), (1, gpu_sampled(228))]),
        {"processors": "yes", "network": "no"},
    ),
    "GPU busy, power unknown": (
        Recorded(device="cuda", extra=[(0, gpu_sampled(None))]),
        {"processors": "cannot tell"},
    ),
    "GPU throttled": (
        Recorded(device="cuda", extra=[(0, gpu_sampled(180, throttle="thermal"))]),
        {"throttled": "yes", "processors": "no"},
    ),
    "GPU at full power, with a lowered clock": (
        Recorded(
            device="cuda",
            extra=[(0, gpu_sampled(240, throttle="thermal")), (1, gpu_sampled(240))],
        ),
        {"throttled": "yes", "processors": "no"},
    ),
    "the frequencies of the pieces, and no BLEU": (
        Recorded(dev_loss=_frequencies, bleu=lambda _step: None, recipe=_VOCABULARY),
        {"trained": "cannot tell", "plateau": "cannot tell"},
    ),
    "healthy, and no BLEU": (
        Recorded(bleu=lambda _step: None, recipe=_VOCABULARY),
        {"trained": "yes"},
    ),
    "flat from a bad first loss, no BLEU and no recipe": (
        Recorded(
            dev_loss=lambda step: 10.4 + 1e-4 * math.sin(step) if step else 20.0,
            bleu=lambda _step: None,
        ),
        {"trained": "cannot tell"},
    ),
    "the dev loss is flat while BLEU rises": (
        Recorded(
            steps=4000,
            reason=None,
            dev_loss=lambda step: 1.5 + 1e-4 * math.sin(step) if step else 9.4,
            bleu=lambda step: 5 + step / 200,
            recipe=("schedule.kind='constant'", *_VOCABULARY),
        ),
        {"trained": "cannot tell", "plateau": "cannot tell"},
    ),
    "phases not measured": (
        Recorded(
            interval_changes={
                "forward_s": None,
                "backward_s": None,
                "sync_s": None,
                "data_wait_s": None,
                "optimizer_s": None,
                "padding_share": None,
            }
        ),
        {
            "processors": "cannot tell",
            "network": "cannot tell",
            "starved": "cannot tell",
            "straggler": "cannot tell",
            "padding": "cannot tell",
            "step_time": "measured",
        },
    ),
    "crashed": (
        Recorded(steps=5000, reason=None, dev_loss=_power_law),
        {"duration": "measured", "trained": "no", "diverged": "no"},
    ),
    "killed and resumed": (
        Recorded(resume_at=(4700, 4000)),
        {"trained": "yes", "network": "no", "duration": "measured"},
    ),
    "not started": (
        Recorded(steps=0, reason=None, dev_loss=lambda _step: None),
        {
            "trained": "cannot tell",
            "overfitting": "cannot tell",
            "network": "cannot tell",
            "processors": "cannot tell",
            "step_time": "cannot tell",
            "diverged": "cannot tell",
            "rate_too_high": "cannot tell",
            "memory_creep": "cannot tell",
        },
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_verdict_is_right_and_none_is_guessed(name: str, tmp_path: Path) -> None:
    run, expected = RUNS[name]
    facts = read_facts(run.write(tmp_path / "run"))
    verdicts = {one.key: one for one in [*judge(facts), *examine(facts)]}
    assert {key: verdicts[key].answer for key in expected} == expected
    for verdict in verdicts.values():
        assert_well_said(verdict)


def test_the_collection_is_large_enough() -> None:
    assert len(RUNS) >= 25


def test_useful_flops_and_scaling_need_a_measured_device(tmp_path: Path) -> None:
    device = DeviceMeasured(
        device="cpu", matrix_flop_per_s=1.5e11, alone_tokens_per_s=6000.0, method="test"
    )
    facts = read_facts(Recorded(extra=[(0, device)]).write(tmp_path / "run"))
    processors = next(one for one in judge(facts) if one.key == "processors")
    rows = {row.name: row.text for row in processors.evidence}
    # 410,000 tokens in 100 steps of 0.411 s on two ranks, 6,000 alone
    said = "83.1%: 2 ranks were as fast as 1.66 without any waiting"
    assert rows["scaling efficiency"] == said
    assert rows["useful FLOPs over the rate of matrix products (MFU)"] == "not measured"


def test_other_programs_are_named_whether_or_not_the_run_waits_for_ranks(tmp_path: Path) -> None:
    crowded = changed(HOST_SAMPLED, cpu_share=0.99, others_cpu_share=0.5)
    for sync_s in (0.0, 0.3):
        run = Recorded(sync_s=(sync_s, sync_s), extra=[(0, crowded)]).write(tmp_path / str(sync_s))
        busy = next(one for one in judge(read_facts(run)) if one.key == "processors")
        assert busy.answer == "no"
        assert "50.0% of the processors of host-a" in f"{busy.says} {busy.remedy}"
        assert_well_said(busy)


def test_without_a_device_alone_scaling_is_the_share_without_waits(tmp_path: Path) -> None:
    facts = read_facts(Recorded(sync_s=(1.1, 1.1)).write(tmp_path / "run"))
    # 0.401 of 1.501 s: four GPUs of the reference run did the work of 1.33 for the same reason
    assert measures.scaling_efficiency(facts) == pytest.approx(0.401 / 1.501)
    alone = Recorded(world_size=1, compute_s=(0.4,), sync_s=(0.0,))
    assert measures.scaling_efficiency(read_facts(alone.write(tmp_path / "alone"))) is None
