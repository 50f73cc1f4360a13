"""Our own search with PyTorch, which validates during training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine import Found, Task, Translate, run_torch

from dragoman.distributed.world import join_world
from dragoman.formats.trained_model import TranslationModel
from dragoman.model.config import SearchConfig
from dragoman.model.search import translate_batch
from dragoman.recipe.run_directory import RunDirectory


def make(task: Task) -> tuple[Translate, str]:
    ratio, extra = task.given["length_limit"]
    search = SearchConfig(
        beam_size=task.beam, length_penalty="power", length_penalty_alpha=task.alpha,
        max_length_ratio=ratio, max_length_extra=extra,
    )  # fmt: skip
    with join_world() as world:
        run = RunDirectory.open(Path(task.given["run"]))
        models = TranslationModel.load(run, [task.given["checkpoint"]], world).models

    def translate(numbers: Sequence[int]) -> Found:
        found = translate_batch(models, [task.sources[number] for number in numbers], search)
        return [best.ids for best, *_ in found]

    return translate, ""


if __name__ == "__main__":
    run_torch(make)
