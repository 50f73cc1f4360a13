"""Rates translations with unbabel-comet; a program for a Python of its own, without dragoman.

    python comet_process.py CHECKPOINT

It writes {"version": ..., "needs_references": ...} when the checkpoint is loaded. Then it answers
each line of its standard input, {"rows": [[source, translation, reference], ...], "threads": number
or null}, with a line {"scores": [...]}; the references may be left out if none are needed. Whatever
libraries print goes to the standard error.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version


def main() -> None:
    """Load the checkpoint, then answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from comet.models import load_from_checkpoint  # type: ignore[import-not-found]
    from torch import cuda, set_num_threads

    model = load_from_checkpoint(sys.argv[1], local_files_only=True)
    first = {
        "version": version("unbabel-comet"),
        "needs_references": model.requires_references(),
    }
    print(json.dumps(first), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["threads"]:
            set_num_threads(asked["threads"])
        rows = [dict(zip(("src", "mt", "ref"), row, strict=False)) for row in asked["rows"]]
        gpus = int(cuda.is_available())
        found = model.predict(rows, batch_size=16, gpus=gpus, progress_bar=False)
        scores = [float(score) for score in found.scores]
        print(json.dumps({"scores": scores}), file=answers, flush=True)


if __name__ == "__main__":
    main()
