"""Shared by the scripts of this folder: each is one engine, in a process of its own.

DIRECTORY is what translate.py has written: for-engines.json (sources as ids, as pieces and as text,
and the model's shape), and the same weights for each engine in its own format. A script says
"ready" and a word about itself when it is warm; then it answers every line of its standard input
with one of JSON: the seconds that it took to translate all sources, and the translations (ids or
text). With --once it translates them once, without warming up, and ends: a whole command. Engines
that read CTranslate2's format take the folder of DIRECTORY that --bundle names.

    with_NAME.py DIRECTORY BEAM LENGTH_PENALTY_ALPHA BATCH_SIZE THREADS [--bundle NAME] [--once]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAD, UNK, BOS, EOS = 0, 1, 2, 3
WARM = 50
Found = list[list[int]] | list[str]
Translate = Callable[[Sequence[int]], Found]
"""Numbers of sources -> their translations, in that order."""


@dataclass(frozen=True, slots=True)
class Task:
    """The work for one engine; batch_size 0: the engine finds the best for itself."""

    directory: Path
    beam: int
    alpha: float
    batch_size: int
    threads: int
    bundle: str
    given: dict[str, Any]

    @property
    def sources(self) -> list[list[int]]:
        """Ids without end of sentence."""
        found: list[list[int]] = self.given["sources"]
        return found

    @property
    def shape(self) -> dict[str, Any]:
        """Settings of the model, by the recipe's names."""
        found: dict[str, Any] = self.given["shape"]
        return found

    def length_limit(self, longest: int) -> int:
        """Rows of a batch whose longest source has this many pieces."""
        ratio, extra = self.given["length_limit"]
        return int(ratio * longest + extra)


def by_length(numbers: Sequence[int], sources: list[list[int]]) -> list[int]:
    return sorted(numbers, key=lambda number: -len(sources[number]))


def in_batches(
    task: Task, search: Callable[[list[list[int]]], list[list[int]]], batch_size: int
) -> Translate:
    """A search of batches of ids: sources sorted by length, so many at a time."""

    def translate(numbers: Sequence[int]) -> Found:
        order = by_length(numbers, task.sources)
        found: dict[int, list[int]] = {}
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            ids = search([task.sources[row] for row in rows])
            found.update(zip(rows, map(until_end, ids), strict=True))
        return [found[number] for number in numbers]

    return translate


def padded(sources: list[list[int]], *, left: bool = False) -> tuple[Any, list[int]]:
    """A tensor of ids with end of sentence in rows, and their lengths."""
    import torch

    lengths = [len(source) + 1 for source in sources]
    rows = []
    for source in sources:
        padding = [PAD] * (max(lengths) - len(source) - 1)
        rows.append([*padding, *source, EOS] if left else [*source, EOS, *padding])
    return torch.tensor(rows), lengths


def until_end(ids: list[int]) -> list[int]:
    return ids[: ids.index(EOS)] if EOS in ids else ids


def fairseq_weights(task: Task) -> dict[str, Any]:
    """The weights under the names that fairseq gave them, which Hugging Face has kept."""
    import numpy as np
    import torch

    with np.load(task.directory / "fairseq-names.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays}


def positions(count: int, width: int) -> Any:
    """The table of `model.transformer.sinusoids`, from the first token on: sines, then cosines."""
    import torch

    half = width // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float32) * -(math.log(10_000) / (half - 1)))
    angles = torch.arange(1, count + 1, dtype=torch.float32)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def run(make: Callable[[Task], tuple[Translate, str]]) -> None:
    """make: what translates, and a word about it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("beam", type=int)
    parser.add_argument("alpha", type=float)
    parser.add_argument("batch_size", type=int)
    parser.add_argument("threads", type=int)
    parser.add_argument("--bundle", default="bundle")
    parser.add_argument("--once", action="store_true")
    options = vars(parser.parse_args())
    once = options.pop("once")
    given = json.loads((options["directory"] / "for-engines.json").read_text())
    task = Task(**options, given=given)
    translate, word = make(task)
    numbers = range(len(task.sources))
    if once:
        translate(numbers)
        return
    translate(numbers[:: -(-len(numbers) // WARM)])
    print(f"ready {word}", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        found = translate(numbers)
        print(json.dumps([time.perf_counter() - started, found]), flush=True)


def run_torch(make: Callable[[Task], tuple[Translate, str]]) -> None:
    """The same with PyTorch's threads and its mode of inference."""
    import torch

    def made(task: Task) -> tuple[Translate, str]:
        torch.set_num_threads(task.threads)
        translate, word = make(task)
        return torch.inference_mode()(translate), word

    run(made)
