"""Checkpoints: atomic directories with digests; which to keep, and which one to resume from.

step-0004000/
    model.safetensors       the weights that translate, fp32, under the names of transformers: the
                            moving average, if the run keeps one
    config.json, ...        the files with which they are a folder in Hugging Face form
    updated.safetensors     the weights after the update, if the others are their moving average
    optimizer.safetensors   the optimizer's state, by parameter name and kind
    strategy.safetensors    state of the gradient strategy that is equal on all ranks
    replica.safetensors     state of the strategy that only this rank has
    state.json              see `TrainState`
    digests.json            size and SHA-256 of each of the others
rank-0001/step-0004000/     the same for another rank, but only its own state
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dragoman.base.errors import CheckpointError
from dragoman.base.files import open_regular, read_regular
from dragoman.distributed.config import DistributedConfig
from dragoman.model.config import CONFIG_FILE
from dragoman.model.weights_form import WEIGHTS_FILE, WeightsForm, is_extra
from dragoman.training.config import CheckpointConfig
from dragoman.training.divergence import LossTrend
from dragoman.training.durable import (
    discard,
    publish,
    read_digests,
    remove_drafts,
    step_directories,
    step_name,
    step_number,
    verify,
)

_VERSION: Final = 2


class TrainState(BaseModel):
    """The state of training after `step` steps.

    step: steps since the beginning; the position in the data follows from it.
    epoch: the epoch of the last update, from 0.
    seed, world_size: the random seed and the number of ranks of the run that wrote this; it may
        resume with another number of ranks.
    recipe_digest, corpus_digest: digests of the recipe and of the prepared text when the run began.
    loss_trend: the losses by which divergence is judged.
    best_...: over all validations so far, and the steps they were measured at.
    validations_without_best: in a row, by the metric for early stopping.
    dev_loss, bleu: measured at this very step; None if none was.
    validated_step: the step of the last validation; None if there was none.
    planned_step_s: the time of a step that `auto` expects; None if nothing was planned.
    link_bytes_per_s: the rate of the network between hosts, each way, when the run began or moved
        to other machines; None if it was not measured.
    machines: host and device of each rank.
    sync: the strategy in use; if the recipe says "auto", the one that was chosen.
    The others are those of a run with a budget (`training.clock`):
    progress: the share of the time for training that had gone. began_s: seconds of the budget at
        the first update. validated_progress: that of the last validation. dev_losses: (progress,
        dev loss) of each validation. validation_s, search_s, save_s: the last measured times of a
        validation, of its translations alone, and of a save; None before the first.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[2] = _VERSION
    step: int = 0
    epoch: int = 0
    seed: int
    world_size: int
    recipe_digest: str
    corpus_digest: str
    loss_trend: LossTrend = Field(default_factory=LossTrend)
    skipped_steps: int = 0
    best_dev_loss: float | None = None
    best_dev_loss_step: int | None = None
    best_bleu: float | None = None
    best_bleu_step: int | None = None
    validations_without_best: int = 0
    dev_loss: float | None = None
    bleu: float | None = None
    loss_scaler: dict[str, float] | None = None
    validated_step: int | None = None
    planned_step_s: float | None = None
    link_bytes_per_s: float | None = None
    machines: tuple[str, ...] = ()
    sync: DistributedConfig = Field(default_factory=DistributedConfig)
    progress: float = 0.0
    began_s: float | None = None
    validated_progress: float = 0.0
    dev_losses: tuple[tuple[float, float], ...] = ()
    validation_s: float | None = None
    search_s: float | None = None
    save_s: float | None = None

    def after_update(self, epoch: int, *, progress: float = 0.0) -> Self:
        """The state after one more update; nothing has been measured at it yet."""
        return self.model_copy(
            update={
                "step": self.step + 1,
                "epoch": epoch,
                "dev_loss": None,
                "bleu": None,
                "progress": progress,
            }
        )

    def after_validation(
        self, *, dev_loss: float, bleu: float | None, stop_metric: Literal["dev_loss", "bleu"]
    ) -> Self:
        """The state with this step's scores; patience counts by `stop_metric`.

        If `stop_metric` is bleu but nothing was decoded, patience does not count.
        """
        better_loss = self.best_dev_loss is None or dev_loss < self.best_dev_loss
        better_bleu = bleu is not None and (self.best_bleu is None or bleu > self.best_bleu)
        update: dict[str, object] = {
            "dev_loss": dev_loss,
            "bleu": bleu,
            "validated_step": self.step,
        }
        if better_loss:
            update |= {"best_dev_loss": dev_loss, "best_dev_loss_step": self.step}
        if better_bleu:
            update |= {"best_bleu": bleu, "best_bleu_step": self.step}
        if stop_metric == "dev_loss" or bleu is not None:
            better = better_loss if stop_metric == "dev_loss" else better_bleu
            waited = 0 if better else self.validations_without_best + 1
            update["validations_without_best"] = waited
        return self.model_copy(update=update)


STATE_FILE: Final = "state.json"
TensorGroups = Mapping[str, Mapping[str, Tensor]]
"""Named tensors by the file they belong in: model, updated, optimizer, strategy, replica."""
TrainedWith = Mapping[str, str]
"""Settings of the model and digests of the vocabularies. With others the weights are wrong, even if
every tensor has the right shape. They are stored in config.json, so copies have them."""
TRAINED_WITH_KEY: Final = "dragoman_trained_with"
"""Their key in config.json."""
_TRAINED_WITH: Final = TypeAdapter(dict[str, str])
_OTHER_FILE: Final = "use another checkpoint, or copy the file here again"
_WEIGHTS: Final = ("updated", "model")
_LONGEST_STATE: Final = 1 << 20
_LONGEST_HEADER: Final = 1 << 24
"""Most bytes of the header before the tensors: room for a hundred thousand of them."""
_FLOATS: Final = frozenset({"F32", "F16", "BF16"})
_DIGITS: Final = 12
"""Digits of a digest that an error shows."""


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """How the checkpoints of a run hold its model, the same for all of them.

    files: the files beside the weights, with which they are a folder in Hugging Face form.
    """

    form: WeightsForm = field(default_factory=WeightsForm)
    trained_with: TrainedWith = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


_PLAIN: Final = ModelLayout()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    state: TrainState

    @classmethod
    def open(cls, path: Path) -> Self:
        """The checkpoint in this directory, every file checked against its digest.

        Raises CheckpointError that names the file which is missing, torn or altered.
        """
        verify(path)
        return cls(path, read_state(path))

    def file(self, group: str) -> Path:
        """The path of the file with the tensors of a group."""
        return _tensor_file(self.path, group)

    def has(self, group: str) -> bool:
        """Whether the checkpoint has tensors of this group."""
        return self.file(group).is_file()

    def tensors(self, group: str) -> dict[str, Tensor]:
        """The tensors of a group by name, on the CPU."""
        return load_file(self.file(group))


@dataclass(frozen=True, slots=True)
class Saved:
    """Size and time of a save."""

    path: Path
    size_bytes: int
    seconds_s: float


class CheckpointStore:
    """The checkpoints of one run. Only one process may save; any process may read."""

    def __init__(
        self, directory: Path, config: CheckpointConfig, layout: ModelLayout = _PLAIN
    ) -> None:
        self.directory = directory
        self.config = config
        self.layout = layout

    def of_rank(self, rank: int) -> CheckpointStore:
        """The store for a rank's own state; rank 0 keeps its own with the shared state."""
        if rank == 0:
            return self
        return CheckpointStore(self.directory / f"rank-{rank:04d}", self.config, self.layout)

    def clean(self) -> None:
        """Remove what a killed process left half-written; only for the process that saves."""
        remove_drafts(self.directory)

    def save(self, state: TrainState, groups: TensorGroups) -> Saved:
        """Write the checkpoint of `state.step`, then remove those no longer to be kept.

        Raises MachineError if the disk is full; the older checkpoints are untouched then.
        """
        start = time.perf_counter()
        path = self._path(state.step)

        def fill(draft: Path) -> None:
            for group, tensors in groups.items():
                if tensors:
                    of_model = group in _WEIGHTS
                    written = self.layout.form.to_file(tensors) if of_model else dict(tensors)
                    save_file(written, _tensor_file(draft, group), metadata={"format": "pt"})
            for name, content in self.layout.files.items() if "model" in groups else ():
                (draft / name).write_bytes(content)
            (draft / STATE_FILE).write_text(state.model_dump_json(indent=1), encoding="utf-8")

        size_bytes = publish(path, fill)
        for other in self._not_kept(state.step):
            discard(other)
        return Saved(path, size_bytes, time.perf_counter() - start)

    def paths(self) -> list[Path]:
        """The directories of all checkpoints by step; none of them is checked."""
        return step_directories(self.directory)

    def latest_valid(self, warn: Callable[[CheckpointError], None]) -> Checkpoint | None:
        """The newest intact checkpoint; None if there is none at all.

        warn: called with the damage of each newer one, which is skipped.
        Raises CheckpointError if there are checkpoints and all are damaged.
        """
        problems = []
        for path in reversed(self.paths()):
            try:
                return Checkpoint.open(path)
            except CheckpointError as error:
                warn(error)
                problems.append(error.problem)
        if problems:
            raise CheckpointError(
                f"none of the {len(problems)} checkpoints is intact: the newest {problems[0]}",
                place=self.directory,
                remedy="start a new run (fresh)",
            )
        return None

    def intact(self, step: int) -> Checkpoint | None:
        """The checkpoint of this step if it exists and is not damaged."""
        try:
            return Checkpoint.open(self._path(step))
        except CheckpointError:
            return None

    def last(self, count: int) -> list[Path]:
        """The directories of the last `count` checkpoints, or of fewer, by step."""
        return [path for path, _ in self._states()][-count:]

    def best(self, count: int, *, by: Literal["dev_loss", "bleu"] = "dev_loss") -> list[Path]:
        """The directories of the best `count` of those that were measured, best first."""
        return _ranked(dict(self._states()), by)[:count]

    def is_among_best(self, state: TrainState) -> bool:
        """Whether a checkpoint of this state would be one of the best that are kept."""
        path = self._path(state.step)
        states = {other: found for other, found in self._states() if _step(other) < state.step}
        states[path] = state
        best = self.config.keep_best
        return any(path in _ranked(states, by)[:best] for by in ("dev_loss", "bleu"))

    def choose(self, which: str) -> Path:
        """The directory of one checkpoint.

        which: "last"; "best-loss"; "best-bleu"; "best", which is by BLEU if any was measured
            and by dev loss otherwise; or a step.
        Raises CheckpointError if there is no such checkpoint.
        """
        candidates = {
            "last": lambda: self.last(1),
            "best-loss": lambda: self.best(1),
            "best-bleu": lambda: self.best(1, by="bleu"),
            "best": lambda: self.best(1, by="bleu") or self.best(1),
        }.get(which, lambda: [path for path in self.paths() if str(_step(path)) == which])()
        if candidates:
            return candidates[0]
        steps = ", ".join(str(_step(path)) for path in self.paths()) or "none"
        choices = "last, best, best-loss, best-bleu or a step"
        if self.paths() and not any(True for _ in self._states()):
            read_state(self.paths()[-1])  # raises the reason
        if which.startswith("best") and self.paths():
            choices = "last or a step: no validation has told yet which is best"
        raise CheckpointError(
            f"no checkpoint {which!r}",
            place=self.directory,
            remedy=f"choose {choices} (there are: {steps})",
        )

    def _path(self, step: int) -> Path:
        return self.directory / step_name(step)

    def _not_kept(self, step: int) -> list[Path]:
        """The checkpoints to remove: all but the last ones and the best ones up to `step`.

        Those of later steps were damaged, so the run went on from an older one.
        """
        states = {path: state for path, state in self._states() if _step(path) <= step}
        best = self.config.keep_best
        kept = {
            *list(states)[-self.config.keep_last :],
            *_ranked(states, "dev_loss")[:best],
            *_ranked(states, "bleu")[:best],
        }
        return [path for path in self.paths() if path not in kept]

    def _states(self) -> Iterator[tuple[Path, TrainState]]:
        """All checkpoints whose state can be read, by step."""
        for path in self.paths():
            try:
                yield path, read_state(path)
            except CheckpointError:
                continue


def is_choice(which: str) -> bool:
    """Whether it is a word or a step for `CheckpointStore.choose`, and not a directory's path."""
    return which in ("last", "best", "best-loss", "best-bleu") or which.isdecimal()


def read_state(path: Path) -> TrainState:
    """The JSON part of the checkpoint in this directory; raises CheckpointError."""
    verify(path, [STATE_FILE])
    try:
        values = json.loads(read_regular(path / STATE_FILE, limit=_LONGEST_STATE))
        if isinstance(values, dict) and (version := values.get("version")) != _VERSION:
            raise CheckpointError(
                f"is of format {version}, and this version of dragoman reads format {_VERSION}",
                place=path,
                remedy="train the run anew, or use the version of dragoman that wrote it",
            )
        return TrainState.model_validate(values)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            "the state cannot be read",
            place=path / STATE_FILE,
            remedy="use another checkpoint, or the version of dragoman that wrote this one",
        ) from error


def load_weights(path: Path, model: nn.Module, layout: ModelLayout = _PLAIN) -> None:
    """Load the weights for translation into a model: the moving average if there is one.

    path: a checkpoint, or the directory that `average` made.
    layout: with the settings of the model and the digests of the vocabularies that will use them.
    Raises CheckpointError if they are damaged or belong to another model or vocabulary.
    """
    file = path / WEIGHTS_FILE
    verify(path, [WEIGHTS_FILE])
    check_trained_with(path, layout.trained_with)
    copy_weights(read_weights(file), dict(model.named_parameters()), layout.form, place=file)


def updated_weights_file(path: Path) -> Path:
    """The file of a checkpoint with the weights after its update, not their moving average."""
    file = _tensor_file(path, "updated")
    return file if file.name in read_digests(path) else path / WEIGHTS_FILE


@torch.no_grad()
def copy_weights(
    found: Mapping[str, Tensor], weights: Mapping[str, Tensor], form: WeightsForm, *, place: Path
) -> None:
    """Copy the tensors of a file onto weights; raises CheckpointError as `copy_named`.

    Tensors for which a model has no weights are left if they are copies or zeros.
    """
    views = form.views(weights)
    own = {
        name: form.in_our_order(name, tensor)
        for name, tensor in found.items()
        if name in views or not is_extra(name) or (name.endswith("bias") and tensor.any())
    }
    copy_named(own, views, place=place)


def weight_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor in a file of weights, from its header alone.

    Raises CheckpointError if the file cannot be read or holds anything but floats. The library
    rejects tensors that overlap, or lie outside the file.
    """
    with _opened_weights(file) as weights:
        slices = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118
        for name, one in slices.items():
            if one.get_dtype() not in _FLOATS:
                problem = f"{name} holds {one.get_dtype()}, not floats of 16 or 32 bits"
                raise CheckpointError(problem, place=file, remedy=_OTHER_FILE)
        return {name: tuple(one.get_shape()) for name, one in slices.items()}


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a file of weights, on the CPU.

    Raises CheckpointError if it cannot be read, or a weight is infinite or not a number: a
    model with such weights translates everything to nothing, without an error.
    """
    weight_shapes(file)
    try:
        weights = load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot be read: {error}", place=file, remedy=_OTHER_FILE) from error
    for name, tensor in weights.items():
        # In 64 bits no sum of finite floats overflows, and nothing hides an infinity or a NaN.
        if not math.isfinite(tensor.sum(dtype=torch.float64).item()):
            problem = f"{name} has weights that are infinite or not numbers"
            raise CheckpointError(problem, place=file, remedy=_OTHER_FILE)
    return weights


@contextmanager
def _opened_weights(file: Path) -> Iterator[Any]:
    """A safetensors file whose header has a plausible size; raises CheckpointError."""
    try:
        with open_regular(file) as raw:
            length = int.from_bytes(raw.read(8), "little")
        if length > _LONGEST_HEADER:
            problem = f"claims a header of {length:,} bytes, over the limit of {_LONGEST_HEADER:,}"
            raise CheckpointError(problem, place=file, remedy=_OTHER_FILE)
        with safe_open(file, framework="pt") as weights:
            yield weights
    except (OSError, SafetensorError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(
            f"cannot be read: {problem}", place=file, remedy=_OTHER_FILE
        ) from error


def read_trained_with(path: Path) -> dict[str, str]:
    """The settings and digests that the weights of a directory were trained with, if it says so.

    Raises CheckpointError if they cannot be read.
    """
    if CONFIG_FILE not in read_digests(path):
        return {}
    verify(path, [CONFIG_FILE])
    try:
        config = json.loads(read_regular(path / CONFIG_FILE, limit=_LONGEST_STATE))
        return _TRAINED_WITH.validate_python(config.get(TRAINED_WITH_KEY, {}))
    except (OSError, ValueError, AttributeError) as error:
        problem = f'its "{TRAINED_WITH_KEY}" cannot be read'
        raise CheckpointError(problem, place=path / CONFIG_FILE, remedy=_OTHER_FILE) from error


def check_trained_with(path: Path, expected: TrainedWith) -> None:
    """Raises CheckpointError if weights were trained with other settings, or cannot be read."""
    for name, value in read_trained_with(path).items():
        if expected.get(name, value) != value:
            raise CheckpointError(
                f"was trained with another {name}: {value[:_DIGITS]}",
                place=path,
                remedy="restore the files of the run that it was trained in, or name that run",
            )


@torch.no_grad()
def copy_named(source: Mapping[str, Tensor], target: Mapping[str, Tensor], *, place: Path) -> None:
    """Copy tensors onto those of the same name.

    Raises CheckpointError, before anything is copied, that names a tensor which only one side has
    or whose shapes differ.
    """
    check_shapes(_shapes(source), _shapes(target), place=place)
    for name, tensor in source.items():
        target[name].copy_(tensor)


def check_shapes(
    found: Mapping[str, tuple[int, ...]], model: Mapping[str, tuple[int, ...]], *, place: Path
) -> None:
    """Raises CheckpointError that names a tensor which only one side has or whose shapes differ."""
    remedy = "name a checkpoint of a model of this shape, or use the recipe of this checkpoint"
    for name in [*model, *found]:
        if name not in found or name not in model:
            problem = f"{name} is in the {'checkpoint' if name in found else 'model'} only"
            raise CheckpointError(problem, place=place, remedy=remedy)
        if found[name] != model[name]:
            problem = f"{name} is {found[name]} in the checkpoint and {model[name]} in the model"
            raise CheckpointError(problem, place=place, remedy=remedy)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _ranked(states: Mapping[Path, TrainState], by: Literal["dev_loss", "bleu"]) -> list[Path]:
    """Checkpoints that were measured, best first, the earlier of two equal ones first.

    A BLEU of 0 does not count: early on all have it, and the first of them is the worst.
    """
    sign = 1 if by == "dev_loss" else -1
    values = {path: getattr(state, by) for path, state in states.items()}
    measured = [path for path, value in values.items() if value or (value == 0 and sign > 0)]
    return sorted(measured, key=lambda path: (sign * values[path], _step(path)))


def _step(path: Path) -> int:
    return step_number(path.name)


def _tensor_file(path: Path, group: str) -> Path:
    return path / f"{group}.safetensors"
