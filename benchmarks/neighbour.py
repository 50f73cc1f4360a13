"""How long does a step take while another program uses one of the processors?

    benchmarks/neighbour.py [--rounds 10000 300000] [--steps 40] [--repeats 3]

Trains the model that a budget of five minutes takes, on the demo's text and the processors of this
machine, alone and beside a loop that never ends, in turns; --rounds: how long a waiting thread of
PyTorch spins before it sleeps (GOMP_SPINCOUNT). 300,000 is what libgomp does by itself, 10,000
what dragoman says. Prints the median of the steps' medians, in ms, and each against the first.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from dragoman import read_events

SETTINGS = (
    *("corpus.subword.vocab_size=3200", "data.batch_tokens=2048", "data.accumulate=1"),
    *("model.d_model=192", "model.num_heads=4", "model.d_ffn=768", "model.encoder_layers=3"),
    *("model.decoder_layers=2", "train.precision=fp32", "train.log_every_steps=10"),
)
BUSY = "while True: pass"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, nargs="+", default=[300_000, 10_000])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    found: dict[tuple[int, bool], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.repeats):
            for busy in (False, True):
                for rounds in options.rounds:
                    step_ms = step_time_ms(Path(folder), rounds, options.steps, busy=busy)
                    found.setdefault((rounds, busy), []).append(step_ms)
    medians = {key: statistics.median(values) for key, values in found.items()}
    print("| rounds | alone, ms/step | beside a busy loop | ratio | alone, against the first |")
    print("|---:|---:|---:|---:|---:|")
    for rounds in options.rounds:
        alone, beside = medians[rounds, False], medians[rounds, True]
        first = medians[options.rounds[0], False]
        print(
            f"| {rounds:,} | {alone:.0f} | {beside:.0f} | {beside / alone:.2f} "
            f"| {alone / first:.3f} |"
        )


def step_time_ms(folder: Path, rounds: int, steps: int, *, busy: bool) -> float:
    settings = [word for one in SETTINGS for word in ("--set", one)]
    command = [sys.executable, "-m", "dragoman", "train", "demo", "--fresh", "--ranks", "1"]
    shutil.rmtree(folder / "runs", ignore_errors=True)
    with ExitStack() as stack:
        if busy:
            neighbour = subprocess.Popen([sys.executable, "-c", BUSY])
            stack.callback(neighbour.wait)
            stack.callback(neighbour.kill)
        subprocess.run(
            [*command, *settings, "--set", f"train.max_steps={steps}"],
            cwd=folder,
            env=os.environ | {"GOMP_SPINCOUNT": str(rounds)},
            check=True,
            capture_output=True,
        )
    (run,) = (folder / "runs").iterdir()
    medians = [row["step_median_s"] for row in read_events(run, "train_interval")]
    return 1000.0 * float(statistics.median(medians))


if __name__ == "__main__":
    main()
