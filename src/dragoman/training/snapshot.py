"""Collects and restores everything that an update changes: the state, and named tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from dragoman.base.errors import CheckpointError
from dragoman.base.files import file_sha256
from dragoman.distributed.world import World
from dragoman.model.weights_form import WeightsForm
from dragoman.training.checkpoint import (
    Checkpoint,
    CheckpointStore,
    TensorGroups,
    TrainState,
    check_trained_with,
    copy_weights,
)
from dragoman.training.durable import (
    DIGESTS_FILE,
    discard,
    publish,
    step_directories,
    step_number,
    verify,
)
from dragoman.training.step import TrainStep

_PLAIN: Final = WeightsForm()


def snapshot(state: TrainState, step: TrainStep) -> tuple[TrainState, TensorGroups]:
    """The content of rank 0's checkpoint: the state with the loss scale in it; the tensors by
    group.

    Tensors are not copied: write them before the next update.
    """
    names = [name for name, _ in step.model.named_parameters()]
    state, own = own_snapshot(state, step)
    weights = dict(zip(names, step.sync.weights(), strict=True))
    shared = {
        "model": weights if step.ema is None else step.ema.weights(),
        "updated": {} if step.ema is None else weights,
        "optimizer": _optimizer_tensors(step),
        "strategy": step.sync.shared_state(),
    }
    return state, {**shared, **own}


def own_snapshot(state: TrainState, step: TrainStep) -> tuple[TrainState, TensorGroups]:
    """The content of another rank's checkpoint: only its own state."""
    scale = None if step.scaler is None else step.scaler.state_dict()
    groups = {"replica": step.sync.own_state()}
    if step.sync.own_optimizer:
        groups["optimizer"] = _optimizer_tensors(step)
    return state.model_copy(update={"loss_scaler": scale}), groups


def agreed_checkpoint(
    store: CheckpointStore, world: World, warn: Callable[[CheckpointError], None]
) -> Checkpoint | None:
    """The newest checkpoint that every rank has intact, with the same content.

    Every rank calls it, and all get the same one, though machines may have different checkpoints.
    First each restores or removes what a kill left half replaced or half written. warn: called
    with the damage of those that this rank skips. Returns None if there is no checkpoint, or only
    that of step 0: the weights of another model, with which the run began. Raises CheckpointError
    if all checkpoints of this rank are damaged, or if ranks do not have the same one.
    """
    store.of_rank(world.rank).clean()
    world.barrier()  # all read what rank 0 saves
    newest = store.latest_valid(warn)
    steps = world.gather_json(-1 if newest is None else newest.state.step)
    if max(steps) < 0:
        return None
    oldest = max(min(steps), 0)
    common = newest if min(steps) == max(steps) else store.intact(oldest)
    digests = world.gather_json("" if common is None else file_sha256(common.path / DIGESTS_FILE))
    if common is None or len(set(digests)) > 1:
        raise CheckpointError(
            _difference(steps, digests),
            place=store.directory,
            remedy="copy this folder from a machine with the newest checkpoint to the others, and "
            "start again",
        )
    return common if common.state.step else None


def share_newest(
    store: CheckpointStore, world: World, warn: Callable[[CheckpointError], None]
) -> None:
    """Give every machine the newest intact checkpoint of rank 0, over the network of the ranks.

    Every rank calls it. Rank 0 alone saves what all share, so a machine that goes on with it has
    other checkpoints, or none. One that gets a checkpoint keeps no other, except step 0. warn: as
    in `agreed_checkpoint`. Raises MachineError if the disk is full.
    """
    newest = store.latest_valid(warn) if world.is_main else None
    path = None if newest is None or not newest.state.step else newest.path
    files = [
        (file.name, file.stat().st_size)
        for file in (() if path is None else path.iterdir())
        if file.name != DIGESTS_FILE  # it is written anew
    ]
    digest = "" if path is None else file_sha256(path / DIGESTS_FILE)
    name = "" if path is None else path.name
    name, digest, files = world.gather_json([name, digest, files])[0]
    target = store.directory / name
    lacks = bool(name) and world.local_rank == 0 and not _holds(target, digest)
    if not any(world.gather_json(lacks)):
        return

    def fill(draft: Path | None) -> None:
        for file, size in files:
            world.send_file(target / file, None if draft is None else draft / file, size)

    if not lacks:
        fill(None)
    else:
        publish(target, fill)
        for other in step_directories(store.directory):
            if other != target and step_number(other.name):
                discard(other)
    world.barrier()


def _holds(path: Path, digest: str) -> bool:
    """Whether this is an intact checkpoint with this digest."""
    try:
        verify(path)
        return file_sha256(path / DIGESTS_FILE) == digest
    except (CheckpointError, OSError):
        return False


def _difference(steps: list[int], digests: list[str]) -> str:
    """Why ranks do not have the same checkpoint.

    steps: of the newest intact one of each rank; -1 if it has none.
    digests: of each rank's checkpoint of the lowest of these steps; "" if it lacks that.
    """
    behind, ahead = steps.index(min(steps)), steps.index(max(steps))
    if steps[behind] < 0:
        return f"rank {behind} has no checkpoint, and rank {ahead} has one of step {steps[ahead]}"
    if "" in digests:
        return (
            f"rank {digests.index('')} lacks the checkpoint of step {steps[behind]}, the newest "
            f"intact one of rank {behind}"
        )
    other = next(rank for rank, digest in enumerate(digests) if digest != digests[0])
    return f"ranks 0 and {other} have different checkpoints of step {steps[behind]}"


def resume(checkpoint: Checkpoint, store: CheckpointStore, step: TrainStep) -> TrainState:
    """Load a checkpoint of the store, on any number of ranks; every rank calls it.

    Ranks get their own state back if they are the ranks that wrote it, with the same number on each
    host. Otherwise each continues from the shared state, with the optimizer of rank 0. Raises
    CheckpointError.
    """
    check_trained_with(checkpoint.path, store.layout.trained_with)
    restore(checkpoint, step, own=_own(store, checkpoint, step), form=store.layout.form)
    return checkpoint.state.model_copy(update={"world_size": step.world.world_size})


def restore(
    checkpoint: Checkpoint,
    step: TrainStep,
    *,
    own: Checkpoint | None = None,
    form: WeightsForm = _PLAIN,
) -> None:
    """Load model, optimizer, averages, loss scale and strategy from a checkpoint.

    own: this rank's own part of the checkpoint; None if any rank lacks its part, or if the ranks
    are not those that wrote it. Raises CheckpointError if the checkpoint is of another model or of
    other settings.
    """
    path = checkpoint.path
    weights = dict(step.model.named_parameters())
    has_average = checkpoint.has("updated")
    copy_weights(
        checkpoint.tensors("updated" if has_average else "model"), weights, form, place=path
    )
    if step.ema is not None:
        if not has_average:
            raise _other_settings(path, "no moving average of the weights")
        copy_weights(checkpoint.tensors("model"), step.ema.weights(), form, place=path)
    nearest = own if own is not None and step.sync.own_optimizer else checkpoint
    _restore_optimizer(_group(nearest, "optimizer"), weights, step.optimizer, place=nearest.path)
    if step.scaler is not None:
        if nearest.state.loss_scaler is None:
            raise _other_settings(path, "no loss scale")
        step.scaler.load_state_dict(nearest.state.loss_scaler)
    shared = checkpoint.tensors("strategy") if checkpoint.has("strategy") else {}
    own_state = None if own is None else own.tensors("replica")
    step.sync.load_state(shared, own_state, step=checkpoint.state.step)


def _own(store: CheckpointStore, checkpoint: Checkpoint, step: TrainStep) -> Checkpoint | None:
    """This rank's part of the checkpoint; None if any rank lacks its own or has not written it."""
    if not checkpoint.has("replica"):
        return None
    own = store.of_rank(step.world.rank).intact(checkpoint.state.step)
    found = (
        own is not None
        and checkpoint.state.world_size == step.world.world_size
        and step.sync.wrote(own.tensors("replica"))
    )
    return own if all(step.world.gather_json(found)) else None


def _optimizer_tensors(step: TrainStep) -> dict[str, Tensor]:
    return {
        f"{name}/{kind}": tensor
        for name, weight in step.model.named_parameters()
        for kind, tensor in step.optimizer.state[weight].items()
    }


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
        remedy="resume with the settings of the run, or start a new one (fresh)",
    )
