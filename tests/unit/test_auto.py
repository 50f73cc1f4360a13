"""From what the planner chose to the section of the recipe that trains by it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dragoman.cluster.plan import choose_for_all_ranks
from dragoman.cluster.rates import Link
from dragoman.cluster.strategies import Cluster, Machine
from dragoman.cluster.workload import Workload
from dragoman.distributed.config import DilocoConfig, DistributedConfig
from dragoman.distributed.packing import FP4, packed_bytes
from dragoman.run.auto import resolved

NUM_WEIGHTS = 4_000_000


@pytest.mark.parametrize(("rate", "strategy"), [("1Gbit", "sync"), ("10Mbit", "diloco")])
def test_auto_sets_the_wire_formats_of_its_plan(rate: str, strategy: str) -> None:
    recipe = DistributedConfig(
        strategy="auto",
        wire="fp32",
        diloco=DilocoConfig(wire="fp32", outer="sgd", outer_momentum=0.3),
    )
    workload = Workload(
        name="auto",
        shapes=((NUM_WEIGHTS,),),
        flop_per_step=0.0,
        target_tokens_per_step=1000.0,
        max_steps=1000,
    )
    cluster = Cluster.of((1, 1), Link.parse(rate), like=Machine(alone_s=2.0))
    choice = choose_for_all_ranks(cluster, workload)
    chosen = resolved(recipe, choice)
    assert (chosen.strategy, chosen.wire) == (strategy, "bf16")
    assert chosen.diloco.outer_momentum == 0.3
    if strategy == "diloco":
        assert chosen.diloco.wire == "fp4"
        assert chosen.diloco.outer == "sgd", "as the recipe says"
        assert chosen.diloco.every <= 8
        default = resolved(DistributedConfig(strategy="auto"), choice).diloco
        assert (default.every, default.outer) == (chosen.diloco.every, "adam")
        long = replace(choice, prediction=replace(choice.prediction, every=9))
        assert resolved(DistributedConfig(strategy="auto"), long).diloco.outer == "sgd"
        # Between two hosts each sends half of the payload twice.
        sent = packed_bytes(NUM_WEIGHTS, 2, FP4) / chosen.diloco.every
        assert choice.prediction.wire_bytes == pytest.approx(sent, rel=0.01)
