"""The tables of a plan against what the makers of devices and links publish."""

from __future__ import annotations

import json

import pytest

from dragoman.cluster.plan import Plan
from dragoman.cluster.plan_request import PlanRequest, plan_recipe
from dragoman.cluster.plan_view import plan_as_json
from dragoman.recipe.recipe import load_recipe

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
NOMINAL = [
    ("nvlink1", 80e9),
    ("nvlink2", 150e9),
    ("nvlink3", 300e9),
    ("nvlink4", 450e9),
    ("nvlink5", 900e9),
    ("pcie3", 15.75e9),
    ("pcie4", 31.5e9),
    ("pcie5", 63e9),
    ("none", 15.75e9),  # over PCIe into the memory of the host, and back
]
"""Link, bytes/s each way of all its lanes."""


def planned(**request: str) -> Plan:
    """A plan of Transformer-big on one host."""
    recipe = load_recipe("wmt16-ende-big")
    precision = request.pop("precision", "bf16")
    train = recipe.train.model_copy(update={"precision": precision})
    return plan_recipe(recipe.model_copy(update={"train": train}), PlanRequest(**request))


def flop_per_s(made: Plan) -> float:
    return made.workload.flop_per_step / made.strategies[0].prediction.compute_s


@pytest.mark.parametrize(("gpu", "precision", "peak"), PEAKS)
def test_a_gpu_trains_at_a_likely_share_of_its_peak(gpu: str, precision: str, peak: float) -> None:
    made = planned(hosts="a:1", gpu=gpu, precision=precision)
    assert 0.2 < flop_per_s(made) / peak < 0.8


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_processor_trains_as_fast_as_it_was_measured(precision: str) -> None:
    """2,100 to 2,700 target tokens/s of a model of 45 MFLOP each."""
    made = planned(hosts="a:1", gpu="cpu", precision=precision)
    assert 2_100 <= flop_per_s(made) / 45e6 <= 2_700


@pytest.mark.parametrize(("link", "nominal"), NOMINAL)
def test_a_link_inside_a_host_carries_a_likely_share_of_its_lanes(
    link: str, nominal: float
) -> None:
    made = planned(hosts="a:8", gpu="a100", gpu_link=link)
    (host,) = json.loads(plan_as_json(made))["hosts"]
    assert 0.3 < host["inside_bytes_per_s"] / nominal < 0.9
