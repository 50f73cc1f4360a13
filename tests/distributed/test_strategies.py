"""One suite over every strategy: what each must do when a whole run is trained with it."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dragoman.distributed import strategies, wire
from dragoman.distributed.config import DistributedConfig
from dragoman.distributed.world import World
from dragoman.model.config import ModelConfig
from dragoman.recipe.estimate import strategy_numbers
from dragoman.telemetry.events import Event, read_events
from dragoman.training.config import CheckpointConfig, TrainConfig
from ranks import run_ranks
from toy_fit import CONSTANT_RATE, ToyRun
from toy_task import TOY_MODEL

STRATEGIES: dict[str, dict[str, Any]] = {
    "sync": {},
    "diloco": {"diloco": {"every": 4, "fragments": 2, "delay": 2}},
    "diloco-blocking": {"diloco": {"every": 2, "fragments": 1, "delay": 0}},
    "diloco-sgd": {"diloco": {"every": 4, "fragments": 2, "delay": 1, "outer": "sgd"}},
}
STEPS = 16
# Wide enough for two buckets of gradients.
MODEL = TOY_MODEL.model_copy(update={"d_model": 64, "d_ffn": 128})


def test_every_strategy_is_in_this_suite() -> None:
    assert {_config(name).strategy for name in STRATEGIES} == set(strategies.STRATEGIES)


@dataclass(frozen=True)
class Trained:
    """The results of `trained`; said: by each rank."""

    strategy: str
    directory: Path
    said: list[Any]


def _config(name: str) -> DistributedConfig:
    strategy = {"strategy": name.partition("-")[0]}
    return DistributedConfig.model_validate(strategy | STRATEGIES[name])


def _run(name: str, directory: Path | str, max_steps: int, model: ModelConfig = MODEL) -> ToyRun:
    return ToyRun(
        Path(directory),
        TrainConfig(max_steps=max_steps, validate_every_steps=5, log_every_steps=3, ema_decay=0.9),
        CheckpointConfig(every_steps=8, keep_last=100),
        CONSTANT_RATE,
        model=model,
        distributed=_config(name),
    )


def _tensors(directory: Path, step: int) -> dict[str, Tensor]:
    """The states of all ranks, by file and name."""
    return {
        f"{file.relative_to(directory)}/{name}": tensor
        for file in directory.glob(f"checkpoints/**/step-{step:07d}/*.safetensors")
        for name, tensor in load_file(file).items()
    }


def _events(directory: Path, kind: str) -> list[Event]:
    events = read_events(directory / "events" / "log.jsonl")
    return [event for event in events if event.kind == kind]


def _fit(world: World, name: str, directory: str, max_steps: int) -> Any:
    world.barrier()  # rank 0 may still be writing what the others are to go on from
    result = _run(name, directory, max_steps).fit(world)
    return [result.state.step, result.state.dev_loss]


def _whole_and_resumed(world: World, name: str, directory: str) -> Any:
    """A run, and one like it that a signal to one rank ends and that then goes on."""

    def stop(update_index: int, _model: object) -> None:
        if update_index == 6 and world.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    whole, halved = (str(Path(directory) / run) for run in ("whole", "halved"))
    ends = [_fit(world, name, whole, STEPS)]
    stopped = replace(_run(name, halved, STEPS), before_update=stop).fit(world)
    ends.append(_fit(world, name, halved, STEPS))
    return [stopped.reason, stopped.state.step, ends]


@pytest.fixture(scope="module", params=STRATEGIES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Three ranks on two uneven hosts, twice to the end."""
    directory = tmp_path_factory.mktemp(request.param)
    arguments = (request.param, str(directory))
    said = run_ranks(_whole_and_resumed, *arguments, world_size=3, hosts=[2, 1])
    return Trained(request.param, directory, said)


@pytest.mark.system
def test_a_resumed_run_ends_with_the_same_bits(trained: Trained) -> None:
    for reason, step, ends in trained.said:
        assert (reason, step < STEPS) == ("signal", True)
        assert ends == [trained.said[0][2][0]] * 2, "all ranks measure the same weights"
    whole, halved = trained.directory / "whole", trained.directory / "halved"
    expected, found = _tensors(whole, STEPS), _tensors(halved, STEPS)
    assert expected.keys() == found.keys()
    for key, tensor in found.items():
        assert torch.equal(tensor, expected[key]), key
    validations = [[e.step for e in _events(run, "validated")] for run in (whole, halved)]
    assert validations[0] == validations[1]


def test_bytes_in_the_events_are_those_of_the_formula(trained: Trained) -> None:
    directory = trained.directory / "whole"
    weights = load_file(directory / "checkpoints" / f"step-{STEPS:07d}" / "model.safetensors")
    total = sum(weight.numel() for weight in weights.values())
    size = {
        "sync": STEPS * total * wire.BF16_BYTES,
        # All of it every so many steps, and again at the end, when one half was due anyway.
        "diloco": (STEPS / 4 + 1 / 2) * total * wire.FP4_BYTES,
        "diloco-sgd": (STEPS / 4 + 1 / 2) * total * wire.FP4_BYTES,
        "diloco-blocking": STEPS // 2 * total * wire.FP4_BYTES,
    }[trained.strategy]
    expected = wire.ring_bytes(size, num_ranks=2)  # the ranks of a host send to one another
    intervals = _events(directory, "train_interval")
    assert sum(event.payload["steps"] for event in intervals) == STEPS
    for rank in range(3):
        counted = sum(event.payload["sync_bytes"][rank] for event in intervals)
        assert counted == pytest.approx(0 if rank == 1 else expected, rel=0.01)
        assert sum(event.payload["sync_s"][rank] for event in intervals) > 0


def test_ranks_save_as_much_as_is_forecast(trained: Trained) -> None:
    saved = _tensors(trained.directory / "whole", STEPS)
    main = f"checkpoints/step-{STEPS:07d}/model.safetensors/"
    num_weights = sum(tensor.numel() for name, tensor in saved.items() if name.startswith(main))
    _, beside = strategy_numbers(_config(trained.strategy), 3)
    numbers = sum(tensor.numel() for tensor in saved.values() if tensor.ndim)
    # Weights, two moments and their average on rank 0; the steps at which fragments were sent.
    forecast = (4 + beside) * num_weights
    assert numbers == pytest.approx(forecast, abs=50)


@pytest.mark.system
def test_another_number_of_ranks_goes_on(trained: Trained) -> None:
    more = 2 * STEPS
    directory = str(trained.directory / "halved")
    before = trained.said[0][2][1][1]
    ends = run_ranks(_fit, trained.strategy, directory, more, world_size=2, hosts=[1, 1])
    assert ends == [[more, ends[0][1]]] * 2
    assert ends[0][1] < before
