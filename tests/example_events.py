"""Events of a small run, with what a test does not care about filled in."""

from __future__ import annotations

from typing import Any, TypeVar

from dragoman.telemetry.events import (
    PER_RANK,
    SCHEMA_VERSION,
    Environment,
    Event,
    HostSampled,
    NetworkSampled,
    Payload,
    RunFinished,
    RunStarted,
    SampleTranslation,
    TestScored,
    TrainInterval,
    Validated,
    as_values,
)

P = TypeVar("P", bound=Payload)

PARAMETERS = 7_420_000
ENVIRONMENT = Environment(
    dragoman_version="0.1.0",
    python_version="3.12.3",
    torch_version="2.9.1",
    git_commit=None,
    git_dirty=None,
    os="Linux",
    cpu_model="a processor",
    cpu_cores=4,
    threads=4,
    memory_bytes=16 * 10**9,
    gpu_name=None,
    gpu_count=0,
    gpu_memory_bytes=None,
    cuda_version=None,
    driver_version=None,
)
RUN_STARTED = RunStarted(
    run_name="demo",
    recipe_digest="0123456789abcdef",
    world_size=2,
    hosts=("host-a", "host-b"),
    device="cpu",
    precision="fp32",
    num_parameters=PARAMETERS,
    max_steps=8000,
    train_pairs=29_000,
    resumed_from_step=None,
)
TRAIN_INTERVAL = TrainInterval(
    steps=100,
    epoch=0,
    train_loss=3.2145,
    learning_rate=9.882e-4,
    gradient_norm=0.512,
    pairs=12_800,
    source_tokens=200_000,
    target_tokens=210_000,
    padding_share=0.031,
    skipped_steps=0,
    loss_scale=None,
    interval_s=(40.0, 40.0),
    step_median_s=(0.4, 0.4),
    step_p95_s=(0.5, 0.5),
    data_wait_s=(0.08, 0.08),
    forward_s=(12.0, 12.0),
    backward_s=(25.0, 25.0),
    sync_s=(2.0, 2.0),
    wire_s=1.5,
    optimizer_s=(0.9, 0.9),
    sync_bytes=(2_968_000_000, 2_968_000_000),
    peak_memory_bytes=(1_500_000_000, 1_500_000_000),
)
VALIDATED = Validated(
    dev_loss=2.1034,
    dev_perplexity=8.194,
    train_slice_loss=1.9981,
    bleu=23.41,
    bleu_low=22.1,
    bleu_high=24.6,
    bleu_signature="BLEU|nrefs:1|bs:1000|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
    chrf=48.2,
    chrf_low=47.0,
    chrf_high=49.3,
    chrf_signature="chrF2|nrefs:1|bs:1000|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0",
    dev_pairs=1014,
    decoded_pairs=1000,
    loss_s=1.0,
    decode_s=3.0,
)
SAMPLE = SampleTranslation(
    source="A dog runs through the snow.",
    hypothesis="Ein Hund läuft durch den Schnee.",
    reference="Ein Hund rennt durch den Schnee.",
)
TEST_SCORED = TestScored(
    name="test2016",
    weights="5d290452bea20cb580df3679eee37c264920afbcd55d1840735b2e37e46e83fa",
    settings="",
    bleu=34.5,
    bleu_low=33.2,
    bleu_high=35.8,
    bleu_signature="BLEU|nrefs:1|bs:1000|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
    chrf=60.2,
    chrf_low=59.3,
    chrf_high=61.1,
    chrf_signature="chrF2|nrefs:1|bs:1000|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0",
    pairs=1000,
    decode_s=12.3,
)
RUN_FINISHED = RunFinished(
    reason="max_steps",
    best_dev_loss=2.1034,
    best_dev_loss_step=7000,
    best_bleu=23.41,
    best_bleu_step=8000,
    wall_s=85_560.0,
)
HOST_SAMPLED = HostSampled(
    seconds_s=10.0,
    cpu_share=0.87,
    others_cpu_share=0.02,
    memory_used_bytes=12 * 10**9,
    memory_limit_bytes=16 * 10**9,
    disk_free_bytes=70 * 10**9,
    queued_batches=7.5,
)
NETWORK_SAMPLED = NetworkSampled(
    seconds_s=10.0,
    interface="eth0",
    sent_bytes=10**9,
    received_bytes=10**9,
    sent_packets=10**6,
    received_packets=10**6,
    errors=0,
    carrier_changes=0,
    nominal_bits_per_s=1e9,
    most_sent_bytes_per_s=1e8,
)


def event(
    payload: Payload, *, step: int | None = None, time: float = 1.7e9, **changes: Any
) -> Event:
    """An event with this payload as the writer would make it, some values changed."""
    if isinstance(payload, TrainInterval):  # a value of all ranks alike
        ranks = len(payload.interval_s or ())
        changes |= {
            name: (value,) * ranks
            for name, value in changes.items()
            if name in PER_RANK and not isinstance(value, tuple) and value is not None
        }
    values = as_values(payload.model_copy(update=changes))
    return Event(SCHEMA_VERSION, payload.kind, time, time - 1.6e9, "host-a", 0, step, values)


def changed(payload: P, **changes: Any) -> P:
    """The payload with some values changed."""
    return payload.model_copy(update=changes)
