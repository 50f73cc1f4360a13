"""Everything an update changes, as named tensors: into a checkpoint and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from dragoman.errors import CheckpointError
from dragoman.train.checkpoint import Checkpoint, TensorGroups, copy_named
from dragoman.train.state import TrainState
from dragoman.train.step import TrainStep


def snapshot(state: TrainState, step: TrainStep) -> tuple[TrainState, TensorGroups]:
    """The state with the loss scale and the strategy's memory in it; the tensors by group.

    Tensors are not copied: write them before the next update.
    """
    weights = dict(step.model.named_parameters())
    scale = None if step.scaler is None else step.scaler.state_dict()
    groups = {
        "model": {name: weight.detach() for name, weight in weights.items()},
        "ema": {} if step.ema is None else step.ema.weights(),
        "optimizer": {
            f"{name}/{kind}": tensor
            for name, weight in weights.items()
            for kind, tensor in step.optimizer.state[weight].items()
        },
    }
    return state.model_copy(update={"loss_scaler": scale, "sync": step.sync.state_dict()}), groups


def restore(checkpoint: Checkpoint, step: TrainStep) -> None:
    """Put model, optimizer, averages, loss scale and strategy where the checkpoint has them.

    Raises CheckpointError where the checkpoint is of another model or of other settings.
    """
    path, state = checkpoint.path, checkpoint.state
    weights = dict(step.model.named_parameters())
    copy_named(checkpoint.tensors("model"), weights, place=path)
    if step.ema is not None:
        copy_named(_group(checkpoint, "ema"), step.ema.weights(), place=path)
    _restore_optimizer(_group(checkpoint, "optimizer"), weights, step.optimizer, place=path)
    if step.scaler is not None:
        if state.loss_scaler is None:
            raise _other_settings(path, "no loss scale")
        step.scaler.load_state_dict(state.loss_scaler)
    step.sync.load_state_dict(state.sync)


def _restore_optimizer(
    tensors: Mapping[str, Tensor],
    weights: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Adam,
    *,
    place: Path,
) -> None:
    for key, tensor in tensors.items():
        name, kind = key.rsplit("/", 1)
        weight = weights.get(name)
        if weight is None or tensor.shape not in ((), weight.shape):
            raise CheckpointError(
                f"the optimizer's state {key} does not fit the model",
                place=place,
                remedy="use the recipe that the checkpoint was trained with",
            )
        # A copy in memory of its own: the file's pages go when the file does.
        optimizer.state[weight][kind] = tensor.to(weight.device, copy=True)


def _group(checkpoint: Checkpoint, group: str) -> dict[str, Tensor]:
    if not checkpoint.has(group):
        raise _other_settings(checkpoint.path, f"no {group}.safetensors")
    return checkpoint.tensors(group)


def _other_settings(place: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{what}: it was written with other settings",
        place=place,
        remedy="go on with the settings of the run, or start a new one with --fresh",
    )
