"""The speed of training, as a budget times it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from dragoman.base.errors import MachineError
from dragoman.cluster.workload import workload_of
from dragoman.recipe.estimate import TYPICAL_LENGTH
from dragoman.recipe.recipe import Recipe, load_recipe
from dragoman.run import speed
from dragoman.training.step_rate import StepCost

TOKENS = 1280
"""Target tokens of a timed step on a CPU."""


def recipe_of(tmp_path: Path) -> Recipe:
    own = tmp_path / "own.toml"
    own.write_text(
        '[corpus]\nsource_language = "en"\ntarget_language = "de"\n'
        'train = [{tsv = "pairs.tsv"}]\nvalid_pairs = 1\n[model]\n'
        "d_model = 32\nnum_heads = 2\nd_ffn = 64\nencoder_layers = 1\ndecoder_layers = 1\n"
    )
    return load_recipe(own)


@pytest.mark.parametrize("halvings", [0, 2])
def test_a_step_that_does_not_fit_the_memory_is_timed_with_fewer_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, halvings: int
) -> None:
    fitting = (TOKENS // TYPICAL_LENGTH) >> halvings
    asked = []

    def step_cost(*_: object, pairs: int, **__: object) -> StepCost:
        asked.append(pairs)
        if pairs > fitting:
            raise torch.OutOfMemoryError
        return StepCost(0.25, 0.25 / TOKENS)

    monkeypatch.setattr(speed, "step_cost", step_cost)
    machine = speed.this_machine(ranks=1, at_most_s=1.0)
    assert machine.speed(recipe_of(tmp_path)) == pytest.approx(2 * TOKENS)
    assert asked == [(TOKENS // TYPICAL_LENGTH) >> halving for halving in range(halvings + 1)]


def test_a_model_that_does_not_fit_at_all_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step_cost(*_: object, **__: object) -> StepCost:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(speed, "step_cost", step_cost)
    machine = speed.this_machine(ranks=1, at_most_s=1.0)
    with pytest.raises(MachineError, match="memory ran out: CUDA out of memory"):
        machine.speed(recipe_of(tmp_path))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what others use")
def test_other_programs_on_the_processors_are_noticed(tmp_path: Path) -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        machine = speed.this_machine(ranks=1, at_most_s=0.5)
        assert machine.speed(recipe_of(tmp_path)) > 0
    finally:
        busy.kill()
        busy.wait()
        os.sched_setaffinity(0, cores)
    assert machine.others_share > 0.1


@pytest.mark.parametrize(
    ("others", "step_s", "timings"),
    [([0.0], 1.0, 1), ([0.6, 0.0], 1.0, 2), ([0.6, 0.5], 1.0, 2)],
    ids=["at rest", "disturbed once", "disturbed"],
)
def test_a_disturbed_timing_is_made_again_and_the_faster_one_counts(
    others: list[float],
    step_s: float,
    timings: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    took_s = iter([1.0] if timings == 1 else [3.0, 1.0])
    shares = iter(others)

    def step_cost(*_: object, **__: object) -> StepCost:
        return StepCost(next(took_s), 0.001)

    @contextmanager
    def seen() -> Iterator[list[float]]:
        found: list[float] = []
        yield found
        found.append(next(shares))

    monkeypatch.setattr(speed, "step_cost", step_cost)
    monkeypatch.setattr(speed, "_others_seen", seen)
    recipe = recipe_of(tmp_path)
    here = speed.timed_here(recipe, ranks=1)
    tokens = workload_of(recipe).target_tokens_per_step
    assert here.step_s == pytest.approx(step_s + 0.001 * tokens)
    assert here.others_share == others[-1]
    assert not [*shares], "each timing was made"


def test_each_rank_and_each_micro_batch_of_a_cpu_reads_the_weights_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "step_cost", lambda *_, **__: StepCost(1.0, 0.001))
    recipe = recipe_of(tmp_path)
    data = recipe.data.model_copy(update={"accumulate": 2})
    recipe = recipe.model_copy(update={"data": data})
    tokens = workload_of(recipe).target_tokens_per_step
    here = speed.timed_here(recipe, ranks=3)
    assert here.step_s == pytest.approx(3 * 2 * 1.0 + 0.001 * tokens)
