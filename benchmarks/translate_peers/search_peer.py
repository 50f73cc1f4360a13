"""What the scripts of this folder share; each is run by the Python of one peer.

DIRECTORY holds weights.npz (our weights under the names that fairseq gave them), model.json and
sources.json. The script answers every line of its standard input with one of JSON: the seconds that
it took to translate all sources, and the ids.

    with_NAME.py DIRECTORY BEAM LENGTH_PENALTY_ALPHA BATCH_SIZE THREADS
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

PAD, UNK, BOS, EOS = 0, 1, 2, 3
TranslateBatch = Callable[[list[list[int]]], list[list[int]]]


def read_weights(directory: Path) -> dict[str, torch.Tensor]:
    with np.load(directory / "weights.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays}


def padded(sources: list[list[int]], *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids with end of sentence in rows, and their lengths."""
    lengths = [len(source) + 1 for source in sources]
    rows = []
    for source in sources:
        padding = [PAD] * (max(lengths) - len(source) - 1)
        rows.append([*padding, *source, EOS] if left else [*source, EOS, *padding])
    return torch.tensor(rows), torch.tensor(lengths)


def until_end(ids: list[int]) -> list[int]:
    return ids[: ids.index(EOS)] if EOS in ids else ids


def run(make: Callable[[Path, dict[str, Any], int, float], TranslateBatch]) -> None:
    """make: (directory, model.json, beam, alpha) -> what translates a batch."""
    directory = Path(sys.argv[1])
    beam, alpha, batch_size, threads = (float(word) for word in sys.argv[2:])
    torch.set_num_threads(int(threads))
    config = json.loads((directory / "model.json").read_text())
    translate_batch = make(directory, config, int(beam), alpha)
    sources = json.loads((directory / "sources.json").read_text())
    order = sorted(range(len(sources)), key=lambda row: -len(sources[row]))

    def translate(order: list[int]) -> list[list[int]]:
        results: list[list[int]] = [[] for _ in sources]
        for start in range(0, len(order), int(batch_size)):
            rows = order[start : start + int(batch_size)]
            with torch.inference_mode():
                found = translate_batch([sources[row] for row in rows])
            for row, ids in zip(rows, found, strict=True):
                results[row] = until_end(ids)
        return results

    translate(order[: int(batch_size)])
    print("ready", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        results = translate(order)
        print(json.dumps([time.perf_counter() - started, results]), flush=True)
