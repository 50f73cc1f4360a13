"""The mean of several checkpoints' weights: often a better model than any of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dragoman.base.errors import CheckpointError
from dragoman.model.weights_form import WEIGHTS_FILE
from dragoman.training.checkpoint import (
    STATE_FILE,
    check_trained_with,
    copy_named,
    read_state,
    read_trained_with,
    updated_weights_file,
)
from dragoman.training.durable import DIGESTS_FILE, publish, verify

PROVENANCE_FILE: Final = "provenance.json"


def average_checkpoints(paths: Sequence[Path], output: Path) -> None:
    """Write the mean weights of checkpoints as a directory that `load_weights` reads.

    The directory is a folder in Hugging Face form, as a checkpoint is, with the names of the
    checkpoints. The mean is of the weights after the updates, not of their moving averages. An
    older average at `output` is replaced.

    Raises CheckpointError if there is no checkpoint, if one is damaged or not of the same model as
    the first, or if something else is at `output`; MachineError if the output cannot be written.
    """
    if not paths:
        raise CheckpointError(
            "there is no checkpoint to average", place=output, remedy="train some steps first"
        )
    if output.exists() and not (output / PROVENANCE_FILE).is_file():
        # Everything in it would be replaced: a run, or a home directory.
        raise CheckpointError(
            "exists already and is not an average", place=output, remedy="name another output"
        )
    for path in paths:
        verify(path)
    trained_with = read_trained_with(paths[0])
    for path in paths[1:]:
        check_trained_with(path, trained_with)
    mean = _mean(paths)
    provenance = [{"path": str(path.resolve()), "step": read_state(path).step} for path in paths]

    def fill(draft: Path) -> None:
        save_file(mean, draft / WEIGHTS_FILE, metadata={"format": "pt"})
        for file in paths[0].iterdir():
            if file.suffix != ".safetensors" and file.name not in (STATE_FILE, DIGESTS_FILE):
                shutil.copyfile(file, draft / file.name)
        text = json.dumps({"average_of": provenance}, indent=1)
        (draft / PROVENANCE_FILE).write_text(text, encoding="utf-8")

    publish(output, fill)


def _mean(paths: Sequence[Path]) -> dict[str, Tensor]:
    first = load_file(updated_weights_file(paths[0]))
    sums = {name: tensor.double() for name, tensor in first.items()}
    for path in paths[1:]:
        file = updated_weights_file(path)
        others = {name: torch.empty_like(tensor) for name, tensor in first.items()}
        copy_named(load_file(file), others, place=file)
        for name, tensor in others.items():
            sums[name] += tensor
    return {name: (total / len(paths)).float() for name, total in sums.items()}
