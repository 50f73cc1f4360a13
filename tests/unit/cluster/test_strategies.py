"""Every strategy against the predictions and measurements that were published for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.cluster import strategies
from dragoman.cluster.rates import Inside, Link, parse_ranks
from dragoman.cluster.strategies import Cluster, Machine
from dragoman.cluster.workload import Workload, weight_shapes
from dragoman.distributed import wire
from dragoman.model.config import ModelConfig
from dragoman.model.transformer import Transformer

REFERENCE_MODEL = ModelConfig(attention_bias=False)
REFERENCE = Workload(
    name="reference",
    shapes=weight_shapes(REFERENCE_MODEL, source_vocab_size=32_768, target_vocab_size=32_768),
    flop_per_step=62_400 * 183e6,
    target_tokens_per_step=31_200,
    max_steps=50_000,
)
COMPUTE_S = 0.25


def cluster(ranks: str, link: str, compute_s: float = COMPUTE_S) -> Cluster:
    return alike(parse_ranks(ranks), Link.parse(link), compute_s)


def alike(ranks: tuple[int, ...], link: Link, compute_s: float) -> Cluster:
    return Cluster.of(ranks, link, like=Machine(alone_s=compute_s * sum(ranks)))


@pytest.mark.parametrize(
    ("link", "plain_s", "sync_s", "accumulate_s", "powersgd_s", "h100_s", "h500_s"),
    [
        ("100Mbit", 20.9, 10.5, 0.89, 0.52, 0.46, 0.29),
        ("1Gbit", 2.19, 1.15, 0.31, 0.30, 0.27, 0.25),
    ],
)
def test_the_predicted_table(
    link: str,
    plain_s: float,
    sync_s: float,
    accumulate_s: float,
    powersgd_s: float,
    h100_s: float,
    h500_s: float,
) -> None:
    two = cluster("2", link)
    predicted = {
        "plain": (strategies.plain(two, REFERENCE), plain_s),
        "sync": (strategies.sync(two, REFERENCE), sync_s),
        "accum": (strategies.accumulate(two, REFERENCE, every=16), accumulate_s),
        "powersgd": (strategies.powersgd(two, REFERENCE), powersgd_s),
        # The published ones send fp32: about the same as four bits eight times as often.
        "diloco 100": (strategies.diloco(two, REFERENCE, every=13), h100_s),
        "diloco 500": (strategies.diloco(two, REFERENCE, every=64), h500_s),
        # Nothing is waited for; its own work comes on top.
        "streaming": (strategies.streaming(two, REFERENCE), 0.26),
    }
    for name, (prediction, expected_s) in predicted.items():
        assert prediction.step_s == pytest.approx(expected_s, rel=0.04), name


@pytest.mark.parametrize(("ranks", "measured_s"), [("1+1", 1.198), ("1+2", 1.5625), ("2+2", 1.70)])
def test_the_reference_runs_with_their_compute_on_two_bonded_gigabit_ports(
    ranks: str, measured_s: float
) -> None:
    # 203 to 218 MB/s are these runs' bytes over their whole step; what their compute did not
    # hide taken away, the ports gave what TCP leaves of 2 Gbit/s.
    step = strategies.plain(cluster(ranks, "2Gbit", 0.61), REFERENCE)
    assert step.step_s == pytest.approx(measured_s, rel=0.10)


def test_the_reference_run_on_its_slow_port() -> None:
    step = strategies.plain(cluster("2+2", "100Mbit", 0.61), REFERENCE)
    assert 30 <= step.step_s <= 31 * 1.1


def test_reducing_inside_the_host_first_and_bf16_send_a_third_of_the_bytes() -> None:
    two_by_two = cluster("2+2", "215MB/s", 0.0)
    assert strategies.plain(two_by_two, REFERENCE).wire_bytes / 1e6 == pytest.approx(
        365.3, abs=0.05
    )
    synced = strategies.sync(two_by_two, REFERENCE)
    assert synced.wire_bytes / 1e6 == pytest.approx(121.8, abs=0.05)
    # Two ranks of a host exchange fp32; what goes on between hosts waits for that.
    inside_s = REFERENCE.num_parameters * 4 / two_by_two.machines[0].inside.bytes_per_s
    assert synced.step_s - inside_s == pytest.approx(0.57, rel=0.02)
    alone = strategies.sync(two_by_two.only([0]), REFERENCE)
    assert alone.step_s == pytest.approx(inside_s)


def test_a_ring_waits_for_messages_from_host_to_host_alone() -> None:
    """Eight ranks of a host are neighbours in it: 64 hosts of eight wait as 64 of one do."""
    like = Machine(inside=Inside("", 1e15, ""))
    clusters = [Cluster.of(ranks, Link(1e12), like=like) for ranks in ((1,) * 64, (8,) * 64)]
    waits_s = [strategies.plain(one, REFERENCE).step_s for one in clusters]
    assert waits_s[1] == pytest.approx(waits_s[0], rel=0.05)


def test_streaming_as_measured_on_a_small_model() -> None:
    # torchft 0.2.0, 2.1 MB of fp32, 10 Mbit/s, H=10, 0.2 s of compute: blocking 0.375 s a step.
    # In four bits that is H=1.25.
    tiny = replace(REFERENCE, shapes=((2_100_000 // 4,),))
    two = cluster("2", "10Mbit", 0.2)
    blocking = strategies.diloco(two, tiny, every=5)
    waiting_s = blocking.exposed_s - two.diloco_s(tiny) / 5
    assert 0.2 + 4 * waiting_s == pytest.approx(0.375, rel=0.03)


@given(
    ranks=st.lists(st.integers(1, 8), min_size=2, max_size=12),
    megabits=st.floats(1, 1e5),
    compute_s=st.floats(1e-3, 100),
)
def test_no_strategy_beats_compute_and_less_traffic_never_waits_longer(
    ranks: list[int], megabits: float, compute_s: float
) -> None:
    here = alike(tuple(ranks), Link.nominal(megabits * 1e6), compute_s)
    plain = strategies.plain(here, REFERENCE)
    synced = strategies.sync(here, REFERENCE)
    every_4 = strategies.accumulate(here, REFERENCE, every=4)
    blocking = strategies.diloco(here, REFERENCE, every=100)
    streamed = strategies.streaming(here, REFERENCE)
    for prediction in (plain, synced, every_4, blocking, streamed):
        assert prediction.step_s >= here.compute_s
    assert every_4.step_s <= synced.step_s
    assert synced.wire_bytes <= plain.wire_bytes / 2 * (1 + 1e-9)
    assert streamed.step_s <= blocking.step_s or streamed.every < blocking.every
    assert 1 <= streamed.every <= 500
    assert streamed.delay * streamed.num_fragments == streamed.every, "the link is always in use"


@pytest.mark.parametrize("slower_than_compute", [0.5, 2.0, 3.7, 12.0, 40.0])
def test_streaming_has_the_shortest_period_that_hides_the_link(slower_than_compute: float) -> None:
    link = Link.parse("100Mbit")
    network_s = REFERENCE.num_parameters * wire.FP4_BYTES / link.bytes_per_s
    compute_s = network_s / slower_than_compute
    two = alike((1, 1), link, compute_s)
    streamed = strategies.streaming(two, REFERENCE)
    own_s = two.diloco_s(REFERENCE) / streamed.every
    assert streamed.exposed_s == pytest.approx(own_s), "the link is hidden"
    assert own_s <= 0.05 * compute_s
    least = max(1, strategies.DELAY_MARGIN * slower_than_compute)
    assert least <= streamed.every < least + streamed.delay + 1
    assert streamed.num_fragments == min(streamed.every, strategies.MOST_FRAGMENTS) or (
        streamed.delay > 1
    )


def test_the_work_of_diloco_goes_by_its_weights_and_its_device() -> None:
    """As two lab hosts measured it: 7.6 million weights, batches of 64 rows, a sum in 12 steps."""
    small = replace(REFERENCE, shapes=((512, 512),) * 29)
    gpus = cluster("2", "100Mbit", 0.0450)
    on_gpu = strategies.diloco(gpus, small, every=12)
    on_cpu = strategies.diloco(replace(gpus, diloco_weight_s=18e-9), small, every=12)
    assert on_cpu.step_s == pytest.approx(0.0827, rel=0.05)
    assert on_gpu.step_s == pytest.approx(0.0717, rel=0.05)


def test_gradients_wait_for_the_last_micro_batch() -> None:
    two = cluster("2", "1Gbit", 1.0)
    whole = strategies.sync(two, REFERENCE)
    in_four = strategies.sync(two, replace(REFERENCE, micro_batches_per_step=4))
    assert in_four.exposed_s - whole.exposed_s == pytest.approx(0.6 * 0.75)


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(d_model=8, num_heads=2, d_ffn=12, encoder_layers=2, decoder_layers=1),
        ModelConfig(
            d_model=8,
            num_heads=2,
            d_ffn=12,
            encoder_layers=1,
            decoder_layers=2,
            norm="post",
            activation="swiglu",
            tied_embeddings="none",
            attention_bias=False,
        ),
        ModelConfig(
            d_model=8,
            num_heads=2,
            d_ffn=12,
            encoder_layers=1,
            decoder_layers=1,
            tied_embeddings="decoder",
        ),
    ],
)
def test_weight_shapes_are_those_of_the_model(config: ModelConfig) -> None:
    target_vocab_size = 20 if config.tied_embeddings == "all" else 30
    model = Transformer(config, source_vocab_size=20, target_vocab_size=target_vocab_size)
    shapes = weight_shapes(config, source_vocab_size=20, target_vocab_size=target_vocab_size)
    assert shapes == tuple(tuple(weight.shape) for weight in model.parameters())
