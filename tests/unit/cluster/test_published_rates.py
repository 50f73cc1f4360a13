"""The table of a plan against data sheets, and its scaling against published measurements."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.cluster.options import Cluster, Machine
from dragoman.cluster.plan import Plan
from dragoman.cluster.plan_request import PlanRequest, plan_recipe
from dragoman.cluster.rates import DEVICES, SEVERAL_GPUS, Link, inside_of
from dragoman.cluster.workload import Workload, weight_shapes
from dragoman.model.config import ModelConfig
from dragoman.recipe.recipe import load_recipe

FLOP_PER_TOKEN = 1.258e9
BIG = weight_shapes(
    ModelConfig(d_model=1024, num_heads=16, d_ffn=4096),
    source_vocab_size=33_708,
    target_vocab_size=33_708,
)
# NVIDIA DeepLearningExamples (729963d), PyTorch/Translation/Transformer: GPU, precision, tokens of
# a GPU's batch, GPUs, tokens/s of one, tokens/s of all.
PUBLISHED = [
    ("a100", "mixed", 10240, 8, 82_059, 551_599),
    ("a100", "mixed", 10240, 4, 82_059, 286_081),
    ("a100", "TF32", 10240, 8, 51_057, 347_936),
    ("a100", "TF32", 10240, 4, 51_057, 179_245),
    ("v100", "mixed", 5120, 8, 32_942, 214_656),
    ("v100", "mixed", 5120, 4, 32_942, 109_726),
    ("v100", "FP32", 2560, 8, 8_742, 59_316),
    ("v100", "FP32", 2560, 4, 8_742, 30_204),
    ("v100", "mixed, DGX-2", 10240, 16, 39_911, 517_227),
    ("v100", "mixed, DGX-2", 10240, 8, 39_911, 267_815),
    ("v100", "mixed, DGX-2", 10240, 4, 39_911, 137_703),
    ("v100", "FP32, DGX-2", 5120, 16, 9_827, 136_253),
    ("v100", "FP32, DGX-2", 5120, 8, 9_827, 68_929),
    ("v100", "FP32, DGX-2", 5120, 4, 9_827, 35_216),
]
PEAKS = [
    ("p100", "fp16", 10.6e12),  # trained in fp32
    ("v100", "fp16", 125e12),
    ("a100", "bf16", 312e12),
    ("4090", "bf16", 165e12),
    ("h100", "bf16", 989e12),
    ("h200", "bf16", 989e12),
    ("p100", "fp32", 10.6e12),
    ("v100", "fp32", 15.7e12),
    ("a100", "fp32", 19.5e12),
    ("4090", "fp32", 82.6e12),
    ("h100", "fp32", 67e12),
    ("h200", "fp32", 67e12),
]
"""GPU, precision, FLOP/s of dense matrices in its data sheet."""


def planned(recipe: str, *overrides: str, **request: Any) -> Plan:
    return plan_recipe(load_recipe(recipe, overrides), PlanRequest(**request))


@pytest.mark.parametrize(
    ("gpu", "precision", "batch", "count", "one_per_s", "all_per_s"), PUBLISHED
)
def test_plans_scale_as_published(
    gpu: str, precision: str, batch: int, count: int, one_per_s: float, all_per_s: float
) -> None:
    """The rate of one GPU is taken from the table, so that only the scaling is tested."""
    tokens = batch * count
    workload = Workload("big", BIG, tokens * FLOP_PER_TOKEN, tokens, 100_000)
    host = Machine(count, tokens / one_per_s, together=SEVERAL_GPUS, inside=inside_of(gpu))
    made = Plan(Cluster(workload, (host,), Link(1e8)), "")
    (synced,) = (one for one in made.options if one.step.strategy == "sync")
    assert made.speed_up(synced) == pytest.approx(all_per_s / one_per_s, rel=0.07), precision


@pytest.mark.parametrize(("gpu", "precision", "peak"), PEAKS)
def test_a_gpu_trains_at_a_likely_share_of_its_peak(gpu: str, precision: str, peak: float) -> None:
    made = planned("wmt16-ende-big", f"train.precision={precision}", gpu=gpu)
    flop_per_s = made.workload.flop_per_step / made.options[0].step.compute_s
    assert 0.2 < flop_per_s / peak < 0.8


def test_a_processor_trains_as_fast_as_other_programs_show_that_it_can() -> None:
    """Two hardware threads train this model, with 7.57 million weights, at 2,022 target tokens a
    second with fairseq, 2,155 with Eole and 5,208 with ours (benchmarks/README.md).
    """
    size = ["d_model=256", "d_ffn=1024", "encoder_layers=3", "decoder_layers=3"]
    overrides = [f"model.{word}" for word in size]
    made = planned("multi30k-tiny", *overrides, "corpus.subword.vocab_size=8000", gpu="cpu")
    assert made.workload.num_parameters == pytest.approx(7.57e6, rel=0.01)
    tokens_per_s = made.workload.target_tokens_per_step / made.options[0].step.step_s
    assert 2_022 / 1.5 < tokens_per_s < 5_208 * 1.5


@pytest.mark.parametrize(
    ("gpu", "nominal"),
    [
        ("p100", 80e9),
        ("v100", 150e9),
        ("a100", 300e9),
        ("h100", 450e9),
        ("h200", 450e9),
        ("4090", 15.75e9),  # PCIe 3 into the memory of the host, and back
        ("Tesla V100-PCIE-16GB", 15.75e9),
        ("NVIDIA A100-SXM4-80GB", 300e9),
        ("b200", 15.75e9),  # not known
    ],
)
def test_a_link_inside_a_host_carries_a_likely_share_of_its_lanes(gpu: str, nominal: float) -> None:
    assert 0.3 < inside_of(gpu).bytes_per_s / nominal < 0.9


def test_a_recipe_in_fp32_is_not_planned_at_the_rate_of_half_precision() -> None:
    step_s = {
        precision: planned(
            "wmt16-ende-big", f"train.precision={precision}", gpu="v100"
        ).quickest.step.step_s
        for precision in ("fp32", "fp16", "bf16")
    }
    assert step_s["fp32"] / step_s["fp16"] == pytest.approx(32_942 / 8_742)
    assert step_s["bf16"] == step_s["fp32"]  # a V100 has none


def test_every_rate_names_the_kind_of_its_source() -> None:
    sources = [one.source for devices in DEVICES.values() for one in devices.values()]
    sources += [inside_of(name).source for name in (*DEVICES["fp32"], "?")]
    assert all(one.startswith(("measured", "published", "assumed")) for one in sources)
